"""How much maps of the same image and target agree."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cam.drawing.heatmap import Float, shrink


def spearman(first: Float, second: Float) -> float | None:
    """Spearman's rank correlation of two maps, −1 … 1: whether they order the positions alike,
    whatever their numbers. Equal numbers share the mean of their ranks, so the many zeros of a
    rectified map count as one place (as in scipy.stats.spearmanr).

    Args:
        first, second: float32 (h, w). Where their sizes differ, each axis has the smaller number
            of cells, and a cell the mean of what it covers.

    Returns:
        None where one of them is the same everywhere, and so orders nothing.
    """
    height = min(first.shape[0], second.shape[0])
    width = min(first.shape[1], second.shape[1])
    one, other = (_ranks(shrink(each, height, width)) for each in (first, second))
    one, other = one - one.mean(), other - other.mean()
    length = float(np.sqrt((one @ one) * (other @ other)))
    return float(one @ other) / length if length else None


def _ranks(values: Float) -> NDArray[np.float64]:
    """The place of each number among all, from 1; of equal ones the mean of their places."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: NDArray[np.float64] = (last - (counts - 1) / 2)[which.ravel()]
    return ranks
