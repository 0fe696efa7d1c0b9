"""Turn a small map into a heatmap: normalise, fuse and measure it. `placement` puts it on the
picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from cam.drawing.placement import Float, Region, resize


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
