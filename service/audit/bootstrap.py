"""Confidence intervals of means over photos, by bootstrap.

Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13: the percentile interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from service.core.audit_schemas import Interval

SAMPLES: Final = 2000
LEVEL: Final = 0.95


def resamples(photos: int, seed: int = 0) -> NDArray[np.int64]:
    """Return the indices of `SAMPLES` random samples of the photos with replacement,
    (SAMPLES, photos). One sample for all methods keeps their differences photo by photo."""
    return np.random.default_rng(seed).integers(photos, size=(SAMPLES, photos))


def interval(values: Sequence[float | None], seed: int = 0) -> Interval | None:
    """Return the mean of the values that there are, with its interval; None if there are none."""
    known = np.array([each for each in values if each is not None], np.float64)
    if not known.size:
        return None
    low, high = bounds(known[resamples(known.size, seed)].mean(1))
    return Interval(mean=float(known.mean()), low=low, high=high, photos=known.size)


def bounds(means: NDArray[np.float64]) -> tuple[float, float]:
    """Return the ends of the interval that holds `LEVEL` of the samples' means."""
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(means, [tail, 100 - tail])
    return float(low), float(high)
