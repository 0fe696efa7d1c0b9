"""Statistics of a map: worked by hand, and against SciPy and the measures of heatmaps."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import skimage.data
from numpy.typing import NDArray
from scipy import ndimage, stats

from cam.drawing.heatmap import border, concentration
from cam.drift.map_statistics import (
    STATISTICS,
    MapStatistics,
    row_of,
    statistics_of,
)
from cam.drift.photo_statistics import PHOTO_STATISTICS, photo_statistics

Pixels = NDArray[np.uint8]
Map = np.ndarray[tuple[int, int], np.dtype[np.float32]]


def measured(values: object, confidence: float | None = None) -> MapStatistics:
    found = statistics_of(np.array(values, np.float32), confidence)
    assert found is not None
    return found


def near(found: MapStatistics, expected: tuple[float, ...]) -> None:
    """The photo is not known, so there is no sharpness."""
    assert row_of(found)[:8] == pytest.approx(expected[:8], abs=1e-6, nan_ok=True)
    assert found.sharpness is None


def test_two_by_two_by_hand() -> None:
    # Shares: 3/4 at (1/4, 1/4) and 1/4 at (3/4, 1/4).
    # entropy: -(3/4 ln 3/4 + 1/4 ln 1/4) / ln 4 = 0.562335 / 1.386294
    # x: 3/4 * 1/4 + 1/4 * 3/4 = 3/8; y: 1/4
    # spread: the mean square is 3/4 * (1/8)² + 1/4 * (3/8)² = 3/64; the root of 3/64 / (1/2)
    # border: of each cell 0.8 * 0.8 lies inside; centre: of each cell 0.5 * 0.5
    # concentration: 0.4 of a cell, 0.4 * 3/4
    expected = (0.405639, 0.375, 0.25, 0.306186, 0.36, 0.25, 0.3, 0.9)
    near(measured([[3, 1], [0, 0]], 0.9), expected)


def test_three_by_three_by_hand() -> None:
    # Shares: 1/4 at (1/2, 1/2), 1/2 at (5/6, 1/2), 1/4 at (5/6, 5/6).
    # entropy: 1.5 ln 2 / ln 9
    # x: 1/4 * 1/2 + 3/4 * 5/6 = 3/4; y: 3/4 * 1/2 + 1/4 * 5/6 = 7/12
    # spread: of x 1/4 * (1/4)² + 3/4 * (1/12)² = 1/48, of y the same; the root of 1/24 / (1/2)
    # border: inside are 0.7, 1 and 0.7 of the cells: 1 - (1/4 + 1/2 * 0.7 + 1/4 * 0.49)
    # centre: inside are 0.25, 1 and 0.25 of the cells: 1/4 + 1/2 * 0.25 + 1/4 * 0.0625
    # concentration: 0.9 of a cell, 0.9 * 1/2
    expected = (0.473198, 0.75, 0.583333, 0.288675, 0.2775, 0.390625, 0.45, math.nan)
    near(measured([[0, 0, 0], [0, 1, 2], [0, 0, 1]]), expected)


def test_one_by_two_by_hand() -> None:
    # entropy: 0.562335 / ln 2; x: 1/4 * 1/4 + 3/4 * 3/4 = 5/8; y: 1/2; spread as above
    # border: 0.1 of the height at the top and at the bottom, 0.2 of a cell at its outer side
    # centre: 1/2 of the height, 1/2 of each cell; concentration: 0.2 of a cell, 0.2 * 3/4
    expected = (0.811278, 0.625, 0.5, 0.306186, 0.36, 0.25, 0.15, 0.5)
    near(measured([[1, 3]], 0.5), expected)


@pytest.mark.parametrize("shape", [(7, 7), (14, 10), (1, 5), (56, 56)])
def test_peers(shape: tuple[int, int]) -> None:
    values = np.random.default_rng(0).random(shape, np.float32) ** 3
    found = measured(values)
    exact = values.astype(np.float64)
    y, x = ((np.array(ndimage.center_of_mass(exact)) + 0.5) / shape).tolist()
    assert found.entropy == pytest.approx(stats.entropy(exact.ravel()) / math.log(values.size))
    assert (found.centroid_x, found.centroid_y) == pytest.approx((x, y))
    assert found.border == pytest.approx(border(values))
    assert found.centre == pytest.approx(1 - border(values, 0.25))
    assert found.concentration == concentration(values)
    rows, columns = np.indices(shape)
    across, down = (columns + 0.5) / shape[1] - x, (rows + 0.5) / shape[0] - y
    square = np.average(across**2 + down**2, weights=exact)
    assert found.spread == pytest.approx(math.sqrt(2 * square))


def test_the_ends_of_the_ranges() -> None:
    point = np.zeros((4, 4), np.float32)
    point[1, 2] = 5
    found = measured(point)
    assert found.entropy == pytest.approx(0, abs=1e-12)
    assert found.spread == pytest.approx(0, abs=1e-6)
    assert found.concentration == 1
    even = np.ones((50, 50), np.float32)
    even[0, 0] += 1e-6  # a map that is the same everywhere has no statistics
    found = measured(even)
    expected = (1, 0.5, 0.5, math.sqrt(1 / 3), 0.36, 0.25, 0.1, math.nan)
    assert row_of(found)[:8] == pytest.approx(expected, abs=1e-3, nan_ok=True)
    corners = np.zeros((100, 100), np.float32)
    corners[0, 0] = corners[99, 99] = 1
    assert measured(corners).spread == pytest.approx(0.99)


def test_heat_of_a_signed_map_is_its_absolute_value() -> None:
    near(measured([[-3, 1], [0, 0]]), row_of(measured([[3, 1], [0, 0]])))


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_scale_does_not_matter(scale: float) -> None:
    values = np.array([[3, 1], [0, 2]], np.float32)
    near(measured(values * np.float32(scale)), row_of(measured(values)))


@pytest.mark.parametrize(
    "values",
    [[[0, 0], [0, 0]], [[2, 2], [2, 2]], [[7]], [[1, math.nan]], [[1, math.inf]]],
)
def test_maps_that_have_none(values: object) -> None:
    assert statistics_of(np.array(values, np.float32), 0.5) is None


def test_the_map_is_left_as_it_is() -> None:
    values = np.array([[-3, 1], [0, 2]], np.float32)
    statistics_of(values)
    np.testing.assert_array_equal(values, [[-3, 1], [0, 2]])


def test_rows_are_in_the_order_of_the_names() -> None:
    found = replace(
        measured([[3, 1], [0, 2]], 0.25),
        **{name: 0.1 * number for number, name in enumerate(PHOTO_STATISTICS)},
    )
    assert dict(zip(STATISTICS, row_of(found), strict=True)) == {
        name: getattr(found, name) for name in STATISTICS
    }
    assert np.isnan(row_of(None)).tolist() == [True] * len(STATISTICS)


def sharpness_of(pixels: Pixels) -> float | None:
    return photo_statistics(pixels)["sharpness"]


def test_sharpness_by_hand() -> None:
    # Stripes one pixel wide: adjoining pixels of a row differ by 3 · 255, those four apart by 0,
    # and of a column none does. So nothing is left to divide by.
    stripes = np.zeros((6, 6, 3), np.uint8)
    stripes[:, ::2] = 255
    assert sharpness_of(stripes) is None
    # A ramp: 3 · 10 between adjoining pixels, four times as much between those four apart.
    ramp = np.repeat(np.arange(0, 80, 10).astype(np.uint8)[None, :, None], 8, 0).repeat(3, 2)
    assert sharpness_of(ramp) == pytest.approx(1 / 4)
    assert sharpness_of(np.full((8, 8, 3), 7, np.uint8)) is None
    assert sharpness_of(np.zeros((4, 9, 3), np.uint8)) is None


def test_blur_lowers_the_sharpness_and_light_and_contrast_do_not() -> None:
    photo = skimage.data.coffee()[:224, :224]
    sharp = sharpness_of(photo)
    assert sharp is not None
    blurred = ndimage.gaussian_filter(photo, (1, 1, 0))
    assert sharpness_of(blurred) == pytest.approx(0.31, abs=0.03)
    assert sharp > 0.4
    assert sharpness_of((photo * 0.5).astype(np.uint8)) == pytest.approx(sharp, abs=0.01)
    assert sharpness_of(photo // 2 + 90) == pytest.approx(sharp, abs=0.01)
    found = statistics_of(np.arange(9, dtype=np.float32).reshape(3, 3), 0.5, photo)
    assert found is not None
    assert found.sharpness == sharp


def test_statistics_of_a_photo_by_hand() -> None:
    """Half of the photo is dark red, the other half is white."""
    photo = np.zeros((8, 10, 3), np.uint8)
    photo[:, :5] = (60, 0, 0)
    photo[:, 5:] = 255
    found = photo_statistics(photo)
    assert tuple(found) == PHOTO_STATISTICS
    assert found["brightness"] == pytest.approx((20 / 255 + 1) / 2)
    # The sums of the channels are 60 and 765, and deviate by half of their difference.
    assert found["contrast"] == pytest.approx((765 - 60) / 2 / 382.5)
    assert found["red"] == pytest.approx((60 + 255) / (60 + 765))
    assert found["blue"] == pytest.approx(255 / (60 + 765))
    assert found["colourfulness"] == pytest.approx(60 / 255 / 2)
    assert found["variety"] == pytest.approx(math.log(2) / math.log(64))
    assert found["softest"] is None


def test_the_softest_parts_by_hand() -> None:
    """Noise is as different from the next pixel as from the fourth one. Of 12 × 12 parts three rows
    are of blocks of 8 × 8 pixels, a quarter: a pixel in 8 differs from the next one, four in 8 from
    the fourth."""
    random = np.random.default_rng(0)
    photo = random.integers(0, 256, (96, 96, 3), np.uint8)
    sharp = photo_statistics(photo)
    assert sharp["softest"] == pytest.approx(1, abs=0.12)
    photo[:24] = random.integers(0, 256, (3, 12, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    found = photo_statistics(photo)
    assert found["softest"] == pytest.approx(0.25, abs=0.08)
    assert found["sharpness"] == pytest.approx(0.88, abs=0.05)


def test_a_photo_of_one_colour_has_no_detail() -> None:
    black = photo_statistics(np.zeros((9, 9, 3), np.uint8))
    assert (black["red"], black["blue"], black["variety"]) == (1 / 3, 1 / 3, 0)
    assert black["softest"] is black["sharpness"] is None
    large = photo_statistics(np.zeros((60, 60, 3), np.uint8))
    assert large["softest"] is None


@pytest.mark.parametrize("seed", range(3))
def test_statistics_of_photos_are_shares(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for photo in (
        rng.integers(0, 256, (7, 9, 3), np.uint8),
        rng.choice(np.array([0, 255], np.uint8), (30, 40, 3)),
    ):
        assert all(0 <= value <= 1 for value in photo_statistics(photo).values() if value)


def test_a_cast_light_and_other_channels_move_the_statistics() -> None:
    photo = skimage.data.coffee()[:224, :224]
    plain = photo_statistics(photo)
    exchanged = photo_statistics(photo[..., ::-1])
    assert (exchanged["red"], exchanged["blue"]) == (plain["blue"], plain["red"])
    assert exchanged["brightness"] == plain["brightness"]
    assert plain["red"] != plain["blue"]
