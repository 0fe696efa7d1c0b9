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
    UNLIKE,
    Appearance,
    Thumbnails,
    alike,
    appearance,
    hot_place,
    shifts,
    spreads,
)
from cam.clusters.suspects import (
    SENTENCES,
    Evidence,
    border_shares,
    foreign_heat,
    unsteadiness,
)
from cam.clusters.use import Difference
from cam.drawing.placement import Float
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


def test_shifts_by_hand() -> None:
    """Two pixels with one channel. The members' values 10 and 30 have the mean 20 and the variance
    100, the others' 60 and 80 the mean 70 and the variance 100: the shift is 50 / 10. Equal values
    have the least standard deviation, 4: (20 − 12) / 4."""
    members = np.array([[[10], [20]], [[30], [20]]], np.uint8)
    others = np.array([[[60], [12]], [[80], [12]]], np.uint8)
    assert shifts(members, others).tolist() == [5, 2]


def test_a_translucent_mark_stands_out() -> None:
    """Five eighths of the brightness of a corner are white: its pixels differ from photo to photo,
    so it is not the same thing. Where the heat of the others lies, there is no white."""
    maps, photos = planted()
    maps = np.repeat(maps, 6, axis=0)
    random = np.random.default_rng(1)
    photos = random.integers(0, 256, (60, 16, 16, 3), dtype=np.uint8)
    others = random.integers(0, 256, (90, 16, 16, 3), dtype=np.uint8)
    elsewhere = random.random((90, 4, 4)).astype(np.float32)
    photos[:, 8:, 8:] = photos[:, 8:, 8:] // 8 * 3 + 159
    found = appearance(maps, photos, elsewhere, others)
    assert not found.same_thing
    assert found.stands_out
    # The same on all of the photo is another kind of photo.
    veil = photos // 8 * 3 + 159
    assert appearance(maps, veil, elsewhere, others).another_kind
    assert not appearance(maps, veil, elsewhere, others).stands_out
    # So are darker photos, although they differ most of all under the heat.
    darker = photos // 8 * 5
    darker[:, 8:, 8:] = photos[:, 8:, 8:] // 16 + 239
    found = appearance(maps, darker, elsewhere, others)
    assert found.shift - found.error - found.shift_outside >= 1
    assert found.unlike >= UNLIKE
    assert found.another_kind
    assert not found.stands_out
    # What lies under the heat of others, too, is the object of the class.
    others[:, :8, :8] = others[:, :8, :8] // 8 * 3 + 159
    there = np.zeros((90, 4, 4), np.float32)
    there[:, :2, :2] = 1
    assert not appearance(maps, photos, there, others).stands_out


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
    assert appearance(maps, photos, elsewhere, others).colour < 0.25
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


def seen(**changes: float) -> Appearance:
    """Photos that show the same thing at the threshold, and do not stand out."""
    values = {"inside": 0.25, "outside": 0.75, "colour": 0.2, "shift": 1.0, "shift_outside": 0.5}
    return Appearance(**{**values, "error": 0.25, "unlike": 0.5, **changes})


SUSPECT = Evidence(
    size=8,
    share=0.5,
    conductance=0.2,
    foreign=0.6,
    hot=1,
    unsteadiness=0.5,
    border=1,
    appearance=seen(),
)
"""Suspect for what the photos show, at the thresholds."""
STANDS_OUT = replace(SUSPECT, appearance=seen(inside=0.5, shift=1.75, unlike=0.85))
"""Suspect for a place that stands out, at the thresholds."""
USED = Difference(apart=3.0, lost=0.5, raised=0.1)
OTHER_USE = replace(SUSPECT, appearance=seen(inside=0.5, shift_outside=0.75), difference=USED)
"""Suspect for what the model used, at the thresholds."""
ADDED_USE = replace(
    SUSPECT,
    by_use=True,
    size=20,
    share=0.4,
    foreign=1.1,
    appearance=seen(inside=0.5, shift_outside=3),
    difference=Difference(apart=4.5, lost=0.1, raised=0.8),
)
"""Suspect for evidence beside that of other photos, at the thresholds."""
COVERED = replace(
    ADDED_USE,
    appearance=replace(seen(inside=0.5, outside=0.1), middle=0.4, look=0.95, scene=0.7),
    difference=Difference(apart=4.0, lost=0.17, raised=0.8),
)
"""Suspect for one change of the whole photos, at the thresholds."""
STEADY = replace(SUSPECT, conductance=0.01, hot=3, unsteadiness=0.15, border=1.4, appearance=None)
"""Suspect for the maps alone, at the thresholds."""


@pytest.mark.parametrize("evidence", [SUSPECT, STANDS_OUT, OTHER_USE, STEADY])
@pytest.mark.parametrize(
    "change", [{"size": 7}, {"share": 0.51}, {"conductance": 0.21}, {"foreign": 0.61}]
)
def test_conditions_of_every_suspect_place(evidence: Evidence, change: dict[str, float]) -> None:
    assert evidence.suspect
    assert not replace(evidence, **change).suspect  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [{"size": 19}, {"share": 0.41}, {"conductance": 0.21}])
def test_conditions_of_every_suspect_use(change: dict[str, float]) -> None:
    assert ADDED_USE.suspect
    assert not replace(ADDED_USE, **change).suspect  # type: ignore[arg-type]


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
    # What varies within the mark, such as digits, leaves none out.
    photos[:8, 1, :2] = rng.integers(0, 2, (8, 2, 1), np.uint8) * 255
    assert alike(heat, photos, others).tolist() == [True] * 9 + [False] * 3
    # Where the members have nothing in common, none is left out.
    photos[::2], photos[1::2] = 0, 255
    assert alike(heat, photos, others).tolist() == [True] * 12


@pytest.mark.parametrize("shown", [None, seen(inside=0.26)])
def test_photos_that_are_no_evidence(shown: Appearance | None) -> None:
    assert not replace(SUSPECT, appearance=shown).suspect
    assert replace(STEADY, appearance=shown).suspect


@pytest.mark.parametrize(
    ("evidence", "change"),
    [
        (STANDS_OUT, {"shift": 1.74}),
        (STANDS_OUT, {"shift_outside": 0.51}),
        (STANDS_OUT, {"unlike": 0.84}),
        (OTHER_USE, {"shift_outside": 0.76}),
    ],
)
def test_places_that_do_not_stand_out(evidence: Evidence, change: dict[str, float]) -> None:
    """A place at which photos differ as much as elsewhere is another kind of photo, and one under
    whose heat lies what lies under the others' is the object."""
    assert evidence.appearance
    assert not replace(evidence, appearance=replace(evidence.appearance, **change)).suspect


def test_what_the_model_used_is_evidence_beside_photos_alone() -> None:
    assert not replace(OTHER_USE, difference=replace(USED, apart=2.9)).suspect
    for evidence in (OTHER_USE, ADDED_USE):
        assert not replace(evidence, appearance=None).suspect


def test_a_group_of_uses_that_is_far_apart() -> None:
    """It needs neither a place nor evidence that only adds, but scores that are no lower and photos
    that are as others elsewhere. What is enough of maps at one place is not enough of it."""
    far = Difference(apart=6.0, lost=0.5, raised=0.5)
    uses = replace(ADDED_USE, appearance=OTHER_USE.appearance, difference=far)
    assert uses.reasons[0] == "other use"
    assert uses.suspect
    for less in (replace(far, apart=5.9), replace(far, raised=0.49)):
        assert not replace(uses, difference=less).suspect
    assert not replace(uses, appearance=seen(shift_outside=0.76)).suspect
    for evidence in (SUSPECT, STANDS_OUT, OTHER_USE, STEADY):
        assert not replace(evidence, by_use=True, size=20, share=0.4).suspect


@pytest.mark.parametrize("change", [{"apart": 4.4}, {"lost": 0.11}, {"raised": 0.79}])
def test_a_group_whose_evidence_does_not_only_add(change: dict[str, float]) -> None:
    assert ADDED_USE.difference
    less = replace(ADDED_USE.difference, **change)
    assert not replace(ADDED_USE, difference=less).suspect


@pytest.mark.parametrize("change", [{"apart": 3.99}, {"lost": 0.171}, {"raised": 0.79}])
def test_a_group_that_is_not_far_enough_apart_for_a_change_of_its_photos(
    change: dict[str, float],
) -> None:
    assert COVERED.difference
    assert COVERED.suspect
    assert not replace(COVERED, difference=replace(COVERED.difference, **change)).suspect


@pytest.mark.parametrize("change", [{"look": 0.94}, {"scene": 0.71}, {"middle": 0.39}])
def test_photos_that_no_one_change_covers(change: dict[str, float]) -> None:
    assert COVERED.appearance
    assert not replace(COVERED, appearance=replace(COVERED.appearance, **change)).suspect


def test_a_change_of_whole_photos_is_no_evidence_about_a_place() -> None:
    assert not replace(COVERED, by_use=False).suspect


def test_copies_of_one_photo_are_not_suspect_however_steady_their_maps() -> None:
    copies = seen(inside=0.0, outside=0.39, shift=3, unlike=1)
    for evidence in (SUSPECT, STANDS_OUT, OTHER_USE, STEADY, ADDED_USE, COVERED):
        assert not replace(evidence, appearance=copies).suspect


@pytest.mark.parametrize("change", [{"conductance": 0.011}, {"hot": 2}, {"unsteadiness": 0.151}])
def test_maps_that_are_no_evidence(change: dict[str, float]) -> None:
    assert not replace(STEADY, **change).suspect  # type: ignore[arg-type]


def test_suspicion_by_hand() -> None:
    """(1 − 0.2)(1 − 0.6)(1 − 0.25 / 0.75) = 0.21333, (1 − 0.01)(1 − 0.6)(1 − 0.15) = 0.3366,
    (1 − 0.2)(1 − 0.6)(2 · 0.85 − 1) = 0.224 and (1 − 0.2) 3 / (3 + 3) = 0.4."""
    assert SUSPECT.suspicion == pytest.approx((1 + 0.8 * 0.4 * 2 / 3) / 2)
    assert replace(SUSPECT, size=7).suspicion == pytest.approx(0.8 * 0.4 * 2 / 3 / 2)
    assert STEADY.suspicion == pytest.approx((1 + 0.99 * 0.4 * 0.85) / 2)
    assert STANDS_OUT.suspicion == pytest.approx((1 + 0.224) / 2)
    assert OTHER_USE.suspicion == pytest.approx((1 + 0.4) / 2)
    assert replace(STEADY, appearance=seen()).suspicion == STEADY.suspicion  # the stronger one
    copies = seen(inside=0.0, outside=0.1)
    assert replace(SUSPECT, appearance=copies).suspicion == 0
    assert replace(SUSPECT, unsteadiness=2, hot=6, appearance=None).suspicion == 0
    assert replace(SUSPECT, foreign=3).suspicion == 0


def test_reasons() -> None:
    assert SUSPECT.reasons == ("same thing", "own place", "one colour")
    own = replace(SUSPECT, conductance=0.1, foreign=0.5)
    assert own.reasons == ("same thing", "own place", "one colour", "isolated")
    assert STANDS_OUT.reasons == ("stands out", "own place", "one colour")
    assert OTHER_USE.reasons == ("other use", "own place", "one colour")
    assert ADDED_USE.reasons == ("added use", "one colour")
    assert COVERED.reasons == ("whole photo",)
    assert STEADY.reasons == ("same pattern", "own place", "border", "isolated")
    assert replace(STEADY, share=1).reasons == ()
    nothing = replace(SUSPECT, foreign=0.61, appearance=None)
    assert nothing.reasons == ()
    assert "one colour" not in replace(SUSPECT, appearance=seen(colour=0.34)).reasons
    told = {
        reason
        for evidence in (own, STANDS_OUT, OTHER_USE, ADDED_USE, COVERED, STEADY)
        for reason in evidence.reasons
    }
    assert told == set(SENTENCES)
