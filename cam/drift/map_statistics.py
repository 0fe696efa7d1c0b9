"""What one map and its photo are like, in numbers that are compared over time."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import lru_cache
from operator import attrgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cam.drawing.heatmap import concentration, overlaps
from cam.drawing.placement import Float
from cam.drift.photo_statistics import PHOTO_STATISTICS, photo_statistics

BORDER: Final = 0.1
"""Width of the border, as a share of the height and of the width, as in `heatmap.border`."""
FARTHEST: Final = 0.5
"""Largest mean squared distance from the centroid, where the height and the width are 1: half of
the heat in each of two opposite corners."""
SMALLEST: Final = 1e-300
"""What a share of 0 is replaced by in a logarithm, whose product with the share is 0 then."""


@dataclass(frozen=True, slots=True)
class MapStatistics:
    """Numbers about a map and its photo, each 0 … 1. The heat of a position is the absolute value
    of the map there, as in `cam.drawing.heatmap`."""

    entropy: float
    """Shannon's entropy (1948, section 6) of the heat as a distribution over the positions, divided
    by the logarithm of their number: 0 if one position has all heat, 1 if all have the same."""
    centroid_x: float
    """Mean column of the heat, as a share of the width: 0 at the left edge, 1 at the right one."""
    centroid_y: float
    """Mean row of the heat, as a share of the height: 0 at the top edge, 1 at the bottom one."""
    spread: float
    """Root of the mean squared distance of the heat from its centroid, as a share of half the
    diagonal; height and width count as equally long. 0 if one position has all heat; about 0.58 for
    an even map."""
    border: float
    """Share of the heat within a tenth of the height and of the width from the edges; 0.36 for an
    even map. It is `heatmap.border`."""
    centre: float
    """Share of the heat inside the central half of the height and of the width; 0.25 for an even
    map. A position that the line cuts counts in part."""
    concentration: float
    """Share of the heat in the hottest tenth of the positions; 0.1 for an even map. It is
    `heatmap.concentration`."""
    confidence: float | None
    """Probability of the explained target; None if the target has none."""
    sharpness: float | None = None
    """Of the photo, as `cam.drift.photo_statistics` defines it, and so are all that follow; None if
    the photo is not known."""
    brightness: float | None = None
    contrast: float | None = None
    red: float | None = None
    blue: float | None = None
    colourfulness: float | None = None
    variety: float | None = None
    softest: float | None = None


STATISTICS: Final = tuple(field.name for field in fields(MapStatistics))
"""Names of the statistics, in the order of the columns of a row."""
OPTIONAL: Final = ("confidence", *PHOTO_STATISTICS)
"""Names of the statistics that a map may lack: the last ones."""
_in_order: Final = attrgetter(*STATISTICS)


def statistics_of(
    values: Float, confidence: float | None = None, pixels: NDArray[np.uint8] | None = None
) -> MapStatistics | None:
    """Return the statistics of a map, before it is scaled or resized.

    Only maps of one model, method and layer can be compared, and only those of the same kind of
    target, such as the predicted class.

    Args:
        values: float32 (h, w). Up to 200 positions take some 15 µs; 224 × 224 take 1 ms.
        confidence: the target's probability, 0 … 1.
        pixels: what the model saw of the photo, uint8 (H, W, 3).

    Returns:
        The statistics; None for a map that is constant, or is not finite.
    """
    if not values.max() > values.min():  # also if one of them is NaN
        return None
    heat = values.ravel().astype(np.float64)
    np.abs(heat, out=heat)
    total = float(heat.sum())
    if not math.isfinite(total):
        return None
    heat /= total
    x, y, squares, border, centre = (heat @ _weights(*values.shape)).tolist()
    entropy = -float(heat @ np.log(np.maximum(heat, SMALLEST))) / math.log(heat.size)
    variance = max(squares - x * x - y * y, 0.0)  # rounding may leave less than 0
    return MapStatistics(
        entropy=entropy,
        centroid_x=x,
        centroid_y=y,
        spread=math.sqrt(variance / FARTHEST),
        border=border,
        centre=centre,
        concentration=concentration(values),
        confidence=confidence,
        **({} if pixels is None else photo_statistics(pixels)),
    )


def row_of(statistics: MapStatistics | None) -> tuple[float, ...]:
    """Return the statistics in the order of `STATISTICS`, NaN where there is none."""
    if statistics is None:
        return EMPTY
    values: tuple[float | None, ...] = _in_order(statistics)
    return tuple(math.nan if value is None else value for value in values)


EMPTY: Final = (math.nan,) * len(STATISTICS)
"""The row of a map that has no statistics."""


@lru_cache(maxsize=8)
def _weights(height: int, width: int) -> NDArray[np.float64]:
    """Return what each position adds to x, to y, to x² + y², to the border's share and to the
    centre's: float64 (height · width, 5)."""
    y, x = np.meshgrid(
        (np.arange(height) + 0.5) / height, (np.arange(width) + 0.5) / width, indexing="ij"
    )
    inside, centre = (
        np.outer(
            *(overlaps(cells, start * cells, (1 - start) * cells) for cells in (height, width))
        )
        for start in (BORDER, 0.25)
    )
    columns = [x, y, x * x + y * y, 1 - inside, centre]
    weights = np.stack([column.ravel() for column in columns], axis=1)
    weights.flags.writeable = False
    return weights
