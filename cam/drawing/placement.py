"""Where a map lies on the picture, and its values there: the map is resized, bilinearly, onto the
pixels that it covers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Float = NDArray[np.float32]
KEPT_WEIGHTS: Final = 1 << 16
"""Interpolation weights of at most so many numbers are kept."""


@dataclass(frozen=True)
class Box:
    """A box on a picture, such as the part that a map covers: its edges in the picture's pixels,
    where (0, 0) is the picture's top left corner. They may lie between two pixels, and beyond the
    picture (a padded input)."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True)
class Region:
    """A rectangle of whole pixels of a picture, such as those whose centres lie in a box."""

    left: int
    top: int
    width: int
    height: int

    @property
    def slices(self) -> tuple[slice, slice]:
        """Slices of the rows and columns, to index an array of shape (height, width, …)."""
        return (
            slice(self.top, self.top + self.height),
            slice(self.left, self.left + self.width),
        )


def place(small: Float, box: Box, height: int, width: int) -> tuple[Float, Region]:
    """Resize a map bilinearly (half-pixel centres, edges held) onto the pixels that `box` covers.

    Args:
        small: float32 (h, w).
        box: the part that the map covers of a picture of `height` × `width` pixels.

    Returns:
        float32 (height, width), zero outside the region, and the region of covered pixels. The
        region has at least one pixel, even if the box is thinner than a pixel.
    """
    inside, region = place_inside(small, box, height, width)
    return spread(inside, region, height, width), region


def place_inside(small: Float, box: Box, height: int, width: int) -> tuple[Float, Region]:
    """Do the same as `place`, but return the values of the region alone, float32 (region's height,
    region's width), and the region."""
    rows, top = _interpolation(small.shape[0], box.top, box.bottom, height)
    columns, left = _interpolation(small.shape[1], box.left, box.right, width)
    # Bilinear interpolation is separable: one matrix for each axis, with two weights in each row.
    # Unlike OpenCV's warps it is exact for a box whose edges lie between pixels, and as cheap.
    inside = rows @ (small.astype(np.float32) @ columns.T)
    return inside, Region(left, top, len(columns), len(rows))


def spread(inside: Float, region: Region, height: int, width: int) -> Float:
    """Put the values of a region into a picture: float32 (height, width), zero elsewhere."""
    if inside.shape == (height, width):
        return inside
    whole = np.zeros((height, width), np.float32)
    whole[region.slices] = inside
    return whole


def resize(small: Float, height: int, width: int) -> Float:
    """Resize a map (h, w) bilinearly with half-pixel centres to float32 (height, width)."""
    return place(small, Box(0, 0, width, height), height, width)[0]


def shrink(values: Float, height: int, width: int) -> Float:
    """Reduce a map to fewer positions: float32 (height, width), where each position is the mean of
    the area that it covers."""
    if values.shape == (height, width):
        return values
    import cv2  # what only reads boxes starts without OpenCV

    smaller = cv2.resize(values, (width, height), interpolation=cv2.INTER_AREA)
    return smaller.astype(np.float32, copy=False)


def onto_grid(values: Float, height: int, width: int) -> Float:
    """Bring a map to a grid, float32 (height, width): by averaging areas if the grid is nowhere
    finer than the map, bilinearly otherwise."""
    coarser = values.shape[0] >= height and values.shape[1] >= width
    return (shrink if coarser else resize)(values, height, width)


def bounded(height: int, width: int, *, longest: int) -> tuple[int, int]:
    """Return the height and width of a grid, reduced if its longer side exceeds `longest`."""
    side = max(height, width)
    wanted = min(side, longest)
    return max(round(height * wanted / side), 1), max(round(width * wanted / side), 1)


@dataclass(frozen=True)
class Placement:
    """Where a layer's positions lie on the model's input, if the model resizes, crops, pads,
    mirrors or transposes the image itself, so that they do not cover the input evenly."""

    box: Box
    """Edges of the positions, in pixels of the input. They lie outside the input where the model
    pads the image."""
    height: int
    """Height of the input in pixels."""
    width: int
    transposed: bool = False
    """Whether the rows of the layer's output follow the columns of the input."""
    upside_down: bool = False
    """Whether the first row of positions, after the transposition, is the lowest on the input."""
    mirrored: bool = False
    """Whether the first column of positions, after the transposition, is the rightmost."""

    def turn(self, maps: Tensor) -> Tensor:
        """Return maps (…, h, w) of the layer upright, as the input is."""
        upright = maps.transpose(-2, -1) if self.transposed else maps
        return upright.flip(self._flipped) if self._flipped else upright

    def turn_back(self, maps: Tensor) -> Tensor:
        """Return upright maps as they lie in the layer: the inverse of `turn`."""
        flipped = maps.flip(self._flipped) if self._flipped else maps
        return flipped.transpose(-2, -1) if self.transposed else flipped

    def on_input(self, upright: Float) -> Float:
        """Return an upright map (h, w) on the pixels of the input, float32 (height, width): resized
        bilinearly, and 0 where the model does not look."""
        return place(upright, self.box, self.height, self.width)[0]

    @property
    def _flipped(self) -> list[int]:
        return [axis for axis, flip in ((-2, self.upside_down), (-1, self.mirrored)) if flip]


def interpolation(cells: int, start: float, stop: float, pixels: int) -> Float:
    """Return the weights (pixels, cells) by which `place` interpolates along one axis, on which
    `cells` cells lie between `start` and `stop`. Outside these edges they are 0."""
    weights, first = _interpolation(cells, start, stop, pixels)
    whole = np.zeros((pixels, cells), np.float32)
    whole[first : first + len(weights)] = weights
    return whole


def _interpolation(cells: int, start: float, stop: float, pixels: int) -> tuple[Float, int]:
    """Return the interpolation weights along one axis, and the first pixel that they are for.

    `cells` cells lie between `start` and `stop`. The weights (n, cells) are for the centres of the
    n pixels, out of `pixels`, between these edges; they are read-only.
    """
    small = cells * pixels <= KEPT_WEIGHTS
    return (_kept_weights if small else _weights)(cells, start, stop, pixels)


def _weights(cells: int, start: float, stop: float, pixels: int) -> tuple[Float, int]:
    first = min(max(int(np.ceil(start - 0.5)), 0), pixels - 1)
    last = max(min(int(np.ceil(stop - 0.5)), pixels), first + 1)
    centres = np.arange(first, last) + 0.5
    positions = np.clip((centres - start) / (stop - start) * cells - 0.5, 0, cells - 1)
    lower = np.minimum(positions.astype(np.int64), max(cells - 2, 0))
    fraction = positions - lower
    weights = np.zeros((last - first, cells), np.float32)
    pixel = np.arange(last - first)
    weights[pixel, lower] = 1 - fraction
    if cells > 1:
        weights[pixel, lower + 1] = fraction
    weights.flags.writeable = False
    return weights, first


# The maps of a model are all put at the same place, and weights cost more than the product.
_kept_weights = lru_cache(64)(_weights)
