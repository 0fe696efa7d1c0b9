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


def test_an_unknown_colormap_names_those_that_exist() -> None:
    with pytest.raises(
        UnknownColormap, match="no colormap 'rainbow'; the colormaps are turbo, jet"
    ):
        colorize(np.zeros((1, 1), np.float32), "rainbow")
