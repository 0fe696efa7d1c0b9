"""Draw heatmaps as pictures: colour maps, overlays, contours, boxes and concepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from cam.errors import UnknownColormap
from cam.extensions import added

Float = NDArray[np.float32]
Picture = NDArray[np.uint8]

GROUP: Final = "gradcam.colormaps"
"""The group of entry points whose `Colormap`s are in `COLORMAPS`, too."""
USUAL: Final = "turbo"
"""The colour map of a map for which none is chosen."""
USUAL_SIGNED: Final = "coolwarm"
"""The same of a signed map: its middle, where there is no evidence, is neutral."""
USUAL_GALLERY: Final = "viridis"
"""The same of feature maps in a gallery."""
HOTTEST: Final = 0.85
"""The opacity of the hottest place if the opacity follows the heat: the photo stays visible."""

DISTINCT: Final = (
    (31, 119, 180),
    (255, 127, 14),
    (44, 160, 44),
    (214, 39, 40),
    (148, 103, 189),
    (140, 86, 75),
    (227, 119, 194),
    (188, 189, 34),
    (23, 190, 207),
    (127, 127, 127),
)
"""Easily distinguished RGB colours, for the concepts of a picture."""


def _between(*colours: tuple[int, int, int]) -> Picture:
    """Return a table of 256 colours, RGB (256, 1, 3), that passes through `colours` at equal
    distances."""
    at = np.linspace(0, len(colours) - 1, 256)
    channels = [
        np.interp(at, range(len(colours)), channel) for channel in zip(*colours, strict=True)
    ]
    table: Picture = np.rint(np.stack(channels, 1)).astype(np.uint8)[:, None]
    return table


@dataclass(frozen=True)
class Colormap:
    """A colour map that another package adds."""

    name: str
    colours: tuple[tuple[int, int, int], ...]
    """RGB colours, at equal distances from the coldest to the hottest."""


_BUILT_IN: Final[dict[str, int | Picture]] = {
    "turbo": cv2.COLORMAP_TURBO,
    "jet": cv2.COLORMAP_JET,
    "viridis": cv2.COLORMAP_VIRIDIS,
    "inferno": cv2.COLORMAP_INFERNO,
    "magma": cv2.COLORMAP_MAGMA,
    "plasma": cv2.COLORMAP_PLASMA,
    "cividis": cv2.COLORMAP_CIVIDIS,
    "hot": cv2.COLORMAP_HOT,
    "bone": cv2.COLORMAP_BONE,
    # Moreland, "Diverging Color Maps for Scientific Visualization", 2009, at nine points.
    "coolwarm": _between(
        (59, 76, 192),
        (98, 130, 234),
        (141, 176, 254),
        (184, 208, 249),
        (221, 221, 221),
        (245, 196, 173),
        (244, 154, 123),
        (222, 96, 77),
        (180, 4, 38),
    ),
    "bwr": _between((0, 0, 255), (255, 255, 255), (255, 0, 0)),
}
_COLOURS: Final = _BUILT_IN | {
    each.name: _between(*each.colours)
    for each in added(
        group=GROUP,
        kind=Colormap,
        where=__name__,
        taken=_BUILT_IN,
        problem=lambda each: (
            None
            if len(each.colours) > 1
            and all(len(colour) == 3 and {*colour} <= {*range(256)} for colour in each.colours)
            else "its colours are not two or more of three numbers from 0 to 255"
        ),
    )
}
"""Colour map → its number in OpenCV, or its 256 colours, RGB (256, 1, 3)."""
COLORMAPS: Final = tuple(_COLOURS)


@cache
def _table(colormap: str) -> Picture:
    """Return the 256 colours of a colour map, RGB (256, 1, 3)."""
    colours = _COLOURS[colormap]
    if not isinstance(colours, int):
        return colours
    ramp = np.arange(256, dtype=np.uint8)[:, None]
    blue_first = cv2.applyColorMap(ramp, colours)
    return cv2.cvtColor(blue_first, cv2.COLOR_BGR2RGB).astype(np.uint8, copy=False)


def grayscale(heatmap: Float) -> Picture:
    """Convert a heatmap in 0 … 1, (H, W), to uint8 (H, W), where 1 becomes 255."""
    # OpenCV takes the absolute value, rounds and clips at 255 in one pass.
    return cv2.convertScaleAbs(np.maximum(heatmap, 0), alpha=255).astype(np.uint8, copy=False)


def colorize(heatmap: Float, colormap: str = USUAL) -> Picture:
    """Convert a heatmap in 0 … 1, (H, W), to RGB uint8 (H, W, 3).

    Raises:
        UnknownColormap: if there is no such colour map; the message lists those that exist.
    """
    if colormap not in COLORMAPS:
        raise UnknownColormap(
            f"there is no colormap {colormap!r}; the colormaps are {', '.join(COLORMAPS)}"
        )
    return cv2.applyColorMap(grayscale(heatmap), _table(colormap)).astype(np.uint8, copy=False)


def overlay(
    picture: Picture,
    heatmap: Float,
    *,
    colormap: str = USUAL,
    opacity: float | Literal["heat"] = 0.5,
    signed: bool = False,
) -> Picture:
    """Blend a heatmap's colours over a picture.

    Args:
        picture: RGB uint8 (H, W, 3); not changed.
        heatmap: 0 … 1, float32 (H, W).
        opacity: 0 (the picture alone) … 1 (the colours alone); or `heat`: the opacity at a pixel
            is `HOTTEST` times the heat there, so that cold places keep the picture's colours.
        signed: whether 0.5 is neutral, 0 the most against and 1 the most for; with `heat`, the
            opacity is then `HOTTEST` times the distance from 0.5, which is 1 at both ends.

    Returns:
        RGB uint8 (H, W, 3). To leave a part of a picture uncoloured, pass only the other part.

    Raises:
        UnknownColormap: if there is no such colour map; the message lists those that exist.
    """
    colours = colorize(heatmap, colormap)
    if opacity != "heat":
        blended = cv2.addWeighted(colours, opacity, picture, 1 - opacity, 0)
        return blended.astype(np.uint8, copy=False)
    strength = np.abs(2 * heatmap - 1) if signed else heatmap
    alpha = np.float32(HOTTEST) * strength.clip(0, 1)
    return cv2.blendLinear(colours, picture, alpha, 1 - alpha).astype(np.uint8, copy=False)


def contour(
    picture: Picture, heatmap: Float, *, threshold: float = 0.5, colour: tuple[int, int, int]
) -> Picture:
    """Draw lines over a picture around the areas where the heatmap is at or above `threshold` and
    above 0.

    Args:
        picture: RGB uint8 (H, W, 3); not changed.
        heatmap: float32 (H, W), at most 1.
        colour: the RGB colour of the lines; a thin dark edge keeps them visible on any photo.
    """
    drawn = picture.copy()
    hot = ((heatmap >= threshold) & (heatmap > 0)).astype(np.uint8)
    lines, _ = cv2.findContours(hot, cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
    width = max(round(min(picture.shape[:2]) / 150), 1)
    cv2.drawContours(drawn, lines, -1, (0, 0, 0), width + 2, cv2.LINE_AA)
    cv2.drawContours(drawn, lines, -1, colour, width, cv2.LINE_AA)
    return drawn


def framed(
    picture: Picture, box: tuple[float, float, float, float], *, colour: tuple[int, int, int]
) -> Picture:
    """Draw a box (left, top, right, bottom in pixels) over a picture.

    Args:
        picture: RGB uint8 (H, W, 3); not changed.
        colour: the RGB colour of the box; a thin dark edge keeps it visible on any photo.
    """
    drawn = picture.copy()
    height, width = picture.shape[:2]
    edges = np.clip(box, 0, [width - 1, height - 1, width - 1, height - 1]).round().astype(int)
    left, top, right, bottom = edges.tolist()
    line = max(round(min(height, width) / 200), 1)
    cv2.rectangle(drawn, (left, top), (right, bottom), (0, 0, 0), line + 2)
    cv2.rectangle(drawn, (left, top), (right, bottom), colour, line)
    return drawn


def paint(picture: Picture, maps: Sequence[Float], *, opacity: float = 0.6) -> Picture:
    """Blend the colour of the strongest concept at each pixel over a picture.

    The opacity at a pixel is `opacity` times the strength of the concept there.

    Args:
        picture: RGB uint8 (H, W, 3); not changed.
        maps: the strengths of the concepts, float32 (H, W) each, ≥ 0; each is scaled by its own
            maximum.
        opacity: 0 … 1, the opacity at strength 1.
    """
    strength = np.zeros(picture.shape[:2], np.float32)
    strongest = np.zeros(picture.shape[:2], np.uint8)
    for turn, map_ in enumerate(maps):
        scaled = map_ / max(float(map_.max()), 1e-12)
        strongest[scaled > strength] = turn
        np.maximum(strength, scaled, out=strength)
    strength = strength[..., None] * np.float32(opacity)
    colours = np.array([DISTINCT[turn % len(DISTINCT)] for turn in range(len(maps))], np.float32)
    blended = picture * (1 - strength) + colours[strongest] * strength
    drawn: Picture = np.rint(blended).clip(0, 255).astype(np.uint8)
    return drawn
