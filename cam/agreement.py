"""Measure how well two maps of the same image and target agree."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cam.drawing.placement import Float, shrink

Double = NDArray[np.float64]
LEAST = 0.98
"""Least Pearson correlation at which two maps count as the same."""
EXACT = 1e-4
"""Largest difference between two maps, as a share of the maximum, that rounding in float32 may
cause. Two float32 convolutions that add in another order differ by some 1e-6."""


@dataclass(frozen=True)
class Fidelity:
    """Pearson's correlation, -1 … 1, of a method's fast maps with the exact ones over several
    images."""

    median: float
    worst: float
    difference: float = math.inf
    """Largest difference between a fast map and the exact one, at any position of any image, as a
    share of the exact map's maximum."""

    @property
    def exact(self) -> bool:
        """Whether the fast maps are the exact ones up to rounding in float32."""
        return self.enough and self.difference <= EXACT

    @property
    def enough(self) -> bool:
        """Whether the fast path may serve the method. The worst correlation decides, so the median
        needs no test."""
        return self.worst >= LEAST


def spearman(first: Float, second: Float) -> float | None:
    """Return Spearman's rank correlation of two maps, −1 … 1.

    The correlation compares the order of the positions by value and not the values. Equal values
    share the mean of their ranks, as in scipy.stats.spearmanr, so all zeros of a rectified map have
    the same rank.

    Args:
        first, second: float32 (h, w). If their sizes differ, both are reduced to the smaller number
            of cells on each axis; each cell is the mean of the area that it covers.

    Returns:
        The correlation; None if one of the maps is constant and so has no order.
    """
    height = min(first.shape[0], second.shape[0])
    width = min(first.shape[1], second.shape[1])
    return pearson(*(_ranks(shrink(values, height, width)) for values in (first, second)))


def pearson(first: Float | Double, second: Float | Double) -> float | None:
    """Return Pearson's correlation, −1 … 1, of two arrays of one shape; None if one is constant."""
    if float(np.ptp(first)) == 0 or float(np.ptp(second)) == 0:
        return None
    one, other = (values.astype(np.float64).ravel() for values in (first, second))
    one, other = one - one.mean(), other - other.mean()
    return float(one @ other / np.sqrt((one @ one) * (other @ other)))


def _ranks(values: Float) -> Double:
    """Return the rank of each value among all, from 1; equal values have the mean of their
    ranks."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Double = (last - (counts - 1) / 2)[which.ravel()]
    return ranks
