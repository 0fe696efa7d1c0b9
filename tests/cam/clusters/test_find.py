"""Clusters of one class's maps: the whole way, and its edges."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import cv2
import numpy as np
import pytest
import skimage.data
from numpy.typing import NDArray

from cam.clusters import Clusters, find, find_clusters
from cam.drawing.placement import Float
from cam.errors import InvalidImages
from tests.cam.clusters.synthetic import blobs
from tests.quick import quick

Photos = NDArray[np.uint8]
MARKED = 12


@pytest.fixture(autouse=True)
def _no_embedding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out t-SNE, which takes most of the time, where a test is not slow anyway."""
    if "slow" not in request.keywords:
        monkeypatch.setattr(
            find, "embed", lambda points, *_: np.zeros((len(points), 2), np.float32)
        )


def planted(count: int = 300, seed: int = 0) -> tuple[list[Float], Photos]:
    """Return blobs, of which the first maps have one pattern at a corner, and random photos, in
    which the same maps' have one colour there."""
    random = np.random.default_rng(seed)
    maps = blobs(count, seed, 8)
    photos = random.integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)
    for values in maps[:MARKED]:
        values *= 0.2
        values[-3:, -3:] = 0.95 + 0.05 * random.random((3, 3), np.float32)
    photos[:MARKED, -5:, -5:] = (255, 0, 255)
    return maps, photos


def same(one: Clusters, other: Clusters) -> bool:
    return all(
        getattr(one, name).tobytes() == getattr(other, name).tobytes()
        for name in ("labels", "embedding", "eigenvalues")
    )


def of_two_viewpoints(seed: int, every: int, count: int = 200) -> tuple[list[Float], list[Photos]]:
    """Return maps and photos of discs, squares and strokes of any colour on parts of photos, which
    stand at one place, and in one photo of `every` at another."""
    rng = np.random.default_rng(seed)
    wholes = [skimage.data.chelsea(), skimage.data.coffee(), skimage.data.astronaut()]
    y, x = (np.mgrid[:7, :7] + 0.5) / 7
    maps: list[Float] = []
    photos: list[Photos] = []
    for number in range(count):
        whole, side = wholes[int(rng.integers(3))], int(rng.integers(100, 240))
        top, left = (int(rng.integers(0, length - side)) for length in whole.shape[:2])
        part = whole[top : top + side, left : left + side]
        photo = np.ascontiguousarray(cv2.resize(part, (32, 32), interpolation=cv2.INTER_AREA))
        at = np.array((0.7, 0.75) if number % every == 0 else (0.35, 0.4))
        row, column = (at + rng.normal(0, 0.012, 2)).tolist()
        colour = [int(each) for each in rng.integers(0, 256, 3)]
        centre, radius = (round(32 * column), round(32 * row)), int(rng.integers(4, 7))
        first, last = (tuple(each + sign * radius for each in centre) for sign in (-1, 1))
        kind = int(rng.integers(3))
        if kind == 0:
            cv2.circle(photo, centre, radius, colour, -1)
        elif kind == 1:
            cv2.rectangle(photo, first, last, colour, -1)
        else:
            cv2.line(photo, first, last, colour, 3)
        maps.append(np.exp(-((y - row) ** 2 + (x - column) ** 2) / 0.0242).astype(np.float32))
        photos.append(photo)
    return maps, photos


@pytest.mark.parametrize("every", quick([4, 5, 7], [5]))
def test_another_viewpoint_is_no_mark(every: int) -> None:
    """Their maps are of one pattern at a place of their own, and what the photos show there is as
    different as elsewhere: nine of nine such sets were called shortcuts."""
    for seed in range(3):
        maps, photos = of_two_viewpoints(seed, every)
        assert not any(each.suspect for each in find_clusters(maps, photos).clusters)
        marked = [photo.copy() for photo in photos]
        for photo in marked[::every]:
            photo[20:27, 21:28] = (250, 240, 30)
        (found,) = (each for each in find_clusters(maps, marked).clusters if each.suspect)
        assert found.members.tolist() == list(range(0, len(maps), every))


@pytest.mark.parametrize("with_photos", [True, False])
def test_a_planted_cluster_comes_first(with_photos: bool) -> None:
    maps, photos = planted()
    found = find_clusters(maps, list(photos) if with_photos else None)
    first, *rest = found.clusters
    assert first.suspect
    assert not any(each.suspect for each in rest)
    assert first.members.tolist() == list(range(MARKED))
    assert first.suspicion > 0.5
    assert ("same thing" in first.reasons) == with_photos
    assert {"own place", "border", "isolated"} <= set(first.reasons)
    assert first.sentences[-1] == "few other maps of the class resemble these"
    x, y = first.place
    assert x > 0.6
    assert y > 0.6
    assert first.mean.shape == (8, 8)
    assert first.mean[-2, -2] > 0.9 > first.mean[0, 0]
    assert first.border > np.mean([each.border for each in rest])
    assert set(first.prototypes.tolist()) < set(range(MARKED))
    assert first.tightness > max(each.tightness for each in rest)


def test_labels_and_clusters_agree() -> None:
    maps, photos = planted()
    maps[7] = np.zeros((8, 8), np.float32)
    maps[0] = np.zeros((8, 8), np.float32)
    photos[0] = 0
    maps[100] = np.full((8, 8), np.nan, np.float32)
    found = find_clusters(maps, list(photos))
    assert np.flatnonzero(found.labels == -1).tolist() == [0, 7, 100]
    assert np.isnan(found.embedding[[0, 7, 100]]).all()
    assert np.isfinite(np.delete(found.embedding, [0, 7, 100], axis=0)).all()
    for number, cluster in enumerate(found.clusters):
        assert np.flatnonzero(found.labels == number).tolist() == cluster.members.tolist()
        assert set(cluster.prototypes.tolist()) <= set(cluster.members.tolist())
        assert cluster.evidence.size == len(cluster.members)
    suspicions = [each.suspicion for each in found.clusters]
    assert suspicions == sorted(suspicions, reverse=True)
    assert found.clusters[0].members.tolist() == [*range(1, 7), *range(8, MARKED)]
    seen = found.clusters[0].evidence.appearance
    assert seen is not None
    assert seen.inside == 0
    assert found.note is None
    assert found.eigenvalues[0] == pytest.approx(0, abs=1e-9)
    assert len(found.eigenvalues) == 33


@pytest.mark.slow
def test_the_same_bytes_in_every_run_and_order() -> None:
    first, second = planted(seed=1), planted(seed=2)
    one, other = (find_clusters(maps, list(photos)) for maps, photos in (first, second))
    again, back = (find_clusters(iter(maps), list(photos)) for maps, photos in (second, first))
    assert same(one, back)
    assert same(other, again)


@pytest.mark.slow
def test_libraries_that_the_first_call_loads_have_one_thread() -> None:
    """Otherwise the first result of a process may differ from the others."""
    code = (
        "import numpy as np; from cam.clusters import find; from threadpoolctl import *; "
        "find.embed = lambda points, *_: (print({each['num_threads'] "
        "for each in threadpool_info()}), np.zeros((len(points), 2)))[1]; "
        "find.find_clusters(list(np.random.default_rng(0).random((60, 8, 8), np.float32)))"
    )
    around = {**os.environ, "OMP_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "4"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=around)
    assert done.stdout.strip() == "{1}"


class Counting(Sequence[Photos]):
    """Photos that count how many are read."""

    def __init__(self, photos: Photos) -> None:
        self.photos, self.read = photos, set[int]()

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, number: int) -> Photos:  # type: ignore[override]
        self.read.add(number)
        found: Photos = self.photos[number]
        return found


def test_photos_are_read_only_where_maps_are_worth_a_look() -> None:
    maps, photos = planted()
    counting = Counting(photos)
    find_clusters(maps, counting)
    assert set(range(MARKED)) <= counting.read
    assert len(counting.read) > 128  # other maps' photos, too
    clean = Counting(photos)
    find_clusters(list(np.random.default_rng(5).random((300, 8, 8), np.float32)), clean)
    assert not clean.read


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 29])
def test_too_few_maps_are_one_cluster(count: int) -> None:
    found = find_clusters(blobs(count, 0))
    maps = "1 map is" if count == 1 else f"{count} maps are"
    assert found.note == f"{maps} too few to be split into clusters; 30 are needed"
    assert found.labels.tolist() == [0] * count
    assert len(found.clusters) == found.chosen == min(count, 1)
    assert found.embedding.shape == (count, 2)
    assert not any(each.suspect or each.reasons for each in found.clusters)
    assert not found.eigenvalues.size


def test_enough_maps_are_split() -> None:
    found = find_clusters(blobs(30, 0))
    assert found.note is None
    assert len(found.eigenvalues) == 30


def test_equal_maps() -> None:
    found = find_clusters([blobs(1, 0)[0]] * 50)
    assert found.note == "all 50 maps are equal"
    assert [len(each.members) for each in found.clusters] == [50]
    assert found.clusters[0].tightness == pytest.approx(1)


def test_several_kinds_of_equal_maps() -> None:
    kinds = blobs(3, 0)
    found = find_clusters([kinds[each % 3] for each in range(60)])
    assert found.chosen == 3
    assert sorted(len(each.members) for each in found.clusters) == [20, 20, 20]
    for cluster in found.clusters:
        assert len({int(each) % 3 for each in cluster.members}) == 1


@pytest.mark.parametrize("kinds", [12, 20])
def test_many_groups_that_have_nothing_in_common(kinds: int) -> None:
    """More of them than the eigengap would look at."""
    random = np.random.default_rng(0)
    maps = []
    for number in range(30 * kinds):
        values = np.zeros((8, 8), np.float32)
        values.flat[3 * (number % kinds)] = 1
        maps.append(values + random.uniform(0, 0.02, (8, 8)).astype(np.float32))
    found = find_clusters(maps)
    assert found.chosen == kinds
    assert [len(each.members) for each in found.clusters] == [30] * kinds


@pytest.mark.parametrize("others", [1, 5])
def test_copies_and_others(others: int) -> None:
    copy, *rest = blobs(1 + others, 0)
    found = find_clusters([copy] * 100 + rest)
    assert len(set(found.labels[:100].tolist())) == 1
    assert np.isfinite(found.embedding).all()


def test_copies_with_a_hundredth_of_noise_are_one_cluster() -> None:
    copy = blobs(1, 0)[0]
    noise = np.random.default_rng(0).uniform(0, 0.01, (8, *copy.shape)).astype(np.float32)
    found = find_clusters([copy] * 30 + [copy + each for each in noise] + blobs(200, 1))
    assert len(set(found.labels[:38].tolist())) == 1


def test_what_speaks_against_the_class_is_no_heat() -> None:
    maps, _ = planted()
    signed = [np.where(each < 0.3, -each, each).astype(np.float32) for each in maps]
    plain = [np.where(each < 0.3, 0, each).astype(np.float32) for each in maps]
    assert find_clusters(signed).labels.tolist() == find_clusters(plain).labels.tolist()
    assert (find_clusters([-each for each in maps]).labels == -1).all()


def test_one_photo_that_cannot_be_read_does_not_matter() -> None:
    maps, photos = planted()
    some: list[Photos | None] = list(photos)
    some[3] = some[100] = None
    found = find_clusters(maps, some)
    assert found.clusters[0].members.tolist() == list(range(MARKED))
    assert "same thing" in found.clusters[0].reasons
    assert 1 <= found.unreadable <= 2
    assert find_clusters(maps, list(photos)).unreadable == 0
    none: list[Photos | None] = [None] * len(maps)
    without = find_clusters(maps, none)
    assert without.labels.tolist() == find_clusters(maps).labels.tolist()
    assert without.unreadable > 8


def test_maps_of_many_sizes() -> None:
    maps, _ = planted()
    large = [np.kron(each, np.ones((5, 5), np.float32)) for each in maps[1::3]]
    maps[1::3] = large
    found = find_clusters(maps)
    assert found.clusters[0].members.tolist() == list(range(MARKED))
    assert found.clusters[0].mean.shape == (8, 8)


def test_nothing_but_maps_that_show_nothing() -> None:
    found = find_clusters([np.ones((3, 3), np.float32)] * 40)
    assert found.labels.tolist() == [-1] * 40
    assert found.clusters == ()
    assert found.chosen == 0


def test_photos_that_cannot_be() -> None:
    maps, photos = planted()
    with pytest.raises(InvalidImages, match="299 photos are given for 300 maps"):
        find_clusters(maps, list(photos[1:]))
    with pytest.raises(InvalidImages, match=r"thumbnail \d+ is uint8 \(16, 16\)"):
        find_clusters(maps, list(photos[..., 0]))


@pytest.mark.slow
def test_the_import_is_cheap() -> None:
    code = (
        "import sys, cam, cam.clusters; "
        "print([m for m in ('sklearn', 'scipy', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
