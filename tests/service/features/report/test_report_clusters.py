"""Clusters in the page: a planted watermark is one suspect cluster, and clean maps have none."""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from cam.drawing.placement import Box, Float
from service.core.errors import UndecodableImage
from service.features.batch.configuration import source_of
from service.features.report import clusters as report_clusters
from service.features.report.census import take_census
from service.features.report.clusters import (
    ClassRows,
    cluster_classes,
    prototype_rows,
    suspect_rows,
)
from service.features.report.pictures import SIDE, CoveredPhotos, thumbnail
from service.features.report.write import write_report
from service.features.tables.rows import Row
from tests.cam.clusters.synthetic import blobs
from tests.cam.clusters.synthetic import marked as marked_uses
from tests.service.features.report.report_stage import (
    HOSTILE,
    Page,
    map_row,
    read_page,
    write_manifest,
)

CLEAN, MARKED = 300, 12
LARGE = 96
"""Side of the photos in pixels."""
PHOTO: Any = {"covers_left": 0, "covers_top": 0, "covers_right": LARGE, "covers_bottom": LARGE}


def marked(values: Float, random: np.random.Generator) -> Float:
    """A map whose heat lies in the lower right corner."""
    values = 0.3 * values
    values[-3:, -3:] = 0.9 + 0.1 * random.random((3, 3))
    return values


def photo_of(random: np.random.Generator, watermark: bool) -> NDArray[np.uint8]:
    pixels = (
        random.integers(0, 256, (8, 8, 3), np.uint8).repeat(LARGE // 8, 0).repeat(LARGE // 8, 1)
    )
    if watermark:
        pixels[-21:, -21:] = (255, 0, 255)
    return pixels


def named(position: int) -> str:
    return f"{position}.png"


def planted_rows() -> list[Row]:
    """The first `MARKED` maps are of photos with the watermark."""
    random = np.random.default_rng(5)
    values = blobs(CLEAN + MARKED, 0)
    values[:MARKED] = [marked(each, random) for each in values[:MARKED]]
    return [
        map_row(named(position), each.tolist(), **PHOTO) for position, each in enumerate(values)
    ]


def write_photos(folder: Path) -> None:
    folder.mkdir()
    random = np.random.default_rng(6)
    for position in range(CLEAN + MARKED):
        Image.fromarray(photo_of(random, position < MARKED)).save(folder / named(position))


def table(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


def section(file: Path) -> str:
    """The part of the page's source about clusters; empty if there is none."""
    found = re.search(r'<section id="clusters".*?</section>', file.read_text(), re.DOTALL)
    return found[0] if found else ""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a batch of which a watermark is on some photos. Its sample has 20 maps."""
    folder = tmp_path_factory.mktemp("planted")
    write_photos(folder / "photos")
    (folder / "batch").mkdir()
    (folder / "batch" / "run.json").write_text(json.dumps({"source": str(folder / "photos")}))
    file = folder / "page.html"
    manifest = write_manifest(folder, planted_rows())
    output = folder / "batch"
    opened = partial(source_of, output)
    write_report(manifest, output, file, title="Photos", source=opened, most=20)
    return file


@pytest.fixture
def page(planted: Path) -> Page:
    return read_page(planted)


@pytest.mark.slow
def test_a_watermark_is_one_suspect_cluster(page: Page, planted: Path) -> None:
    assert section(planted).count('class="mark"') == 1
    assert f"cluster 0 suspect {MARKED} maps, 3.8 % of the class" in page.words  # 12 / 312
    assert "The photos show the same thing under the heat and differ elsewhere; " in page.words
    assert "could not be read" not in page.words
    assert [tag for tag, facts in page.tags if facts.get("href") == "#clusters"] == ["a"]
    # An even number of prototypes of each of the clusters, as the maps alone.
    assert section(planted).count('class="prototypes"') == section(planted).count("data-cluster")


def test_a_mark_on_all_photos_of_a_class_is_told(tmp_path: Path) -> None:
    """All maps of the class are alike, so none of its clusters is suspect."""
    random = np.random.default_rng(0)
    cats = [map_row(f"cat{number}.png", each.tolist()) for number, each in enumerate(blobs(40, 0))]
    dogs = [
        replace(
            map_row(f"dog{number}.png", marked(each, random).tolist()),
            target="dog <b>",
            target_index=7,
        )
        for number, each in enumerate(blobs(40, 1))
    ]
    file = tmp_path / "page.html"
    write_report(write_manifest(tmp_path, cats + dogs), tmp_path, file, title="Photos")
    words = read_page(file).words
    told = "All 40 maps of 'dog <b>' look at the bottom right, where no other class looks."
    assert told in words
    assert "No cluster is suspect." not in words


def test_the_table_says_of_each_map_which_cluster_it_is_in(page: Page, planted: Path) -> None:
    file = planted.with_name("page.clusters.csv")
    links = [facts.get("href") for tag, facts in page.tags if tag == "a"]
    # In the section of clusters, and where a cluster was chosen that is not on the page as a whole.
    assert [each for each in links if each and each[0] != "#"] == ["page.clusters.csv"] * 2
    rows = table(file)
    assert list(rows[0]) == ["id", "number", "class", "cluster", "suspect", "reasons", "x", "y"]
    assert [each["id"] for each in rows] == [named(each) for each in range(CLEAN + MARKED)]
    suspect = [each for each in rows if each["suspect"] == "true"]
    assert [each["id"] for each in suspect] == [named(each) for each in range(MARKED)]
    assert {(each["class"], each["number"], each["cluster"]) for each in suspect} == {
        ("cat", "0", "0")
    }
    assert suspect[0]["reasons"].startswith("same thing; ")
    assert all(np.isfinite(float(each[axis])) for each in rows for axis in "xy")
    assert not list(planted.parent.glob(".*"))


def test_suspect_maps_are_on_the_page_beside_the_sample(page: Page) -> None:
    assert sum(each["sampled"] for each in page.rows) == 20
    suspects = [each["id"] for each in page.rows if each["cluster"] == 0]
    assert suspects == [named(each) for each in range(MARKED)]


def test_the_most_typical_maps_of_each_cluster_are_on_the_page(page: Page, planted: Path) -> None:
    """Although the sample has 20 of 312 maps."""
    clusters = {each["cluster"] for each in table(planted.with_name("page.clusters.csv"))}
    typical = [facts["alt"] for tag, facts in page.tags if tag == "img" and facts.get("title")]
    assert len(typical) == 6 * len(clusters)
    assert {*typical} <= {*page.names}
    assert len(page.names) < 20 + MARKED + len(typical) + 24  # 24 are extreme


def test_prototypes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The most typical map of each cluster comes before the second one of any."""
    rows = planted_rows()
    found = cluster_classes(rows, take_census(rows).classes, None, 1000)
    typical = [each.prototypes.tolist() for each in found[0].found.clusters]
    assert prototype_rows(found) == {row for each in typical for row in each}
    monkeypatch.setattr(report_clusters, "PROTOTYPES", len(typical) + 1)
    assert prototype_rows(found) == {typical[0][1], *(each[0] for each in typical)}


@pytest.mark.slow
def test_the_same_manifest_makes_the_same_section(planted: Path, tmp_path: Path) -> None:
    again = tmp_path / "page.html"
    manifest = planted.with_name("manifest.parquet")
    output = planted.with_name("batch")
    opened = partial(source_of, output)
    write_report(manifest, output, again, title="Photos", source=opened, most=20)
    assert section(again) == section(planted)
    first = planted.with_name("page.clusters.csv").read_bytes()
    assert again.with_name("page.clusters.csv").read_bytes() == first


def test_clean_maps_have_no_suspect(tmp_path: Path) -> None:
    rows = [map_row(named(at), each.tolist()) for at, each in enumerate(blobs(120, 1))]
    file = tmp_path / "report.html"
    write_report(write_manifest(tmp_path, rows), tmp_path, file, title="Photos")
    words = read_page(file).words
    assert "Clusters of maps The maps of each class" in words
    assert "No cluster is suspect." in words
    # There is no record of the batch, so its photos cannot be found.
    assert "The original photos could not be read" in words
    assert {each["suspect"] for each in table(tmp_path / "report.clusters.csv")} == {"false"}
    assert '<svg class="scatter"' in section(file)


def test_few_maps_make_no_clusters(tmp_path: Path) -> None:
    """29 maps are too few for the section; 30 of which two show nothing are told of."""
    few = [map_row(f"few/{at}", each.tolist()) for at, each in enumerate(blobs(29, 2))]
    file = tmp_path / "report.html"
    write_report(write_manifest(tmp_path, few), tmp_path, file, title="Photos")
    assert section(file) == ""
    assert not (tmp_path / "report.clusters.csv").exists()
    more = [*few, map_row("flat", [[0.0]]), map_row("gone", map=None)]
    write_report(write_manifest(tmp_path, more), tmp_path, file, title="Photos")
    words = read_page(file).words
    assert "29 maps are too few to be split into clusters; 30 are needed." in words
    assert "No class has enough maps to be tested." in words
    assert "No cluster is suspect." not in words
    assert "fewer suspects are found. 29 maps of 31 are in clusters" in words
    rows = table(tmp_path / "report.clusters.csv")
    assert [each["cluster"] for each in rows] == ["0"] * 29 + ["", ""]


def test_a_class_of_equal_maps_is_not_tested(tmp_path: Path) -> None:
    equal = [map_row(named(at)) for at in range(30)]
    file = tmp_path / "report.html"
    write_report(write_manifest(tmp_path, equal), tmp_path, file, title="Photos")
    words = read_page(file).words
    assert (
        "No class could be tested; why not is below. cat 1 cluster 30 maps All 30 maps are" in words
    )
    more = [map_row(named(at), each.tolist(), target="b") for at, each in enumerate(blobs(30, 1))]
    write_report(write_manifest(tmp_path, [*equal, *more]), tmp_path, file, title="Photos")
    words = read_page(file).words
    assert "No cluster is suspect." in words
    assert "could be tested" not in words


def test_a_page_without_clusters_has_no_former_table(tmp_path: Path) -> None:
    rows = [map_row(named(at), each.tolist()) for at, each in enumerate(blobs(30, 2))]
    file = tmp_path / "report.html"
    write_report(write_manifest(tmp_path, rows), tmp_path, file, title="Photos")
    assert (tmp_path / "report.clusters.csv").exists()
    (tmp_path / "other.clusters.csv").write_text("another page's")
    write_report(write_manifest(tmp_path, rows[:29]), tmp_path, file, title="Photos")
    assert [each.name for each in tmp_path.glob("*.csv")] == ["other.clusters.csv"]


def test_a_class_without_maps_has_no_clusters(tmp_path: Path) -> None:
    rows = [map_row(named(at), map=None) for at in range(30)]
    file = tmp_path / "report.html"
    write_report(write_manifest(tmp_path, rows), tmp_path, file, title="Photos")
    assert "0 maps are too few" in read_page(file).words
    told = table(tmp_path / "report.clusters.csv")
    assert [(each["cluster"], each["x"]) for each in told] == [("", "")] * 30


def test_hostile_names_are_text(tmp_path: Path) -> None:
    names = [f'=1+1,"{at}"\n{HOSTILE}' for at in range(40)]
    rows = [
        map_row(name, each.tolist(), target="</svg><b>")
        for name, each in zip(names, blobs(40, 3), strict=True)
    ]
    file = tmp_path / "a<b> #1.html"
    write_report(write_manifest(tmp_path, rows), tmp_path, file, title="Photos")
    source = section(file)
    assert "<script" not in source
    assert "</svg><b>" not in source.replace("</svg>\n", "")
    assert 'href="a%3Cb%3E%20%231.clusters.csv"' in source
    # Each begins as a formula does; the apostrophe makes it text in a spreadsheet.
    written = [each["id"] for each in table(tmp_path / "a<b> #1.clusters.csv")]
    assert written == [f"'{name}" for name in names]


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes on Linux only")
def test_the_name_of_the_page_need_not_be_text(tmp_path: Path) -> None:
    rows = [map_row(named(at), each.tolist()) for at, each in enumerate(blobs(30, 2))]
    file = tmp_path / os.fsdecode(b"p\xff.html")
    write_report(write_manifest(tmp_path, rows), tmp_path, file, title="Photos")
    assert 'href="p%FF.clusters.csv"' in section(file)
    assert len(table(tmp_path / os.fsdecode(b"p\xff.clusters.csv"))) == 30


def test_of_one_image_one_map_of_a_class_counts() -> None:
    """Two methods: the second map of an image is left out, a map of another class is not."""
    rows = []
    for at, each in enumerate(blobs(30, 4)):
        rows.append(map_row(named(at), each.tolist()))
        rows.append(map_row(named(at), each.T.tolist(), number=1, method="layercam"))
        rows.append(map_row(named(at), each.tolist(), number=2, target="dog", target_index=1))
    found = cluster_classes(rows, take_census(rows).classes, None, 1000)
    assert [(each.maps.name, set(each.maps.numbers)) for each in found] == [
        ("cat", {0}),
        ("dog", {2}),
    ]
    assert [len(each.maps.maps) for each in found] == [30, 30]
    assert found[0].maps.rows == list(range(0, 90, 3))


def test_of_many_maps_a_sample_is_clustered() -> None:
    rows = [map_row(named(at), each.tolist()) for at, each in enumerate(blobs(80, 5, grid=7))]
    [found] = cluster_classes(rows, take_census(rows).classes, None, 40)
    # Map r is taken where (r · 40 + 40) // 80 grows from r to r + 1: at every even r.
    assert found.maps.rows == list(range(0, 80, 2))


@pytest.mark.parametrize("room", [1000, 30])
def test_methods_are_not_mixed(room: int) -> None:
    """Also if a sample is taken, or the first method's map shows nothing."""
    rows = []
    for at, each in enumerate(blobs(60, 4, grid=7)):
        first = np.zeros((7, 7)) if at % 2 else each
        for number, method in enumerate(("gradcam", "layercam", "eigencam")):
            values = each.T if number else first
            rows.append(map_row(named(at), values.tolist(), number=number, method=method))
    [found] = cluster_classes(rows, take_census(rows).classes, None, room)
    assert set(found.maps.numbers) == {0}
    assert len(found.maps.ids) == min(room, 60)
    nothing = [int(name.partition(".")[0]) % 2 == 1 for name in found.maps.ids]
    assert [label < 0 for label in found.found.labels.tolist()] == nothing


def test_images_count_and_not_maps() -> None:
    rows = [
        map_row(named(at), each.tolist(), number=number)
        for at, each in enumerate(blobs(29, 4, grid=7))
        for number in range(3)
    ]
    assert cluster_classes(rows, take_census(rows).classes, None, 1000) == []


@pytest.mark.slow
def test_one_photo_that_is_gone_leaves_the_others_as_evidence() -> None:
    random = np.random.default_rng(5)
    photos = {named(at): encoded(photo_of(random, at < MARKED)) for at in range(CLEAN + MARKED)}
    gone = named(3)

    def read(name: str) -> bytes:
        if name == gone:
            raise UndecodableImage(f"{name} is not there any more")
        return photos[name]

    rows = planted_rows()
    [found] = cluster_classes(rows, take_census(rows).classes, read, 1000)
    assert found.looked
    assert found.found.unreadable == 1
    assert "same thing" in found.found.clusters[0].reasons
    assert found.found.clusters[0].members.tolist() == list(range(MARKED))


def test_maps_are_reduced_when_they_are_kept() -> None:
    maps = ClassRows("cat")
    maps.take(map_row("a", np.eye(28).tolist()), 7)
    assert maps.maps[0].shape == (14, 14)
    assert (maps.ids, maps.numbers, maps.rows) == (["a"], [0], [7])


def test_suspect_members_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = planted_rows()
    found = cluster_classes(rows, take_census(rows).classes, None, 1000)
    assert [each.suspects for each in found] == [1]  # by the maps alone, too
    assert suspect_rows(found, 2000) == set(range(MARKED))
    assert suspect_rows(found, 5) == set(range(5))
    monkeypatch.setattr(report_clusters, "MEMBERS", 4)
    assert suspect_rows(found, 2000) == {0, 3, 6, 9}  # 12 members, every third one


def test_without_its_photos_a_class_is_clustered_by_its_maps(tmp_path: Path) -> None:
    def gone(name: str) -> bytes:
        raise UndecodableImage(f"{name} is not there any more")

    rows = planted_rows()
    [found] = cluster_classes(rows, take_census(rows).classes, gone, 1000)
    assert not found.looked
    assert found.suspects == 1
    assert "same thing" not in found.found.clusters[0].reasons


def test_the_source_is_found_by_the_record(tmp_path: Path) -> None:
    batch = tmp_path / "batch"
    batch.mkdir()

    def names() -> list[str] | None:
        with source_of(batch) as inputs:
            return None if inputs is None else inputs.ids

    assert names() is None
    record = batch / "run.json"
    for text in ("", "[]", "{}", json.dumps({"source": str(tmp_path / "gone")})):
        record.write_text(text)
        assert names() is None
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_bytes(b"")
    record.write_text(json.dumps({"source": str(tmp_path / "photos")}))
    assert names() == ["a.png"]


def encoded(pixels: NDArray[np.uint8], form: str = "PNG") -> bytes:
    file = BytesIO()
    Image.fromarray(pixels).save(file, form, quality=100)
    return file.getvalue()


def test_a_thumbnail_is_what_the_map_covers() -> None:
    """A photo of 64 × 128 pixels whose right half is white."""
    pixels = np.zeros((64, 128, 3), np.uint8)
    pixels[:, 64:] = 255
    whole = thumbnail(encoded(pixels), None)
    assert whole.shape == (SIDE, SIDE, 3)
    assert whole.dtype == np.uint8
    assert (whole[:, :15] == 0).all()
    assert (whole[:, 17:] == 255).all()
    assert (thumbnail(encoded(pixels), Box(64, 0, 128, 64)) == 255).all()
    # Padded to a square: 32 pixels above and below the photo are black.
    padded = thumbnail(encoded(pixels), Box(0, -32, 128, 96))
    assert (padded[:7] == 0).all()
    assert (padded[-7:] == 0).all()
    assert (padded[9:23, 17:] == 255).all()


def test_a_large_jpeg_has_the_same_thumbnail() -> None:
    """Decoded at an eighth of its size, so that the box is scaled, too."""
    pixels = np.zeros((1024, 2048, 3), np.uint8)
    pixels[:, 1024:] = 255
    found = thumbnail(encoded(pixels, "JPEG"), Box(512, 0, 1536, 1024))
    assert (found[:, :14] < 8).all()
    assert (found[:, 18:] > 247).all()


def test_photos_are_read_when_they_are_asked_for() -> None:
    read: list[str] = []

    def data(name: str) -> bytes:
        read.append(name)
        return encoded(np.full((40, 40, 3), int(name), np.uint8))

    photos = CoveredPhotos(data, ["10", "20", "30"], [None, None, None])
    assert (len(photos), read) == (3, [])
    assert np.all(photos[1] == np.full((SIDE, SIDE, 3), 20))
    assert [int(each[0, 0, 0]) for each in photos[1:] if each is not None] == [20, 30]
    assert read == ["20", "20", "30"]


@pytest.mark.parametrize("recorded", [True, False])
def test_a_mark_at_varying_places_is_found_by_what_the_model_used(
    tmp_path: Path, recorded: bool
) -> None:
    """Without it the page says that such a mark would not be seen."""
    maps, photos, used = marked_uses()
    pictures = tmp_path / "photos"
    pictures.mkdir()
    found = []
    for number, (values, photo, each) in enumerate(zip(maps, photos, used, strict=True)):
        Image.fromarray(photo).save(pictures / named(number))
        halves = each.astype("<f2").tobytes()
        row = map_row(named(number), values.tolist())
        found.append(replace(row, used=halves if recorded else None))
    output = tmp_path / "batch"
    output.mkdir()
    (output / "run.json").write_text(json.dumps({"source": str(pictures)}))
    file = tmp_path / "page.html"
    opened = partial(source_of, output)
    write_report(write_manifest(tmp_path, found), output, file, title="Photos", source=opened)
    suspects = [
        row["id"]
        for row in table(file.with_name("page.clusters.csv"))
        if row["suspect"] == "true" and "added use" in row["reasons"]
    ]
    assert suspects == ([named(number) for number in range(20)] if recorded else [])
    assert ("evidence in its photos beside what it uses" in section(file)) is recorded
    assert ("What the model used can, if the table records it" in section(file)) is not recorded


def test_uses_of_several_layers_or_too_many_are_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = ClassRows("cat")
    for number, values in enumerate(([1.0, 2], [3.0, 4])):
        rows.take(replace(map_row(named(number)), used=np.array(values, "<f2").tobytes()), number)
    assert [list(each) for each in rows.uses or () if each is not None] == [[1, 2], [3, 4]]
    with monkeypatch.context() as patched:
        patched.setattr(report_clusters, "MOST_USED", 3)
        assert not rows.uses
    rows.take(replace(map_row("c"), used=np.ones(3, "<f2").tobytes()), 2)
    assert not rows.uses
    for wrong in (None, b"", b"odd", np.array([np.inf, 1], "<f2").tobytes()):
        rows.take(replace(map_row("d"), used=wrong), 3)
        assert rows.used[-1] is None
