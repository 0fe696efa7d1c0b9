"""Maps that know nothing of the photo or of the model: by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cam.evaluation.baselines import baseline, misplaced
from cam.evaluation.metrics import BASELINES, Baseline
from cam.explanation import Map
from tests.zoo.by_hand import drawn

IMAGE = drawn(3, 6, 9).astype(np.float32)


FIXED: list[Baseline] = [name for name in BASELINES if name != "random"]
"""The baselines that do not depend on the map that is scored."""


def made(name: Baseline, image: Map = IMAGE) -> Map:
    return baseline(name, image)


@pytest.mark.parametrize("count", [1, 3, 7])
def test_misplaced_maps_of_a_square_by_hand(count: int) -> None:
    """With the map itself they are the mirror image, the rectangle's four symmetries, or the
    square's eight."""
    values = drawn(6, 6, seed=4).astype(np.float32)
    steps = {1: [0], 3: [0, 2], 7: [0, 1, 2, 3]}[count]
    expected = [np.rot90(each, step) for each in (values, values[:, ::-1]) for step in steps]
    found = [values, *(misplaced(values, turn, count) for turn in range(1, count + 1))]
    assert len(found) == len(expected)
    for one in expected:
        assert sum(np.abs(one - other).max() < 1e-5 for other in found) == 1


@pytest.mark.parametrize("count", [4, 59])
def test_misplaced_maps_are_as_far_from_the_centre(count: int) -> None:
    """A spot turns about the centre by equal angles."""
    y, x = np.mgrid[:81, :81] / 80 - 0.5
    spot = np.exp(-((y + 0.2) ** 2 + (x - 0.1) ** 2) / 0.002).astype(np.float32)
    angles = []
    for turn in range(count + 1):
        values = misplaced(spot, turn, count) if turn else spot
        assert values.dtype == np.float32
        assert values.sum() == pytest.approx(spot.sum(), rel=1e-3)
        down, across = ((values * each).sum() / values.sum() for each in (y, x))
        assert math.hypot(down, across) == pytest.approx(math.hypot(0.2, 0.1), abs=2e-3)
        angles.append(math.degrees(math.atan2(down, across)) % 360)
    apart = np.diff(np.sort(angles))
    if count == 4:
        np.testing.assert_allclose(apart, 72, atol=0.5)
    else:  # thirty turned ones, and between them thirty that are mirrored, too
        np.testing.assert_allclose(np.diff(np.sort(angles)[::2]), 12, atol=0.5)


def test_a_uniform_map_is_the_same_everywhere() -> None:
    np.testing.assert_array_equal(made("uniform"), np.ones((6, 9)))


def test_the_gaussian_by_hand() -> None:
    """σ is a quarter of the height and of the width: 1.5 rows and 2.25 columns."""
    found = made("gaussian")
    for row in range(6):
        for column in range(9):
            away = ((row - 2.5) / 1.5) ** 2 + ((column - 4) / 2.25) ** 2
            assert found[row, column] == pytest.approx(math.exp(-away / 2), rel=1e-5)


def test_edges_are_sobels_of_the_mean_of_the_channels() -> None:
    found = made("edges")
    grey = np.pad(IMAGE.astype(np.float64).mean(0), 1, mode="reflect")
    along = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    for row in range(6):
        for column in range(9):
            part = grey[row : row + 3, column : column + 3]
            expected = math.hypot((along * part).sum(), (along.T * part).sum())
            assert found[row, column] == pytest.approx(expected, abs=1e-5)


def test_an_image_of_one_colour_has_no_edges() -> None:
    assert not made("edges", np.full((3, 6, 9), 0.3, np.float32)).any()


@pytest.mark.parametrize("name", FIXED)
def test_every_baseline_is_finite_and_none_is_negative(name: Baseline) -> None:
    found = made(name)
    assert found.dtype == np.float32
    assert np.isfinite(found).all()
    assert found.min() >= 0


@pytest.mark.parametrize("name", ["gaussian", "uniform"])
def test_only_edges_change_with_the_image(name: Baseline) -> None:
    other = drawn(3, 6, 9, seed=5).astype(np.float32)
    np.testing.assert_array_equal(made(name), made(name, other))
    assert not np.array_equal(made("edges"), made("edges", other))
