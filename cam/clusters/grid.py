"""Bring maps of several sizes to one grid, so that they can be compared position by position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cam.drawing.heatmap import minmax
from cam.drawing.placement import Float, bounded, onto_grid
from cam.errors import InvalidImages

FINEST: Final = 14
"""Longest side of the common grid. Clusters need the place of the heat and not its outline, and a
coarse grid forgives a shift of a few pixels: Lapuschkin et al. reduce their maps for this reason,
too ("Unmasking Clever Hans predictors", Nature Communications 2019, Methods)."""


@dataclass(frozen=True, eq=False)
class Gridded:
    maps: Float
    """The maps that show something, on one grid: float32 (m, h, w), each 0 … 1."""
    kept: NDArray[np.int64]
    """Their positions among all maps, int64 (m,), ascending."""
    count: int
    """Number of all maps, at least m."""


def on_one_grid(maps: Iterable[Float]) -> Gridded:
    """Bring maps to one grid: the most frequent one, and the finest of equally frequent ones.

    A grid whose longer side exceeds `FINEST` is reduced to that side. A map that is finer than the
    common grid on both axes is averaged over areas, any other one is interpolated bilinearly.
    Each map is then min-max scaled, because averaging lowers the peak. Of a map with numbers below
    0, only the positive part is heat. Constant maps and maps with non-finite numbers show nothing
    and are left out.

    Args:
        maps: float32 (h, w), read once, one at a time.

    Raises:
        InvalidImages: if a map is not an array of two dimensions with at least one position.
    """
    small: list[Float] = []
    kept: list[int] = []
    count = 0
    for map_ in maps:
        values = np.asarray(map_, np.float32)
        if values.ndim != 2 or not values.size:
            raise InvalidImages(f"map {count} has the shape {values.shape}; (h, w) is needed")
        heat = np.maximum(values, 0)
        if np.isfinite(values).all() and heat.min() < heat.max():
            small.append(reduced(heat))
            kept.append(count)
        count += 1
    if not small:
        return Gridded(np.zeros((0, 1, 1), np.float32), np.zeros(0, np.int64), count)
    grids = Counter(map_.shape for map_ in small)
    height, width = max(grids, key=lambda grid: (grids[grid], grid))
    scaled = np.stack([minmax(onto_grid(map_, height, width)) for map_ in small])
    shown = scaled.any(axis=(1, 2))  # averaging may make a map constant, such as a chessboard
    return Gridded(scaled[shown], np.array(kept, np.int64)[shown], count)


def reduced(values: Float) -> Float:
    """Return a map whose longer side is at most `FINEST`, with 0 in place of numbers below it.
    `on_one_grid` does the same to each map, so that a caller that keeps many may reduce each one
    when it is read.

    Args:
        values: float32 (h, w), at least one position.
    """
    return onto_grid(np.maximum(values, 0), *bounded(*values.shape, longest=FINEST))
