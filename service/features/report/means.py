"""The mean map of each class, which shows where the model looks for the class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from cam.drawing.heatmap import minmax
from cam.drawing.placement import Float, bounded, onto_grid
from service.features.report.census import ClassKey, GridSize, class_of
from service.features.tables.rows import Row

FINEST: Final = 64
"""Longest side of a mean map. Finer maps, such as maps of the photo's size, are reduced: the mean
of thousands of photos has no details, and a report may have a thousand mean maps."""


@dataclass(frozen=True, eq=False)
class MeanMap:
    values: Float
    """The mean map, float32 (h, w), 0 … 1."""
    maps: int
    """Number of maps that were averaged, at least 1."""


def mean_maps(rows: Iterable[Row], grids: Mapping[ClassKey, GridSize]) -> dict[ClassKey, MeanMap]:
    """Return the mean of each class's maps, each min-max scaled to 0 … 1 and resized to its class's
    grid.

    A constant map (such as a zero map) is left out, because it shows nothing. A map with non-finite
    numbers, or whose number of bytes does not fit its height and width, is left out, too.

    Args:
        rows: rows of the manifest with their maps.
        grids: class → grid, for the classes to average.

    Returns:
        Class → mean map, for the classes with at least one remaining map.
    """
    sizes = {key: bounded(*grid, longest=FINEST) for key, grid in grids.items()}
    totals = {key: np.zeros(size, np.float64) for key, size in sizes.items()}
    counts = dict.fromkeys(sizes, 0)
    for row in rows:
        key = class_of(row)
        if row.error is not None or key not in sizes:
            continue
        map_ = scaled_map(row)
        if map_ is not None:
            totals[key] += onto_grid(map_, *sizes[key])
            counts[key] += 1
    return {
        key: MeanMap((totals[key] / count).astype(np.float32), count)
        for key, count in counts.items()
        if count
    }


def scaled_map(row: Row) -> Float | None:
    """Return a row's map, float32 (h, w), scaled to 0 … 1; None if it is missing, invalid or
    constant."""
    values = map_of(row)
    if values is None:
        return None
    scaled = minmax(values)
    return scaled if scaled.any() else None


def map_of(row: Row) -> Float | None:
    """Return a row's map, float32 (h, w), as it is stored; None if it is missing or invalid."""
    height, width = row.map_height or 0, row.map_width or 0
    if row.map is None or height <= 0 or width <= 0 or len(row.map) != 4 * height * width:
        return None
    values = np.frombuffer(row.map, "<f4").reshape(height, width)
    return values if np.isfinite(values).all() else None
