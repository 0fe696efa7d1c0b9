"""Imputation beside a dense system that is written out pixel by pixel."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cam.evaluation.imputation import NOISE, impute
from tests.zoo.by_hand import Numbers, drawn, tensor


def solved(
    plane: Numbers, removed: NDArray[np.bool_], *, direct: float = 1 / 6, diagonal: float = 1 / 12
) -> Numbers:
    """Solve: each removed pixel is the weighted mean of those of its neighbours that exist."""
    height, width = plane.shape
    places = list(zip(*np.nonzero(removed), strict=True))
    number = {place: turn for turn, place in enumerate(places)}
    system, right = np.zeros((len(places), len(places))), np.zeros(len(places))
    for (row, column), turn in number.items():
        for y in (row - 1, row, row + 1):
            for x in (column - 1, column, column + 1):
                if (y, x) == (row, column) or not (0 <= y < height and 0 <= x < width):
                    continue
                weight = direct if y == row or x == column else diagonal
                system[turn, turn] += weight
                if removed[y, x]:
                    system[turn, number[y, x]] -= weight
                else:
                    right[turn] += weight * plane[y, x]
    found = plane.copy()
    for place, value in zip(places, np.linalg.solve(system, right), strict=True):
        found[place] = value
    return found


def imputed(image: Numbers, *removed: NDArray[np.bool_]) -> Numbers:
    return impute(tensor(image), torch.from_numpy(np.stack(removed))).numpy().astype(np.float64)


@pytest.mark.slow
@pytest.mark.parametrize(
    "size", [(4, 4), (5, 7), (7, 5), (8, 9), (17, 23), (1, 9), (33, 2), (27, 40)]
)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_as_a_direct_solution_has_it(size: tuple[int, int], share: float) -> None:
    image = drawn(3, *size)
    random = np.random.default_rng(2)
    masks = [random.random(size) < share for _ in range(5)]
    for mask in masks:
        mask.flat[random.integers(mask.size)] = False
    found = imputed(image, *masks)
    assert found.shape == (5, 3, *size)
    for mask, one in zip(masks, found, strict=True):
        for plane, expected in zip(one, image, strict=True):
            np.testing.assert_allclose(plane, solved(expected, mask), atol=2e-4)


@pytest.mark.parametrize("channels", [1, 2, 4, 5, 9])
def test_any_number_of_channels(channels: int) -> None:
    image = drawn(channels, 21, 18)
    mask = np.random.default_rng(2).random((21, 18)) < 0.5
    (found,) = imputed(image, mask)
    for plane, expected in zip(found, image, strict=True):
        np.testing.assert_allclose(plane, solved(expected, mask), atol=2e-4)


def test_large_regions_as_a_direct_solution_has_them() -> None:
    """Several grids are needed here, of which the sides are even and odd."""
    image = drawn(2, 75, 90)
    mask = np.zeros((75, 90), bool)
    mask[3:20, 40:] = mask[30:70, 2:30] = True
    (found,) = imputed(image, mask)
    for plane, expected in zip(found, image, strict=True):
        np.testing.assert_allclose(plane, solved(expected, mask), atol=2e-5)


def test_the_weights_of_direct_and_diagonal_neighbours_are_not_interchangeable() -> None:
    image = drawn(1, 5, 7)
    mask = np.random.default_rng(2).random((5, 7)) < 0.5
    (found,) = imputed(image, mask)
    swapped = solved(image[0], mask, direct=1 / 12, diagonal=1 / 6)
    even = solved(image[0], mask, direct=1 / 8, diagonal=1 / 8)
    assert np.abs(found[0] - solved(image[0], mask)).max() < 1e-4
    assert np.abs(found[0] - swapped).max() > 0.05
    assert np.abs(found[0] - even).max() > 0.01


PLANE = np.array([[1.0, 2, 3], [4, 5, 6], [7, 8, 10]])


@pytest.mark.parametrize(
    ("row", "column", "expected"),
    [
        # (2 + 4 + 6 + 8) / 6 + (1 + 3 + 7 + 10) / 12.
        (1, 1, 20 / 6 + 21 / 12),
        # A corner has two direct neighbours and a diagonal one; their weights add up to 5 / 12.
        (0, 0, (2 * 2 + 2 * 4 + 5) / 5),
        (2, 2, (2 * 6 + 2 * 8 + 5) / 5),
        # A border has three and two: 8 / 12.
        (0, 1, (2 * 1 + 2 * 3 + 2 * 5 + 4 + 6) / 8),
        (1, 2, (2 * 3 + 2 * 5 + 2 * 10 + 2 + 8) / 8),
    ],
)
def test_one_removed_pixel_by_hand(row: int, column: int, expected: float) -> None:
    mask = np.zeros((3, 3), bool)
    mask[row, column] = True
    (found,) = imputed(PLANE[None], mask)
    assert found[0, row, column] == pytest.approx(expected, rel=1e-4)
    np.testing.assert_array_equal(found[0][~mask], PLANE[~mask])


@pytest.mark.parametrize("size", [(4, 4), (5, 7), (17, 23)])
def test_one_pixel_that_is_left_is_all_that_there_is(size: tuple[int, int]) -> None:
    image = drawn(3, *size, low=0.5, high=2)
    places = [(0, 0), (size[0] - 1, size[1] - 2), (size[0] // 2, size[1] // 2)]
    masks = [np.ones(size, bool) for _ in places]
    for mask, place in zip(masks, places, strict=True):
        mask[place] = False
    for one, (row, column) in zip(imputed(image, *masks), places, strict=True):
        expected = np.broadcast_to(image[:, row, column, None, None], one.shape)
        np.testing.assert_allclose(one, expected, rtol=5e-4)


def test_nothing_is_left_of_an_image_without_pixels_and_all_of_one_with_all() -> None:
    image = drawn(3, 5, 7)
    none, every = imputed(image, np.ones((5, 7), bool), np.zeros((5, 7), bool))
    assert not none.any()
    np.testing.assert_array_equal(every, image)


def test_a_slope_stays_a_slope_inside() -> None:
    """The weights are symmetric, so a plane is its own mean."""
    slope = np.add.outer(2 * np.arange(9.0), np.arange(11.0))
    mask = np.zeros((9, 11), bool)
    mask[2:6, 3:8] = True
    (found,) = imputed(slope[None], mask)
    np.testing.assert_allclose(found[0], slope, atol=2e-3)


def test_rounding_does_not_add_up_over_a_large_region() -> None:
    """An error of 1e-7 of each pixel's weights would be one of 4e-4 in the middle."""
    slope = np.add.outer(np.arange(224.0), 2 * np.arange(224.0)) / 672
    mask = np.zeros((224, 224), bool)
    mask[5:219, 5:219] = True
    (found,) = imputed(np.stack([slope, 1 - slope]), mask)
    np.testing.assert_allclose(found, np.stack([slope, 1 - slope]), atol=3e-5)


def test_masks_do_not_affect_each_other() -> None:
    image = drawn(2, 9, 8)
    masks = [np.random.default_rng(turn).random((9, 8)) < 0.6 for turn in range(11)]
    together = imputed(image, *masks)
    for mask, one in zip(masks, together, strict=True):
        np.testing.assert_allclose(one, imputed(image, mask)[0], atol=2e-4)


def test_the_image_and_the_mask_are_left_as_they_are() -> None:
    image, removed = tensor(drawn(2, 5, 7)), torch.ones(2, 5, 7).bool()
    removed[:, 0] = False
    before, was = image.clone(), removed.clone()
    impute(image, removed)
    assert torch.equal(image, before)
    assert torch.equal(removed, was)


def test_the_authors_noise() -> None:
    assert NOISE == 0.01


@pytest.mark.parametrize("size", [(4, 4), (5, 6), (8, 8), (32, 32)])
def test_a_system_that_is_solved_early_stays_solved(size: tuple[int, int]) -> None:
    """If it went on, rounding would grow until it is infinite."""
    image = drawn(2, *size)
    random = np.random.default_rng(0)
    for _ in range(10):
        masks = [random.random(size) < share for share in (0.05, 0.3, 0.7, 0.95)]
        for mask in masks:
            mask.flat[random.integers(mask.size)] = False
        for mask, one in zip(masks, imputed(image, *masks), strict=True):
            for plane, expected in zip(one, image, strict=True):
                np.testing.assert_allclose(plane, solved(expected, mask), atol=5e-4)
