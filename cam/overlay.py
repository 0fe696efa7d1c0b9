"""Heatmaps as pictures: a colour map, and a blend over the photo."""

from __future__ import annotations

from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from cam.errors import UnknownColormap

Float = NDArray[np.float32]
Picture = NDArray[np.uint8]

COLORMAPS: Final[dict[str, int]] = {
    "turbo": cv2.COLORMAP_TURBO,
    "jet": cv2.COLORMAP_JET,
    "viridis": cv2.COLORMAP_VIRIDIS,
    "inferno": cv2.COLORMAP_INFERNO,
    "magma": cv2.COLORMAP_MAGMA,
    "plasma": cv2.COLORMAP_PLASMA,
    "cividis": cv2.COLORMAP_CIVIDIS,
    "hot": cv2.COLORMAP_HOT,
    "bone": cv2.COLORMAP_BONE,
}


def grayscale(heatmap: Float) -> Picture:
    """A heatmap in 0 … 1, (H, W), as uint8 (H, W): 255 is 1."""
    return np.rint(np.clip(heatmap, 0, 1) * 255).astype(np.uint8)


def colorize(heatmap: Float, colormap: str = "turbo") -> Picture:
    """A heatmap in 0 … 1, (H, W), as RGB uint8 (H, W, 3).

    Raises:
        UnknownColormap: naming those that exist.
    """
    if colormap not in COLORMAPS:
        raise UnknownColormap(
            f"there is no colormap {colormap!r}; the colormaps are {', '.join(COLORMAPS)}"
        )
    blue_first = cv2.applyColorMap(grayscale(heatmap), COLORMAPS[colormap])
    return cv2.cvtColor(blue_first, cv2.COLOR_BGR2RGB).astype(np.uint8, copy=False)


def overlay(
    picture: Picture, heatmap: Float, *, colormap: str = "turbo", opacity: float = 0.5
) -> Picture:
    """Blend a heatmap's colours over a picture.

    Args:
        picture: RGB uint8 (H, W, 3); not changed.
        heatmap: 0 … 1, float32 (H, W).
        opacity: 0 (the picture alone) … 1 (the colours alone).

    Returns:
        RGB uint8 (H, W, 3). To leave part of a picture un-coloured, pass the other part.

    Raises:
        UnknownColormap: naming those that exist.
    """
    colours = colorize(heatmap, colormap)
    return cv2.addWeighted(colours, opacity, picture, 1 - opacity, 0).astype(np.uint8, copy=False)
