"""Maps of many sizes on one grid, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from cam.clusters.grid import FINEST, on_one_grid, reduced
from cam.drawing.placement import Float
from cam.errors import InvalidImages


def of(*rows: list[float]) -> Float:
    return np.array(rows, np.float32)


COARSE = of([0, 1], [2, 4])
FINE = of([1, 3, 5, 7], [1, 3, 5, 7], [0, 0, 9, 9], [0, 0, 9, 9])


def test_a_finer_map_is_averaged_over_areas() -> None:
    """Means of the 2 × 2 areas: 2 6 0 9; scaled to 0 … 1 they are divided by 9."""
    found = on_one_grid([COARSE, FINE, COARSE])
    assert found.maps.shape == (3, 2, 2)
    np.testing.assert_allclose(found.maps[0], of([0, 0.25], [0.5, 1]), atol=1e-6)
    np.testing.assert_allclose(found.maps[1], of([2 / 9, 6 / 9], [0, 1]), atol=1e-6)
    assert found.kept.tolist() == [0, 1, 2]


def test_a_coarser_map_is_interpolated() -> None:
    """Half-pixel centres: a row 0 1 becomes 0 ¼ ¾ 1. The finer of two equally frequent grids is
    the common one."""
    found = on_one_grid([of([0, 1], [0, 1]), FINE])
    np.testing.assert_allclose(found.maps[0], np.tile(of([0, 0.25, 0.75, 1]), (4, 1)), atol=1e-6)


def test_a_map_that_is_finer_on_one_axis_is_interpolated() -> None:
    wide = of([0, 1, 2, 3])
    found = on_one_grid([COARSE, COARSE, wide])
    assert found.maps.shape == (3, 2, 2)
    assert found.maps[2].tolist() == [[0, 1], [0, 1]]


def test_maps_of_a_photo_s_size_are_reduced() -> None:
    large = np.zeros((224, 112), np.float32)
    large[:16, :16] = 1  # one position of the 14 × 7 grid
    (found,) = on_one_grid([large]).maps
    assert found.shape == (FINEST, FINEST // 2)
    assert found[0, 0] == 1
    assert found.sum() == 1


def test_maps_that_show_nothing_are_left_out() -> None:
    bad = of([0, np.nan], [1, 2])
    endless = of([0, np.inf], [1, 2])
    chessboard = np.indices((28, 28)).sum(0).astype(np.float32) % 2  # constant at 14 × 14
    maps = [of([3, 3], [3, 3]), COARSE, bad, endless, np.zeros((2, 2), np.float32), chessboard]
    found = on_one_grid(iter(maps))
    assert found.kept.tolist() == [1]
    assert found.count == 6
    assert len(on_one_grid([]).maps) == 0


@pytest.mark.parametrize("shape", [(4,), (1, 2, 2), (0, 3), ()])
def test_what_is_no_map(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidImages, match=r"map 1 has the shape \(.*\); \(h, w\) is needed"):
        on_one_grid([COARSE, np.zeros(shape, np.float32)])


def test_maps_may_be_reduced_before() -> None:
    """The longer side becomes 14: 20 × 28 positions become 10 × 14."""
    random = np.random.default_rng(0)
    maps = [random.random(shape, np.float32) for shape in ((20, 28), (20, 28), (7, 7))]
    small = [reduced(each) for each in maps]
    assert [each.shape for each in small] == [(10, 14), (10, 14), (7, 7)]
    np.testing.assert_array_equal(small[2], maps[2])
    np.testing.assert_array_equal(reduced(maps[2] - 0.5), np.maximum(maps[2] - 0.5, 0))
    np.testing.assert_array_equal(on_one_grid(small).maps, on_one_grid(maps).maps)
