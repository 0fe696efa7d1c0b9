"""Each criterion by hand, and each threshold from both sides."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cam.clusters.appearance import (
    Appearance,
    Thumbnails,
    alike,
    appearance,
    hot_place,
    spreads,
)
from cam.clusters.suspects import (
    SENTENCES,
    Evidence,
    border_shares,
    foreign_heat,
    relative,
    unsteadiness,
)
from cam.drawing.heatmap import Float
from cam.errors import InvalidImages

Photo = NDArray[np.uint8]


def of(*maps: list[list[float]]) -> Float:
    return np.array(maps, np.float32)


def test_hot_places_are_those_of_the_median() -> None:
    """Medians 1, 0.4, 0.5 and 0; half of the largest is 0.5."""
    maps = of([[1, 0.4], [0.5, 0]], [[1, 0.4], [0.5, 0]], [[0, 1], [1, 1]])
    assert hot_place(maps).tolist() == [[True, False], [True, False]]


def test_foreign_heat_by_hand() -> None:
    """The members' shares at the first position are 0.8 and 0.6, the others' 0.1 and 0.25."""
    shares = of([[0.8, 0.2]], [[0.6, 0.4]], [[0.1, 0.9]], [[0.25, 0.75]])
    members, hot = np.array([True, True, False, False]), np.array([[True, False]])
    assert foreign_heat(shares, members, hot) == pytest.approx(0.175 / 0.7)
    assert foreign_heat(shares, np.ones(4, bool), hot) == 1


def test_unsteadiness_by_hand() -> None:
    """Both positions are hot. The patterns, divided by their means, are (1, 1), (1.2, 0.8) and
    (1.2, 0.8): medians 1.2 and 0.8, deviations (0.2, 0, 0) with the median 0. With a fourth map,
    (0.5, 1.5), the medians are 1.1 and 0.9, the deviations 0.1 0.1 0.1 0.6 of both, and their
    median 0.1."""
    maps = of([[0.5, 0.5]], [[0.6, 0.4]], [[0.9, 0.6]])
    assert unsteadiness(maps) == pytest.approx(0, abs=1e-6)
    assert unsteadiness(np.concatenate([maps, of([[0.3, 0.9]])])) == pytest.approx(0.1, abs=1e-6)


def test_what_lies_beside_the_hot_positions_does_not_matter() -> None:
    maps = of([[1, 0.8, 0.1]], [[0.5, 0.4, 0]], [[1, 0.8, 0.9]])
    assert unsteadiness(maps) == pytest.approx(0, abs=1e-6)


def test_unsteadiness_without_heat() -> None:
    assert unsteadiness(of([[0, 0]], [[0, 0]], [[1, 1]])) == math.inf


@pytest.mark.parametrize(
    ("value", "values", "expected"),
    [(0.1, [0.1, 0.2, 0.4], 0.5), (0.1, [0.1, 0.2], math.inf), (0.0, [0.0, 0, 1], math.inf)],
)
def test_relative_unsteadiness(value: float, values: list[float], expected: float) -> None:
    assert relative(value, values) == expected


def test_border_shares() -> None:
    even = np.ones((10, 10), np.float32)
    inner = np.zeros((10, 10), np.float32)
    inner[4:6, 4:6] = 1
    np.testing.assert_allclose(border_shares(np.stack([even, inner])), [0.36, 0])


def test_spreads_by_hand() -> None:
    """One pixel with two channels. The members' values 10 10 13 and 0 0 0 have the deviations 0 0 3
    and 0 0 0, medians 0; with a fourth, 13 and 2, the medians are 11.5 and 0, the deviations' are
    1.5 and 0, the mean 0.75. The others' 0 100 200 and 0 10 20 have 100 and 10, the mean 55."""
    members = np.array([[10, 0], [10, 0], [13, 0]]).astype(np.uint8)
    others = np.array([[0, 0], [100, 10], [200, 20]], np.uint8)
    assert spreads(members, others) == 0
    more = np.array([[10, 0], [10, 0], [13, 0], [13, 2]], np.uint8)
    assert spreads(more, others) == pytest.approx(0.75 / 55)
    assert spreads(more, members) == pytest.approx(0.75 / 4)  # others that do not differ


def planted() -> tuple[Float, np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]:
    """Ten maps with heat in the lower right quarter, and random photos."""
    maps = np.zeros((10, 4, 4), np.float32)
    maps[:, 2:, 2:] = 1
    photos = np.random.default_rng(0).integers(0, 256, (10, 16, 16, 3), dtype=np.uint8)
    return maps, photos


def test_the_same_thing_under_the_heat() -> None:
    maps, photos = planted()
    others = np.random.default_rng(1).integers(0, 256, (50, 16, 16, 3), dtype=np.uint8)
    elsewhere = np.random.default_rng(2).random((50, 4, 4)).astype(np.float32)
    found = appearance(maps, photos, elsewhere, others)
    assert found.inside > 0.5
    assert found.outside > 0.5
    photos[:, 12:, 12:] = (255, 0, 0)  # a quarter of the hot place
    found = appearance(maps, photos, elsewhere, others)
    assert found.inside == 0
    assert found.outside > 0.5
    # A tenth of all pixels is alike under the heat, and that says nothing of the others.
    photos[:, 8:, 8:] = (255, 0, 0)
    assert appearance(maps, photos, elsewhere, others).outside > 0.5
    assert appearance(maps, photos, elsewhere, others).colour < 0.01
    copies = np.repeat(photos[:1], 10, axis=0)
    assert appearance(maps, copies, elsewhere, others).outside == 0
    moved = maps[:, ::-1].copy()  # the heat is not where the photos are alike
    assert appearance(moved, photos, elsewhere, others).inside > 0.5


class Counted(list[Photo | None]):
    """Photos that count how often each is read."""

    def __init__(self, photos: list[Photo | None]) -> None:
        super().__init__(photos)
        self.reads: Counter[int] = Counter()

    def __getitem__(self, number: int) -> Photo | None:  # type: ignore[override]
        self.reads[number] += 1
        return super().__getitem__(number)


def test_photos_are_drawn_in_one_order_and_read_once() -> None:
    photos = Counted([np.full((2, 2, 3), each, np.uint8) for each in range(20)])
    thumbnails = Thumbnails(photos, 0)
    numbers, pixels = thumbnails.some(np.arange(0, 20, 2), 4)
    assert len(numbers) == 4
    assert set(numbers.tolist()) <= set(range(0, 20, 2))
    assert pixels[:, 0, 0, 0].tolist() == numbers.tolist() == sorted(numbers.tolist())
    fewer, _ = thumbnails.some(np.arange(0, 20, 2), 3)
    assert set(fewer.tolist()) < set(numbers.tolist())
    assert len(thumbnails.some(np.arange(20), 30)[0]) == 20
    assert set(photos.reads.values()) == {1}
    again = Thumbnails(photos, 0).some(np.arange(0, 20, 2), 4)[0]
    assert again.tolist() == numbers.tolist()


def test_photos_that_cannot_be_read_are_left_out_and_counted() -> None:
    good = np.zeros((2, 2, 3), np.uint8)
    thumbnails = Thumbnails([good, None, good, None], 0)
    numbers, pixels = thumbnails.some(np.arange(4), 4)
    assert numbers.tolist() == [0, 2]
    assert pixels.shape == (2, 2, 2, 3)
    assert thumbnails.some(np.array([1]), 4)[1].shape == (0, 2, 2, 3)
    assert thumbnails.unreadable == 2


@pytest.mark.parametrize(
    "bad", [np.zeros((4, 5, 3), np.float32), np.zeros((5, 4, 3), np.uint8), np.zeros((4, 5))]
)
def test_photos_are_checked(bad: Any) -> None:
    good = np.zeros((4, 5, 3), np.uint8)
    with pytest.raises(InvalidImages, match=r"thumbnail \d is "):
        Thumbnails([good, bad], 0).some(np.arange(2), 2)


SAME = Appearance(inside=0.1, outside=0.5, colour=0.2)
SUSPECT = Evidence(
    size=8,
    share=0.5,
    conductance=0.2,
    foreign=1 / 3,
    hot=1,
    unsteadiness=0.5,
    relative_unsteadiness=1,
    border=1,
    appearance=SAME,
)
"""Suspect for what the photos show, at the thresholds."""
STEADY = replace(
    SUSPECT,
    conductance=0.05,
    hot=6,
    unsteadiness=0.08,
    relative_unsteadiness=0.5,
    border=1.4,
    appearance=None,
)
"""Suspect for the maps alone, at the thresholds."""


@pytest.mark.parametrize("evidence", [SUSPECT, STEADY])
@pytest.mark.parametrize(
    "change", [{"size": 7}, {"share": 0.51}, {"conductance": 0.21}, {"foreign": 0.34}]
)
def test_conditions_of_every_suspect(evidence: Evidence, change: dict[str, float]) -> None:
    assert evidence.suspect
    assert not replace(evidence, **change).suspect  # type: ignore[arg-type]


def test_photos_that_lack_the_thing_are_told_apart() -> None:
    """A mark of 2 × 2 white pixels under the heat: on most photos, on some not, and on one faintly.

    The other photos are random, so a pixel is 128 / 255 away from white on average: half of that
    is the limit.
    """
    rng = np.random.default_rng(0)
    photos = rng.integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
    photos[:9, :2, :2] = 255
    photos[8, :2, :2] = 215  # 40 away
    photos[9, :2, :2] = 100  # 155 away
    heat = np.zeros((12, 8, 8), np.float32)
    heat[:, :2, :2] = 1
    others = rng.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    assert alike(heat, photos, others).tolist() == [True] * 9 + [False] * 3
    # Where the members have nothing in common, none is left out.
    photos[::2], photos[1::2] = 0, 255
    assert alike(heat, photos, others).tolist() == [True] * 12


@pytest.mark.parametrize("seen", [None, Appearance(inside=0.17, outside=0.5, colour=0.2)])
def test_photos_that_are_no_evidence(seen: Appearance | None) -> None:
    assert not replace(SUSPECT, appearance=seen).suspect
    assert replace(STEADY, appearance=seen).suspect


def test_copies_of_one_photo_are_not_suspect_however_steady_their_maps() -> None:
    seen = Appearance(inside=0.0, outside=0.39, colour=0.2)
    assert not replace(SUSPECT, appearance=seen).suspect
    assert not replace(STEADY, appearance=seen).suspect


@pytest.mark.parametrize(
    "change",
    [
        {"conductance": 0.06},
        {"hot": 5},
        {"unsteadiness": 0.081},
        {"relative_unsteadiness": 0.51},
        {"border": 1.39},
    ],
)
def test_maps_that_are_no_evidence(change: dict[str, float]) -> None:
    assert not replace(STEADY, **change).suspect  # type: ignore[arg-type]


def test_suspicion_by_hand() -> None:
    """(1 − 0.2)(1 − 1/3)(1 − 0.1 / 0.5) = 0.42667, and (1 − 0.05)(1 − 1/3)(1 − 0.08) = 0.58267."""
    assert SUSPECT.suspicion == pytest.approx((1 + 0.8 * 2 / 3 * 0.8) / 2)
    assert replace(SUSPECT, size=7).suspicion == pytest.approx(0.8 * 2 / 3 * 0.8 / 2)
    assert STEADY.suspicion == pytest.approx((1 + 0.95 * 2 / 3 * 0.92) / 2)
    assert replace(STEADY, appearance=SAME).suspicion == STEADY.suspicion  # the stronger one
    copies = Appearance(inside=0.0, outside=0.1, colour=0.0)
    assert replace(SUSPECT, appearance=copies).suspicion == 0
    assert replace(SUSPECT, unsteadiness=2, hot=6, appearance=None).suspicion == 0
    assert replace(SUSPECT, foreign=3).suspicion == 0


def test_reasons() -> None:
    assert SUSPECT.reasons == ("same thing", "own place", "one colour")
    isolated = replace(SUSPECT, conductance=0.1)
    assert isolated.reasons == ("same thing", "own place", "one colour", "isolated")
    assert STEADY.reasons == ("same pattern", "own place", "border", "isolated")
    assert replace(STEADY, share=1).reasons == ()
    nothing = replace(SUSPECT, conductance=0.2, foreign=0.5, appearance=None)
    assert nothing.reasons == ()
    grey = Appearance(inside=0.1, outside=0.5, colour=0.34)
    assert "one colour" not in replace(SUSPECT, appearance=grey).reasons
    assert {*SUSPECT.reasons, *STEADY.reasons} == set(SENTENCES)
