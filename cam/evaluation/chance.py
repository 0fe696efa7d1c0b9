"""How far chance may move means over photos.

Student, "The Probable Error of a Mean", 1908: the interval of a mean. Efron and Tibshirani, "An
Introduction to the Bootstrap", 1993: samples with replacement.
Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", 1927: the interval
of a proportion. Hsu, "Multiple Comparisons", 1996: which of many means may be the greatest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from cam.evaluation.metrics import Better

SAMPLES: Final = 2000
LEVEL: Final = 0.95
FEWEST: Final = 3
"""Least number of values for an interval. The standard deviation of two values says little."""
Z: Final = 1.959964
"""Quantile of the normal distribution: the share `LEVEL` of its values lies between −Z and Z."""


@dataclass(frozen=True)
class Interval:
    """A mean over photos, with its 95 % interval by Student's distribution. Fewer than three photos
    have no interval."""

    mean: float
    low: float | None
    high: float | None
    photos: int
    """Number of photos with a value."""


def interval(
    values: Sequence[float | None], *, proportion: bool = False, comparisons: int = 1
) -> Interval | None:
    """Return the mean of the values that are not None, with its interval by Student's distribution.
    Return None if there are no values. Fewer than `FEWEST` values have no interval.

    A bootstrap would not do for few values: its means lie between the smallest and the largest
    value, a range that contains the true mean in half of the cases for two values, and in three
    quarters for three.

    Args:
        proportion: whether the values are shares, so their mean is in 0 … 1. If all are 0 or all
            are 1, their standard deviation is 0, as if the mean were certain; then Wilson's
            interval is used.
        comparisons: number of intervals that shall all contain their means with the probability
            `LEVEL` (Bonferroni).
    """
    from scipy.special import stdtrit  # takes a while, and few requests need it

    known = np.array([value for value in values if value is not None], np.float64)
    if not known.size:
        return None
    mean = float(known.mean())
    if known.size < FEWEST:
        return Interval(mean=mean, low=None, high=None, photos=known.size)
    error = float(known.std(ddof=1)) / known.size**0.5
    tail = (1 - LEVEL) / 2 / comparisons
    margin = float(stdtrit(known.size - 1, 1 - tail)) * error
    low, high = mean - margin, mean + margin
    if proportion:
        low, high = max(low, 0.0), min(high, 1.0)
        if (known == known[0]).all() and known[0] in (0, 1):
            margin = Z**2 / (known.size + Z**2)
            low, high = (0, margin) if known[0] == 0 else (1 - margin, 1)
    return Interval(mean=mean, low=low, high=high, photos=known.size)


def outcome(
    pairs: Iterable[tuple[float | None, float | None]], *, better: Better
) -> Literal[-1, 0, 1] | None:
    """Return 1 if the first value of pairs is better than the second beyond chance, −1 if it is
    worse, and 0 if neither, by the interval of their mean difference. Return None if there is no
    interval.

    Args:
        pairs: two values of each photo; a pair that lacks one does not count.
    """
    gaps = [mine - other for mine, other in pairs if mine is not None and other is not None]
    gap = interval(gaps if better == "higher" else [-each for each in gaps])
    if gap is None or gap.low is None or gap.high is None:
        return None
    return 1 if gap.low > 0 else -1 if gap.high < 0 else 0


def least_difference(values: NDArray[np.float64], seed: int = 0) -> float:
    """Return the least difference between the means of two methods that is beyond chance: the
    greatest difference between any two of all methods exceeds it by chance alone in 1 − `LEVEL` of
    the cases.

    It is a quantile over bootstrap samples of the photos: of the greatest difference between the
    errors of two means. If no method is better than another, an audit calls a method worse than
    the best in at most about 5 % of the cases, however many methods there are. With an interval for
    each pair, most audits of 20 methods would call some method worse.

    Args:
        values: the points of each method on each photo, (methods, photos). All methods share one
            sample of the photos, which keeps their differences on each photo.
        seed: seed of the samples.
    """
    photos = values.shape[1]
    if photos < 2:
        return float("inf")
    errors = _means(values, seed) - values.mean(1)[:, None]
    greatest = errors.max(0) - errors.min(0)
    # The samples vary around their own mean, so their spread is too small by this factor.
    return float(np.quantile(greatest, LEVEL) * np.sqrt(photos / (photos - 1)))


def _means(values: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Return the means over `SAMPLES` random samples of the photos, drawn with replacement: (rows,
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
