"""Turn a small map into a heatmap: resize, place on the picture, normalise, fuse and measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float32]
KEPT_WEIGHTS: Final = 1 << 16
"""Interpolation weights of at most so many numbers are kept."""


@dataclass(frozen=True)
class Box:
    """The part of a picture that a map covers: its edges in the picture's pixels, where (0, 0) is
    the picture's top left corner. The box may reach beyond the picture (a padded input) or cover a
    part of it (a crop)."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True)
class Region:
    """A rectangle of whole pixels: the pixels whose centres lie in a `Box`."""

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
    smaller = cv2.resize(values, (width, height), interpolation=cv2.INTER_AREA)
    return smaller.astype(np.float32, copy=False)


def minmax(values: Float) -> Float:
    """Scale the values to 0 … 1. A constant map becomes all zeros, never NaN."""
    scaled = np.zeros_like(values, np.float32)
    low, high = float(values.min()), float(values.max())
    if high > low:
        np.subtract(values, low, out=scaled)
        scaled /= high - low
    return scaled


def symmetric(values: Float) -> Float:
    """Scale signed values to −1 … 1 so that 0 stays 0. An all-zero map stays all zeros."""
    scaled = np.zeros_like(values, np.float32)
    most = max(float(values.max()), -float(values.min()))
    if most > 0:
        np.divide(values, most, out=scaled)
    return scaled


def capped(values: Float, signed: bool = False) -> Float:
    """Scale the values as `minmax` does, or as `symmetric` if signed, but by the 99th percentile of
    their sizes in place of the largest, and cap what is beyond it: a few positions that stand out
    leave a map of the input's gradients dark (Smilkov et al., "SmoothGrad", 2017, section 3).

    If fewer than 1 % of the positions differ from the rest, the map is scaled by the largest value.

    Returns:
        float32 of the same shape, 0 … 1, or −1 … 1 if signed.
    """
    sizes = np.abs(values) if signed else values - values.min()
    most = float(np.percentile(sizes, 99)) or float(sizes.max())
    if most == 0:
        return np.zeros_like(values, np.float32)
    scaled: Float = ((values if signed else sizes) / most).clip(-1, 1).astype(np.float32)
    return scaled


def fuse(maps: Sequence[Float], how: Literal["mean", "max"], signed: bool = False) -> Float:
    """Fuse several maps into one.

    Each map is scaled separately (`minmax`, or `symmetric` if signed) and resized to the largest
    height and width among the maps. The result is their mean or, at each position, the value that
    is farthest from 0.

    Returns:
        float32 (h, w), 0 … 1, or −1 … 1 if signed.
    """
    height = max(map_.shape[0] for map_ in maps)
    width = max(map_.shape[1] for map_ in maps)
    scale = symmetric if signed else minmax
    stack = np.stack([resize(scale(map_), height, width) for map_ in maps])
    if how == "mean":
        mean: Float = stack.mean(0, dtype=np.float32)
        return mean
    strongest = np.abs(stack).argmax(0)
    fused: Float = np.take_along_axis(stack, strongest[None], 0)[0]
    return fused


def hot_region(heatmap: Float, threshold: float) -> Region | None:
    """Return the bounding rectangle of the connected pixels at or above `threshold` that include
    the hottest pixel (the box of Zhou et al., CVPR 2016, section 3.2, whose threshold is 0.2 of the
    maximum).

    Args:
        heatmap: float32 (H, W), at most 1.

    Returns:
        The rectangle; None if no pixel is above 0 and reaches the threshold.
    """
    if heatmap.max() <= 0 or heatmap.max() < threshold:
        return None
    hot = ((heatmap >= threshold) & (heatmap > 0)).astype(np.uint8)
    _, labels, boxes, _ = cv2.connectedComponentsWithStats(hot, connectivity=8)
    y, x = np.unravel_index(int(heatmap.argmax()), heatmap.shape)
    left, top, width, height = (int(number) for number in boxes[labels[y, x]][:4])
    return Region(left, top, width, height)


def concentration(values: Float, share: float = 0.1) -> float:
    """Return the fraction of the heat that lies in the hottest `share` of a map's positions.

    If that is not a whole number of positions, the last position counts in part. The result is
    `share` for an even map, and 1 for a map whose heat lies in that share of its positions or
    fewer. The heat of a signed map is its absolute value.

    Args:
        values: float32 (h, w), not all zero.
    """
    heat = np.sort(np.abs(values), axis=None)[::-1].astype(np.float64)
    count = share * heat.size
    whole = int(count)
    part = (count - whole) * heat[whole] if whole < heat.size else 0.0
    return float((heat[:whole].sum() + part) / heat.sum())


def border(values: Float, share: float = 0.1) -> float:
    """Return the fraction of the heat that lies near the map's edges: within `share` of the height
    and of the width.

    A position that the border line cuts counts in part. The result is 0.36 for an even map and a
    share of 0.1. The heat of a signed map is its absolute value.

    Args:
        values: float32 (h, w), not all zero.
        share: above 0, below 0.5.
    """
    heat = np.abs(values).astype(np.float64)
    inside = [overlaps(cells, share * cells, (1 - share) * cells) for cells in heat.shape]
    return float(1 - inside[0] @ heat @ inside[1] / heat.sum())


def overlaps(cells: int, start: float, stop: float) -> NDArray[np.float64]:
    """Return the length of each of `cells` unit intervals that lies between `start` and `stop`:
    float64 (cells)."""
    edges = np.arange(cells + 1, dtype=np.float64).clip(start, stop)
    return np.diff(edges)


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
