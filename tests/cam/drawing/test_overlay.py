from __future__ import annotations

import numpy as np
import pytest

from cam import COLORMAPS
from cam.drawing.overlay import colorize, grayscale, overlay
from cam.errors import UnknownColormap


def test_grayscale_by_hand() -> None:
    found = grayscale(np.array([[0, 0.5, 1, 1.5]], np.float32))
    np.testing.assert_array_equal(found, [[0, 128, 255, 255]])


def test_jet_runs_from_blue_to_red_in_rgb_order() -> None:
    low, high = colorize(np.array([[0, 1]], np.float32), "jet")[0]
    np.testing.assert_array_equal(low, [0, 0, 128])
    np.testing.assert_array_equal(high, [128, 0, 0])


@pytest.mark.parametrize("colormap", COLORMAPS)
def test_every_colormap_has_distinct_ends(colormap: str) -> None:
    low, high = colorize(np.array([[0, 1]], np.float32), colormap)[0].astype(int)
    assert np.abs(low - high).max() > 50


def test_overlay_by_hand() -> None:
    picture = np.array([[[100, 200, 0]]], np.uint8)
    heat = np.zeros((1, 1), np.float32)  # jet: (0, 0, 128)
    found = overlay(picture, heat, colormap="jet", opacity=0.25)
    np.testing.assert_array_equal(found, [[[75, 150, 32]]])
    np.testing.assert_array_equal(overlay(picture, heat, opacity=0), picture)
    np.testing.assert_array_equal(
        overlay(picture, heat, opacity=1, colormap="jet"), [[[0, 0, 128]]]
    )


def test_opacity_follows_the_heat() -> None:
    picture = np.full((1, 3, 3), (100, 200, 0), np.uint8)
    heat = np.array([[0, 0.5, 1]], np.float32)  # bone: black, (112, 123, 123)…, white
    cold, warm, hottest = overlay(picture, heat, colormap="bone", opacity="heat")[0]
    np.testing.assert_array_equal(cold, [100, 200, 0])
    middle = colorize(heat, "bone")[0, 1]
    np.testing.assert_allclose(warm, 0.575 * picture[0, 1] + 0.425 * middle, atol=0.5)
    np.testing.assert_array_equal(hottest, [232, 247, 217])  # 0.15 · picture + 0.85 · 255


def test_opacity_of_a_signed_map_follows_the_evidence() -> None:
    picture = np.full((1, 4, 3), (100, 200, 0), np.uint8)
    shades = np.array([[0, 0.25, 0.5, 1]], np.float32)  # bwr: blue, half of it, white, red
    found = overlay(picture, shades, colormap="bwr", opacity="heat", signed=True)[0]
    by_hand = [[15, 30, 217], [112, 169, 108], [100, 200, 0], [232, 30, 0]]
    np.testing.assert_array_equal(found, by_hand)


def test_an_unknown_colormap_names_those_that_exist() -> None:
    with pytest.raises(
        UnknownColormap, match="no colormap 'rainbow'; the colormaps are turbo, jet"
    ):
        colorize(np.zeros((1, 1), np.float32), "rainbow")
