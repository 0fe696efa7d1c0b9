"""The page that is made of a manifest, before a browser opens it."""

from __future__ import annotations

import base64
import hashlib
import math
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from service.core.errors import ConfigError
from service.features.report import write as report
from service.features.report.pictures import THUMBNAIL
from service.features.report.write import write_report
from service.features.tables.rows import Row
from service.features.tables.table import SCHEMA
from tests.service.features.report.report_stage import (
    HOSTILE,
    Page,
    failed,
    map_row,
    read_page,
    write_manifest,
    write_picture,
)

pytestmark = pytest.mark.contract


def page_of(folder: Path, rows: list[Row], *, title: str = "Photos", most: int = 2000) -> Page:
    file = folder / "report.html"
    write_report(write_manifest(folder, rows), folder, file, title=title, most=most)
    assert [each.name for each in folder.iterdir() if each.name.startswith(".")] == []
    return read_page(file)


def picture_in(uri: str) -> Image.Image:
    kind, _, data = uri.partition(";base64,")
    assert kind == "data:image/webp"
    return Image.open(BytesIO(base64.b64decode(data)))


def test_it_says_what_was_explained(tmp_path: Path) -> None:
    rows = [
        map_row("a.jpg", target_probability=0.2, concentration=0.2),
        map_row("a.jpg", number=1, target_index=1, target="dog"),
        map_row("b.jpg", target_probability=0.6, concentration=0.5),
        map_row("c.jpg", target_probability=None, concentration=None, warning="zero everywhere"),
        failed("d.jpg", "no photo"),
    ]
    words = page_of(tmp_path, rows, title="My photos").words
    assert "My photos" in words
    assert "gradcam at bn2 · made " in words
    assert "Images 4 Maps 4 Classes 2 Warnings 1 Failures 1" in words
    # (0.2 + 0.6) / 2 and (0.2 + 0.5) / 2, of the numbers that are there
    assert "cat 3 maps its probability 0.40 concentration 0.35" in words
    assert "dog 1 map its probability 0.50 concentration 0.30" in words
    assert words.index("cat 3 maps") < words.index("dog 1 map")
    assert "are shown" not in words


def test_the_model_has_its_place(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    manifest = write_manifest(tmp_path, [map_row("a.jpg")])
    write_report(manifest, tmp_path, file, title="Photos", model="<b>resnet</b>")
    assert "<b>resnet</b> · gradcam at bn2" in read_page(file).words


def test_a_thumbnail_is_the_picture_small_and_linked(tmp_path: Path) -> None:
    picture = write_picture(tmp_path, "cats/100% a#b?c:d.jpg")
    [row] = page_of(tmp_path, [map_row("a.jpg", picture=picture)]).rows
    small = picture_in(row["thumbnail"])
    assert small.size == (THUMBNAIL, THUMBNAIL * 200 // 300)
    red, green, blue = np.asarray(small.convert("RGB")).mean((0, 1))
    assert red > 240
    assert max(green, blue) < 15
    assert not row["alone"]
    assert row["link"] == "pictures/cats/100%25%20a%23b%3Fc%3Ad.jpg"
    assert (tmp_path / unquote(row["link"])).is_file()


def test_a_page_elsewhere_links_back(tmp_path: Path) -> None:
    output = tmp_path / "out"
    picture = write_picture(output, "a.jpg")
    file = tmp_path / "pages" / "new" / "report.html"
    manifest = write_manifest(output, [map_row("a.jpg", picture=picture)])
    write_report(manifest, output, file, title="Photos")
    [row] = read_page(file).rows
    assert row["link"] == "../../out/pictures/a.jpg"


@pytest.mark.parametrize("picture", ["pictures/gone.jpg", "a\0b.jpg", "pictures", None, ""])
def test_where_there_is_no_picture_the_map_stands_alone(
    tmp_path: Path, picture: str | None
) -> None:
    (tmp_path / "pictures").mkdir()
    rows = [
        map_row("map.jpg", [[0, 1], [0, 1]], picture=picture),
        map_row("flat.jpg", [[0, 0], [0, 0]], picture=picture),
    ]
    page = page_of(tmp_path, rows)
    with_map, without = page.rows
    pixels = np.asarray(picture_in(with_map["thumbnail"]).convert("RGB")).astype(int)
    assert pixels.shape == (128, 128, 3)
    # turbo's ends, dark blue and dark red
    np.testing.assert_allclose(pixels[64, 8], (48, 18, 59), atol=30)
    np.testing.assert_allclose(pixels[64, 120], (122, 4, 3), atol=30)
    assert with_map["alone"]
    assert with_map["link"] is None
    assert (without["thumbnail"], without["alone"]) == (None, False)


def test_a_broken_picture_is_still_linked(tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff nothing")
    [row] = page_of(tmp_path, [map_row("a.jpg", picture="broken.jpg")]).rows
    assert row["alone"]
    assert row["link"] == "broken.jpg"


def test_a_picture_out_of_the_folder_is_not_looked_at(tmp_path: Path) -> None:
    secret = tmp_path / "secret.jpg"
    Image.new("RGB", (8, 8)).save(secret)
    output = tmp_path / "out"
    output.mkdir()
    (output / "link.jpg").symlink_to(secret)
    paths = ["../secret.jpg", str(secret), "link.jpg"]
    rows = [map_row(path, picture=path) for path in paths]
    assert {(row["link"], row["alone"]) for row in page_of(output, rows).rows} == {(None, True)}


def test_an_empty_manifest_is_said_to_be_empty(tmp_path: Path) -> None:
    page = page_of(tmp_path, [])
    assert "The manifest is empty: no image was explained." in page.words
    assert "Images 0 Maps 0 Classes 0 Warnings 0 Failures 0" in page.words
    assert page.rows == []
    assert "All maps" not in page.words


def test_failures_are_told_by_kind(tmp_path: Path) -> None:
    rows = [
        failed("b.jpg", "B is empty"),
        failed("huge.jpg", "it is huge", "image-too-large"),
        failed("a.jpg", "A is empty"),
        Row(id="odd.jpg", error="nobody knows"),
    ]
    page = page_of(tmp_path, rows)
    assert "No image could be explained; why not is below." in page.words
    assert "4 images without a map" in page.words
    kind = "Undecodable image 2 urn:gradcam-service:undecodable-image Image Why"
    assert f"{kind} a.jpg A is empty b.jpg B is empty" in page.words
    large = "Image too large 1 urn:gradcam-service:image-too-large Image Why huge.jpg it is huge"
    assert large in page.words
    assert "Of no kind 1 Image Why odd.jpg nobody knows" in page.words
    assert page.words.index("Undecodable image") < page.words.index("Image too large")
    assert page.rows == []


def test_of_very_many_failures_the_first_are_listed(tmp_path: Path) -> None:
    words = page_of(tmp_path, [failed(f"{each}.jpg") for each in range(1203)]).words
    assert "Undecodable image 1,203 " in words
    assert "1,003 more are in the manifest." in words
    assert words.count("it is empty") == 200


@pytest.mark.parametrize(
    "name",
    [HOSTILE, "</script><img src=x onerror=alert(1)>", "<!--<script>", "\"'> onload=x", "{{7*7}}"],
)
def test_hostile_names_are_text_and_nothing_else(tmp_path: Path, name: str) -> None:
    plain = page_of(tmp_path, [map_row("a", target="b", warning="c"), failed("d", "e")], title="f")
    rows = [
        map_row(name, target=name, method=name, layer=name, warning=name),
        Row(id=name, error=name, problem=f"urn:x:{name}"),
    ]
    page = page_of(tmp_path, rows, title=name)
    # The same tags, whatever the names.
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert page.executable == plain.executable
    [row] = page.rows
    assert {row["id"], row["method"], row["layer"], row["warning"]} == {name}
    assert page.options[0]["name"] == name
    # The title twice, method, layer, portrait, failure's id, sentence, urn
    assert page.text.count(name) >= 8


def test_nothing_but_its_own_script_may_run(tmp_path: Path) -> None:
    page = page_of(tmp_path, [map_row("a.jpg")])
    [policy] = [
        each["content"]
        for tag, each in page.tags
        if tag == "meta" and each.get("http-equiv") == "Content-Security-Policy"
    ]
    [script] = page.executable

    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    assert policy == (
        f"default-src 'none'; img-src data:; style-src 'sha256-{digest(page.style)}'; "
        f"script-src 'sha256-{digest(script)}'; base-uri 'none'; form-action 'none'"
    )
    # What it would forbid is not there.
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
        addresses = [attributes.get(name) or "" for name in ("src", "href")]
        assert all(each.startswith(("data:", "#")) for each in addresses if each), (tag, addresses)


def test_numbers_that_are_none_are_left_out(tmp_path: Path) -> None:
    nothing = float("nan")
    row = map_row("a.jpg", target_probability=nothing, concentration=float("inf"), mass=nothing)
    page = page_of(tmp_path, [row])
    assert "NaN" not in "".join(page.blocks)
    [told] = page.rows
    assert (told["probability"], told["concentration"], told["mass"]) == (None, None, None)
    assert "probability – concentration –" in page.words


def test_both_ends_of_concentration(tmp_path: Path) -> None:
    configuration = np.random.default_rng(1).permutation(40)
    rows = [map_row(f"{each}", concentration=0.1 + each / 100) for each in configuration]
    rows.insert(5, failed("f.jpg"))
    rows.append(map_row("flat", concentration=None))
    found = page_of(tmp_path, rows, most=3).rows
    for end, names in (("least", range(12)), ("most", range(39, 27, -1))):
        there = sorted((row for row in found if row[end] is not None), key=lambda row: row[end])
        assert [row["id"] for row in there] == [str(each) for each in names]
    assert sum(row["sampled"] for row in found) == 3


def test_of_few_maps_none_is_at_both_ends(tmp_path: Path) -> None:
    rows = [map_row(f"{each}", concentration=0.1 * each) for each in range(1, 6)]
    found = page_of(tmp_path, rows).rows
    assert [row["id"] for row in found if row["least"] is not None] == ["1", "2"]
    assert [row["id"] for row in found if row["most"] is not None] == ["4", "5"]


def test_a_sample_is_shown_and_said(tmp_path: Path) -> None:
    rows = [map_row(f"{each}", target="cat" if each % 10 else "dog") for each in range(1000)]
    page = page_of(tmp_path, rows, most=50)
    assert "50 of 1,000 maps are shown: as many of each class as there is room for" in page.words
    shown = [row for row in page.rows if row["sampled"]]
    assert len(shown) == 50
    assert [each["maps"] for each in page.options] == [900, 100]
    assert [sum(row["class"] == each for row in shown) for each in (0, 1)] == [25, 25]
    dogs = [int(row["id"]) for row in shown if row["class"] == 1]
    assert set(np.diff(dogs)) == {40}  # 100 dogs, every fourth; a dog each ten rows


def test_a_file_that_is_no_manifest_is_named(tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"id": ["a"]}), other)
    with pytest.raises(ConfigError, match=r"other\.parquet is not .*: it has no column number,"):
        write_report(other, tmp_path, tmp_path / "report.html", title="Photos")
    columns = {name: pa.nulls(1, SCHEMA.field(name).type) for name in SCHEMA.names}
    pq.write_table(pa.table({**columns, "map": ["text"]}), other)
    with pytest.raises(ConfigError, match="its column map is string, not binary"):
        write_report(other, tmp_path, tmp_path / "report.html", title="Photos")
    other.write_text("a table")
    with pytest.raises(ConfigError, match=r"other\.parquet cannot be read as a manifest: "):
        write_report(other, tmp_path, tmp_path / "report.html", title="Photos")
    with pytest.raises(ConfigError, match=r"gone\.parquet cannot be read as a manifest: "):
        write_report(tmp_path / "gone.parquet", tmp_path, tmp_path / "report.html", title="P")
    assert [each.name for each in tmp_path.iterdir()] == ["other.parquet"]


def test_a_manifest_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    file = write_manifest(tmp_path, [map_row("a.jpg"), map_row("b.jpg")])
    pq.write_table(pq.read_table(file).drop_columns(["mode", "used"]), file)
    write_report(file, tmp_path, tmp_path / "report.html", title="Photos")
    assert "2 maps" in read_page(tmp_path / "report.html").words


def test_the_former_page_stays_until_the_new_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page_of(tmp_path, [map_row("a.jpg")])
    before = (tmp_path / "report.html").read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report, "show", fail)
    manifest = write_manifest(tmp_path, [map_row("b.jpg")])
    with pytest.raises(OSError, match="No space left"):
        write_report(manifest, tmp_path, tmp_path / "report.html", title="Photos")
    assert (tmp_path / "report.html").read_bytes() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["manifest.parquet", "report.html"]


def test_where_the_methods_disagree(tmp_path: Path) -> None:
    told = {"a": 0.5, "b": -0.25, "c": None, "d": 1.0, "e": math.nan}
    page = page_of(tmp_path, [map_row(name, agreement_mean=each) for name, each in told.items()])
    assert {row["id"]: row["disputed"] for row in page.rows} == {
        "a": 1,
        "b": 0,
        "c": None,
        "d": 2,
        "e": None,
    }
    assert {row["id"]: row["agreement"] for row in page.rows} == {**told, "e": None}
    assert "Where the methods disagree most" in page.words
    page = page_of(tmp_path, [map_row("a")])
    assert "disagree" not in page.words


def test_the_scores_of_each_method(tmp_path: Path) -> None:
    told = [("gradcam", 0.25, 0.5), ("gradcam", 0.75, None), ("layercam", 0.125, math.nan)]
    rows = [
        map_row("a", number=turn, method=method, scores=[("deletion", first), ("adcc", second)])
        for turn, (method, first, second) in enumerate(told)
    ]
    page = page_of(tmp_path, rows)
    assert [row["scores"] for row in page.rows] == [
        [["deletion", 0.25], ["adcc", 0.5]],
        [["deletion", 0.75], ["adcc", None]],
        [["deletion", 0.125], ["adcc", None]],
    ]
    words = " ".join(page.words.split())
    assert "How good the maps are" in words
    assert "deletion 0.5 0.125 lower Petsiuk" in words
    assert "adcc 0.5 – higher Poppi" in words
    page = page_of(tmp_path, [map_row("a")])
    assert "How good" not in page.words


def test_what_was_named_and_what_was_predicted(tmp_path: Path) -> None:
    dog: dict[str, Any] = {"target_index": 1, "target": "dog"}
    said_cat: dict[str, Any] = {"predicted_index": 0, "predicted_label": "cat"}
    said_dog: dict[str, Any] = {"predicted_index": 1, "predicted_label": "dog"}
    rows = [
        map_row("a", correct=True, **said_cat),
        map_row("b", correct=True, **said_cat),
        map_row("c", correct=False, border=0.2, **said_dog),
        map_row("d", correct=False, border=0.9, **dog, **said_cat),
        map_row("e", correct=False, border=0.5, **dog, **said_cat),
        map_row("f", **dog, **said_cat),
    ]
    page = page_of(tmp_path, rows)
    assert "Predicted as named 2 of 5" in page.words
    assert "2 of 5 maps (40.0 %) are of the class that the model predicts" in page.words
    assert "Named Predicted Maps dog cat 2 cat dog 1" in page.words
    ranks = {row["id"]: row["beside"] for row in page.rows}
    assert ranks == {"a": None, "b": None, "c": 2, "d": 0, "e": 1, "f": None}
    told = {row["id"]: (row["predicted"], row["correct"]) for row in page.rows}
    assert told["d"] == ("cat", False)
    assert told["f"] == ("cat", None)
