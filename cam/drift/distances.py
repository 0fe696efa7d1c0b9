"""How far two samples of a number lie apart, and how likely that is by chance."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
BINS: Final = 10
"""Number of bins of the population stability index. Ten is the usual number."""
SMOOTHING: Final = 0.5
"""Number of values that each bin holds in addition, on both sides, so that none is empty. With one
half the logarithm of a share has almost no bias (Haldane 1956, Anscombe 1956)."""
FARTHEST: Final = 50
"""Largest number of places between two rows whose correlation counts. Videos that take turns are
noticed if they are at most as many."""
NO_CHANCE: Final = 4.0
"""A correlation of independent values has a deviation of 1/√n. Of 50 distances and 9 columns, one
exceeds four deviations in 1.4 % of the windows."""


def effective(weights: Numbers) -> float:
    """Return how many values of equal weight tell as much about a mean as the weighted values do:
    (Σw)² ÷ Σw² (Kish 1965).

    Args:
        weights: float64 (n), not negative, not all zero.
    """
    return float(weights.sum() ** 2 / (weights @ weights))


def independent(rows: Numbers) -> float:
    """Return how many independent rows tell as much as rows that were recorded in turn, such as
    those of the frames of a video: n · (1 − ρ) ÷ (1 + ρ), where ρ is the correlation of a row with
    the next one, if it is above 0 (Bayley and Hammersley 1946, for a first-order autoregression).
    At least 1.

    If several videos take turns, frames of one video are some places apart. So ρ is the correlation
    of rows up to `FARTHEST` places apart, if that is larger and cannot be chance. (The sum of all
    these correlations would be right for more kinds of series, but every change lies between rows
    before and rows after it, which correlates them at all distances: it would be found when the
    window has forgotten the rows before it.)

    Rows are photos, and the columns what is known of them. Whether photos are alike shows in the
    column in which they are most alike: two scenes may be equal in some of the others.

    Args:
        rows: float64 (n, k) in the order in which they were recorded, n ≥ 1.
    """
    count = len(rows)
    centred = rows - rows.mean(axis=0)
    squares = np.einsum("ij,ij->j", centred, centred)
    centred, squares = centred[:, squares > 0], squares[squares > 0]
    if not squares.size:
        return float(count)
    size = 1 << (2 * count - 1).bit_length()  # no row meets itself at the other end
    spectrum = np.fft.rfft(centred, size, axis=0)
    products = np.fft.irfft(spectrum * spectrum.conj(), size, axis=0)
    correlations = (products[1 : min(FARTHEST, count - 1) + 1] / squares).max(axis=1)
    highest = max(float(correlations[0]), 0.0)
    if (other := float(correlations.max())) > NO_CHANCE / math.sqrt(count):
        highest = max(highest, other)
    return max(count * (1 - highest) / (1 + highest), 1.0)


def quantiles(values: Numbers, weights: Numbers, shares: Numbers) -> Numbers:
    """Return the smallest values that at least these shares of the weight do not exceed.

    Args:
        values, weights: float64 (n).
        shares: float64 (k), above 0, at most 1.

    Returns:
        float64 (k).
    """
    # Sums of shares such as 0.1 are off by rounding, which must not move an edge by one value.
    wanted = shares * (1 - 1e-12)
    cuts: Numbers = np.quantile(values, wanted, weights=weights, method="inverted_cdf")
    return cuts


def population_stability(
    reference: Numbers, weights: Numbers, live: Numbers, live_count: float
) -> float:
    """Return the population stability index Σ (q − p) · ln(q ÷ p) of two samples, less the value
    that chance alone gives it on average.

    p and q are the shares of the reference and of the live values in each of `BINS` bins, which
    have equal shares of the reference; bins that tied values make empty are left out. Each side's
    bins hold `SMOOTHING` values in addition. For two samples of one distribution, n and m values in
    B bins, the index is about (1/n + 1/m) · χ² with B − 1 degrees of freedom (Yurdakul and Naranjo
    2020), so that its mean is (B − 1) · (1/n + 1/m). This is what is taken off.

    By the usual reading a value below 0.1 is not a change, and one above 0.25 is a great change
    (Siddiqi 2006).

    Args:
        reference, weights: float64 (n), the values and how much each counts.
        live: float64 (m).
        live_count: number of independent values among the live ones.
    """
    count = effective(weights)
    inner = np.arange(1, BINS) / BINS
    edges = np.unique(quantiles(reference, weights, inner))
    bins = len(edges) + 1
    before = np.bincount(np.searchsorted(edges, reference), weights, bins) / weights.sum()
    after = np.bincount(np.searchsorted(edges, live), minlength=bins) / len(live)
    p = (before * count + SMOOTHING) / (count + SMOOTHING * bins)
    q = (after * live_count + SMOOTHING) / (live_count + SMOOTHING * bins)
    index = float((q - p) @ np.log(q / p))
    return index - (bins - 1) * (1 / count + 1 / live_count)


def kolmogorov_smirnov(reference: Numbers, weights: Numbers, live: Numbers) -> float:
    """Return Kolmogorov's and Smirnov's D: the greatest difference between the distribution
    functions of two samples, 0 … 1.

    For equal weights it is the statistic of `scipy.stats.ks_2samp`, which takes no weights.

    Args:
        reference, weights: float64 (n), the values and how much each counts.
        live: float64 (m).
    """
    order = np.argsort(reference, kind="stable")
    places = np.concatenate([reference, live])
    reached = np.concatenate([[0.0], np.cumsum(weights[order])]) / weights.sum()
    before = reached[np.searchsorted(reference[order], places, side="right")]
    after = np.searchsorted(np.sort(live), places, side="right") / len(live)
    return float(np.abs(before - after).max())


def kolmogorov_probability(distance: float, count: float, live_count: float) -> float:
    """Return the probability that two samples of one distribution have a D of at least `distance`:
    2 Σ (−1)^(k − 1) · exp(−2 k² λ²) over k ≥ 1 with λ = √(n · m ÷ (n + m)) · D (Smirnov 1939).

    It is the limit for large samples. For samples of 50 and more it is at most 4 times too high,
    down to 1e-8, and not too low, unlike the limit with a correction for small samples (Stephens
    1970) and that of `scipy.stats.ks_2samp(…, method="asymp")`. Where values are tied it is too
    high.

    Args:
        distance: 0 … 1.
        count, live_count: the numbers of independent values n and m, 1 or more.
    """
    from scipy.special import kolmogorov  # takes a while, and only a comparison needs it

    return float(kolmogorov(math.sqrt(count * live_count / (count + live_count)) * distance))


def holm(probabilities: Numbers) -> Numbers:
    """Correct the probabilities of several tests (Holm 1979), each for the number of tests.

    If only those below α count, the probability that any test is wrongly among them is at most α,
    whatever the tests have to do with each other. Statistics of one map do have to do with each
    other, and Benjamini and Hochberg's correction bounds another thing: the share of wrong ones
    among those found, which is 1 whenever nothing has changed.

    Args:
        probabilities: float64 (k).

    Returns:
        float64 (k), in the order of the arguments, at most 1.
    """
    order = np.argsort(probabilities, kind="stable")
    left = len(probabilities) - np.arange(len(probabilities))
    corrected = np.empty_like(probabilities)
    corrected[order] = np.maximum.accumulate(probabilities[order] * left).clip(max=1)
    return corrected
