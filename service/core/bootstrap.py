"""What chance does to means over photos, by bootstrap.

Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13: the percentile interval.
Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", 1927: the interval
of a proportion. Hsu, "Multiple Comparisons", 1996: which of many means may be the greatest.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from service.core.audit_schemas import Interval

SAMPLES: Final = 2000
LEVEL: Final = 0.95
FEW: Final = 20
"""Number of photos below which a verdict takes Student's interval: see `student_interval`."""
Z: Final = 1.959964
"""Quantile of the normal distribution beside which `LEVEL` lies within ± it."""


def interval(
    values: Sequence[float | None], seed: int = 0, *, proportion: bool = False
) -> Interval | None:
    """Return the mean of the values that there are, with its interval; None if there are none.

    Args:
        proportion: whether the values are shares, 0 … 1. If all are 0 or all are 1, each sample has
            the same mean, as if it were certain; Wilson's interval is taken instead.
    """
    known = np.array([value for value in values if value is not None], np.float64)
    if not known.size:
        return None
    low, high = _bounds(_means(known[None], seed)[0])
    if proportion and (known == known[0]).all() and known[0] in (0, 1):
        margin = Z**2 / (known.size + Z**2)
        low, high = (0, margin) if known[0] == 0 else (1 - margin, 1)
    return Interval(mean=float(known.mean()), low=low, high=high, photos=known.size)


def student_interval(values: Sequence[float]) -> Interval | None:
    """Return the mean of the values with its interval by Student's distribution; None if there are
    fewer than two. Of few values, all samples of a bootstrap lie between the smallest and the
    largest one, which excludes 0 by chance far too often."""
    from scipy.special import stdtrit  # takes a while, and few requests need it

    known = np.array(values, np.float64)
    if known.size < 2:
        return None
    error = float(known.std(ddof=1)) / known.size**0.5
    margin = float(stdtrit(known.size - 1, (1 + LEVEL) / 2)) * error
    mean = float(known.mean())
    return Interval(mean=mean, low=mean - margin, high=mean + margin, photos=known.size)


def least_difference(values: NDArray[np.float64], seed: int = 0) -> float:
    """Return the difference of two methods' means that chance alone exceeds between any two of all
    methods in 1 − `LEVEL` of the cases.

    It is the quantile, over the samples, of the greatest difference between the errors of two
    means. So if no method is better than another, one of them is called worse than the best in at
    most about 5 % of the audits, however many methods there are; an interval for each pair would
    call some method worse in most audits of 20 methods.

    Args:
        values: the points of each method on each photo, (methods, photos). One sample of the photos
            for all methods keeps their differences photo by photo.
    """
    photos = values.shape[1]
    if photos < 2:
        return float("inf")
    errors = _means(values, seed) - values.mean(1)[:, None]
    greatest = errors.max(0) - errors.min(0)
    # The samples vary around their own mean, which makes them too narrow by this factor.
    return float(np.quantile(greatest, LEVEL) * np.sqrt(photos / (photos - 1)))


def _means(values: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Return the means over `SAMPLES` random samples of the photos with replacement, (rows,
    SAMPLES)."""
    photos = values.shape[1]
    means: NDArray[np.float64] = values @ _counts(photos, seed).T / photos
    return means


@lru_cache(maxsize=8)
def _counts(photos: int, seed: int) -> NDArray[np.float64]:
    """Return how often each photo is in each sample, (SAMPLES, photos)."""
    drawn = np.random.default_rng(seed).integers(photos, size=(SAMPLES, photos))
    counts = np.zeros((SAMPLES, photos))
    np.add.at(counts, (np.arange(SAMPLES)[:, None], drawn), 1)
    return counts


def _bounds(means: NDArray[np.float64]) -> tuple[float, float]:
    """Return the ends of the interval that holds `LEVEL` of the samples' means."""
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(means, [tail, 100 - tail])
    return float(low), float(high)
