"""Heatmaps: worked by hand, against torch's and OpenCV's own resizing, and where they are put."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from torch.nn import functional

from cam.drawing.heatmap import border, capped, concentration, minmax
from cam.drawing.placement import Box, Region, place, resize


def test_resize_by_hand() -> None:
    # Centres of 4 pixels over 2 cells lie at cell positions -0.25, 0.25, 0.75, 1.25.
    found = resize(np.array([[0, 4]], np.float32), 1, 4)
    np.testing.assert_allclose(found, [[0, 1, 3, 4]])


def test_resize_equals_torch_and_opencv() -> None:
    small = np.random.default_rng(0).random((7, 5), np.float32)
    for height, width in [(224, 160), (3, 2), (7, 5), (50, 333)]:
        found = resize(small, height, width)
        torchs = functional.interpolate(
            torch.from_numpy(small)[None, None], (height, width), mode="bilinear"
        )[0, 0].numpy()
        np.testing.assert_allclose(found, torchs, atol=2e-6)
        opencvs = cv2.resize(small, (width, height), interpolation=cv2.INTER_LINEAR)
        np.testing.assert_allclose(found, opencvs, atol=2e-6)


def test_resize_of_one_cell_is_constant() -> None:
    np.testing.assert_array_equal(resize(np.full((1, 1), 3, np.float32), 2, 3), np.full((2, 3), 3))


def test_place_puts_the_map_where_the_model_looked() -> None:
    placed, region = place(np.array([[1, 3]], np.float32), Box(2, 1, 6, 3), height=4, width=8)
    assert region == Region(left=2, top=1, width=4, height=2)
    expected = np.array(
        [
            [0, 0, 0, 0, 0, 0, 0, 0],
            [0, 0, 1, 1.5, 2.5, 3, 0, 0],
            [0, 0, 1, 1.5, 2.5, 3, 0, 0],
            [0, 0, 0, 0, 0, 0, 0, 0],
        ]
    )
    np.testing.assert_allclose(placed, expected)


def test_place_beyond_the_picture_keeps_the_part_on_it() -> None:
    # A map of four cells over 8 pixels of which the middle 4 are the picture (a padded input).
    placed, region = place(np.array([[9, 1, 2, 9]], np.float32), Box(-2, 0, 6, 1), 1, 4)
    assert region == Region(0, 0, 4, 1)
    # Pixel centres 0.5 … 3.5 lie at cell positions 0.75, 1.25, 1.75, 2.25.
    np.testing.assert_allclose(placed, [[3, 1.25, 1.75, 3.75]])


def test_place_is_exact_between_pixels() -> None:
    # A linear ramp stays the same ramp wherever its box begins.
    ramp = np.arange(8, dtype=np.float32)[None]
    placed, region = place(ramp, Box(0.3, 0, 80.3, 1), 1, 90)
    assert (region.left, region.width) == (0, 80)
    centres = np.arange(6, 74) + 0.5
    np.testing.assert_allclose(placed[0, 6:74], (centres - 0.3) / 10 - 0.5, atol=1e-5)


def test_place_keeps_one_pixel_of_a_box_thinner_than_that() -> None:
    placed, region = place(np.ones((2, 2), np.float32), Box(3.6, 0, 3.7, 1), 1, 8)
    assert (region.left, region.width) == (4, 1)
    assert placed.sum() == 1


def test_minmax_by_hand() -> None:
    np.testing.assert_allclose(
        minmax(np.array([[2, 4], [3, 6]], np.float32)), [[0, 0.5], [0.25, 1]]
    )


def test_minmax_of_a_constant_is_zero() -> None:
    for value in (0.0, 5.0):
        np.testing.assert_array_equal(minmax(np.full((2, 2), value, np.float32)), np.zeros((2, 2)))


def test_what_is_beyond_the_99th_percentile_is_capped() -> None:
    values = np.arange(101, dtype=np.float32)  # the 99th percentile of 0 … 100 is 99
    np.testing.assert_allclose(capped(values), np.minimum(values / 99, 1), rtol=1e-6)
    signed = np.where(values % 2 == 0, values, -values)
    expected = np.clip(signed / 99, -1, 1)
    np.testing.assert_allclose(capped(signed, signed=True), expected, rtol=1e-6)
    lone = np.zeros(1000, np.float32)
    lone[7] = 4  # fewer than a hundredth: the largest
    np.testing.assert_array_equal(capped(lone), lone / 4)
    np.testing.assert_array_equal(capped(np.full(5, 3, np.float32)), np.zeros(5))


def test_the_heat_at_the_border_worked_by_hand() -> None:
    assert border(np.ones((7, 7), np.float32)) == pytest.approx(1 - 0.8**2)
    assert border(np.ones((2, 9), np.float32)) == pytest.approx(1 - 0.8**2)
    middle = np.zeros((10, 10), np.float32)
    middle[1, 8] = 3  # the last row and column but one are inside
    assert border(middle) == pytest.approx(0)
    middle[0, 4] = -1
    assert border(middle) == pytest.approx(1 / 4)
    # Of a corner of five, half the height and half the width are inside.
    corner = np.zeros((5, 5), np.float32)
    corner[0, 4] = 2
    assert border(corner) == pytest.approx(3 / 4)
    assert border(corner, share=0.2) == 1
    rows = np.array([[0, 0, 0], [1, 1, 1], [0, 0, 0]], np.float32)
    assert border(rows) == pytest.approx(0.2)


def test_concentration_worked_by_hand() -> None:
    one_of_ten = np.array([[6, 1, 1, 1, 1], [0, 0, 0, 0, 0]], np.float32)
    assert concentration(one_of_ten) == pytest.approx(0.6)  # the hottest of ten positions: 6 of 10
    # A tenth of four positions is 0.4 of one: 0.4 × 2 of 1 + 2 + 1 + 1.
    assert concentration(np.array([[1, -2], [1, 1]], np.float32)) == pytest.approx(0.8 / 5)
    assert concentration(np.ones((3, 3), np.float32)) == pytest.approx(0.1)
    assert concentration(np.array([[0, 0], [0, 5]], np.float32), share=1) == 1
