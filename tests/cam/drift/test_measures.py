"""Distances of two samples and their probabilities: worked by hand, and against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from cam.drift.distances import (
    Numbers,
    effective,
    holm,
    independent,
    kolmogorov_probability,
    kolmogorov_smirnov,
    population_stability,
    quantiles,
)


def numbers(*values: float) -> Numbers:
    return np.array(values, np.float64)


def ones(count: int) -> Numbers:
    return np.ones(count)


def test_effective_by_hand() -> None:
    assert effective(ones(4)) == 4
    assert effective(numbers(3, 1)) == 1.6  # 4² / (9 + 1)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1, 2, 3, 4), 2.4),  # less their mean -1.5 … 1.5: ρ = 1.25 / 5; 4 * 0.75 / 1.25
        ((1, 1, 2, 2), 2.4),  # -0.5, -0.5, 0.5, 0.5: ρ = (1 - 1 + 1) / 4
        ((1, 1, 1, 2), 4),  # -0.25, -0.25, -0.25, 0.75: ρ is below 0
        ((5, 5, 5), 3),  # no order: nothing tells that they depend on each other
        ((7,), 1),
    ],
)
def test_independent_by_hand(values: tuple[float, ...], expected: float) -> None:
    assert independent(numbers(*values)[:, None]) == pytest.approx(expected)


def test_independent_of_rows_that_take_turns_by_hand() -> None:
    # -1, 1, -1, 1, … of 100: two places apart are 98 of the 100 products, so ρ is 0.98, and 0.98 is
    # above 4 / 10. Of three rows in turn, ρ is 0.97.
    turns = np.tile([-1.0, 1.0], 50)[:, None]
    assert independent(turns) == pytest.approx(100 * 0.02 / 1.98)
    # 2 * 0.5 / 1.5: of four, 2 / 4 is not above 4 / 2, and one place apart ρ is below 0.
    assert independent(turns[:4]) == 4
    assert independent(np.tile([-1.0, 0, 1], 33)[:, None]) == pytest.approx(99 * 1 / 65)


def test_the_column_that_is_most_alike_counts() -> None:
    rng = np.random.default_rng(0)
    turns = np.tile([-1.0, 1.0], 250)
    noise = rng.random(500)
    both = independent(np.column_stack([noise, turns, np.ones(500)]))
    assert both == pytest.approx(independent(turns[:, None]))
    assert independent(noise[:, None]) > 400


def test_frames_count_for_about_their_photos() -> None:
    rng = np.random.default_rng(0)
    photos = rng.random((100, 1))
    assert independent(rng.random((1000, 1))) > 900
    # Of 100 photos with 10 frames each, ρ is 0.9: a tenth would be right, and a nineteenth is safe.
    assert 40 < independent(photos.repeat(10, axis=0)) < 100


def test_independent_is_at_least_one() -> None:
    assert independent(np.arange(100_000.0)[:, None]) >= 1


def test_quantiles_by_hand() -> None:
    shares = numbers(0.25, 0.5, 0.75, 1)
    assert quantiles(numbers(40, 10, 30, 20), ones(4), shares).tolist() == [10, 20, 30, 40]
    # The weights reach 1, 2, 3 and 8; asked for are 2, 4, 6 and 8 of them.
    found = quantiles(numbers(40, 10, 30, 20), numbers(5, 1, 1, 1), shares)
    assert found.tolist() == [20, 40, 40, 40]


@pytest.mark.parametrize("count", [1, 7, 10, 70, 1000])
def test_quantiles_equal_numpys(count: int) -> None:
    values, shares = np.random.default_rng(count).random(count), np.arange(1, 10) / 10
    expected = np.sort(values)[np.ceil(count * np.arange(1, 10) / 10 - 1e-9).astype(int) - 1]
    np.testing.assert_array_equal(quantiles(values, np.full(count, 0.1), shares), expected)
    wanted = np.quantile(values, [0.25, 0.5], method="inverted_cdf")
    np.testing.assert_array_equal(quantiles(values, ones(count), numbers(0.25, 0.5)), wanted)


def test_population_stability_by_hand() -> None:
    # Bins end at 1, 2, … 9. Of the reference each has (1 + 1/2) / 15 = 0.1; of the live values nine
    # have 0.5 / 15, and the last one has 10.5 / 15 = 0.7. The index is
    # 9 * (1/30 - 0.1) * ln(1/3) + 0.6 * ln 7 = 0.659167 + 1.167546.
    # Chance gives it 9 * (1/10 + 1/10) = 1.8.
    reference, live = np.arange(1.0, 11), np.full(10, 10.5)
    assert population_stability(reference, ones(10), live, 10) == pytest.approx(0.026714, abs=1e-6)


def test_population_stability_with_weights_by_hand() -> None:
    # (3 + 1)² / (9 + 1) = 1.6 values. The quantiles are 0 up to 0.7, then 1: three bins.
    # p = (0.75 * 1.6 + 0.5, 0.25 * 1.6 + 0.5, 0.5) / 3.1 = (1.7, 0.9, 0.5) / 3.1
    # q = (0.5 * 2 + 0.5, 0.5 * 2 + 0.5, 0.5) / 3.5 = (1.5, 1.5, 0.5) / 3.5, of 2 independent values
    # index: -0.119816 * ln 0.781513 + 0.138249 * ln 1.476190 - 0.018433 * ln 0.885714 = 0.085618
    # chance: 2 * (1/1.6 + 1/2) = 2.25
    found = population_stability(numbers(0, 1), numbers(3, 1), numbers(0, 0, 1, 1), 2)
    assert found == pytest.approx(0.085618 - 2.25, abs=1e-6)


def test_population_stability_of_one_repeated_value_by_hand() -> None:
    # One edge, two bins: p = (4.5, 0.5) / 5 and q = (0.5, 4.5) / 5; 2 * 0.8 * ln 9 = 3.515559.
    # Chance: 1/4 + 1/4.
    found = population_stability(np.zeros(4), ones(4), ones(4), 4)
    assert found == pytest.approx(3.015559, abs=1e-6)


@pytest.mark.parametrize(("count", "live"), [(60, 60), (1000, 50), (1000, 500)])
def test_population_stability_is_near_zero_without_a_change(count: int, live: int) -> None:
    rng = np.random.default_rng(count + live)
    found = [
        population_stability(rng.random(count), ones(count), rng.random(live), live)
        for _ in range(300)
    ]
    # Chance alone would give 9 * (1/60 + 1/60) = 0.3 and 0.19 and 0.03.
    assert abs(float(np.mean(found))) < 0.15 * 9 * (1 / count + 1 / live)


def test_kolmogorov_smirnov_by_hand() -> None:
    assert kolmogorov_smirnov(numbers(4, 3, 2, 1), ones(4), numbers(6, 5, 4, 3)) == 0.5
    # Up to 1 lie 3/4 of the weight and no live value.
    assert kolmogorov_smirnov(numbers(2, 1), numbers(1, 3), numbers(2, 2)) == 0.75
    # Up to 2 lie all live values and 1/4 of the weight.
    assert kolmogorov_smirnov(numbers(3, 1), numbers(3, 1), numbers(2, 2)) == 0.75


@pytest.mark.parametrize("digits", [1, 8])
def test_kolmogorov_smirnov_equals_scipys(digits: int) -> None:
    rng = np.random.default_rng(digits)
    first, second = rng.normal(size=300).round(digits), rng.normal(0.3, size=171).round(digits)
    expected = stats.ks_2samp(first, second).statistic
    assert kolmogorov_smirnov(first, ones(300), second) == pytest.approx(expected, abs=1e-12)
    assert kolmogorov_smirnov(second, ones(171), first) == pytest.approx(expected, abs=1e-12)


def test_a_weight_is_as_good_as_repeated_values() -> None:
    rng = np.random.default_rng(0)
    values, live, weights = rng.random(50), rng.random(40), rng.integers(1, 5, 50)
    whole = values.repeat(weights)
    found = kolmogorov_smirnov(values, weights.astype(float), live)
    assert found == pytest.approx(kolmogorov_smirnov(whole, ones(len(whole)), live), abs=1e-12)
    shares = np.arange(1, 10) / 10
    np.testing.assert_array_equal(
        quantiles(values, weights.astype(float), shares), quantiles(whole, ones(len(whole)), shares)
    )


def test_kolmogorov_probability_by_hand() -> None:
    # λ² = 100 * 100 / 200 * 0.2² = 2; 2 * (exp(-4) - exp(-16) + …) = 2 * (0.01831564 - 0.00000011)
    assert kolmogorov_probability(0.2, 100, 100) == pytest.approx(0.03663106, abs=1e-8)
    # λ² = 30 * 60 / 90 * 0.1² = 0.2: 2 * (0.670320 - 0.201897 + 0.027324 - 0.001662 + 0.000045)
    assert kolmogorov_probability(0.1, 30, 60) == pytest.approx(0.988260, abs=2e-6)


def test_kolmogorov_probability_is_between_zero_and_one() -> None:
    found = [kolmogorov_probability(each, 50, 500) for each in np.linspace(0, 1, 201)]
    assert found[0] == 1
    assert found == sorted(found, reverse=True)
    assert min(found) >= 0


@pytest.mark.parametrize(("count", "live"), [(50, 50), (1000, 500), (60, 500), (5000, 50)])
@pytest.mark.parametrize("level", [1e-2, 1e-5, 1e-8])
def test_kolmogorov_probability_is_near_the_exact_one(count: int, live: int, level: float) -> None:
    """At most 4 times as high, down to where a comparison decides, and never too low."""
    found = next(
        each
        for each in np.arange(1, live + 1) / live
        if kolmogorov_probability(each, count, live) < level
    )
    first = np.linspace(0, 1, count, endpoint=False)
    # Live values that lie as far above as D says.
    second = np.linspace(found, 1 + found, live, endpoint=False)
    exact = stats.ks_2samp(first, second, method="exact")
    ours = kolmogorov_probability(float(exact.statistic), count, live)
    assert exact.pvalue <= ours < 4 * exact.pvalue


def test_holm_by_hand() -> None:
    # Sorted: 0.005 * 4, 0.01 * 3, 0.03 * 2, and 0.04 * 1 is raised to the one before.
    assert holm(numbers(0.01, 0.04, 0.03, 0.005)) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm(numbers(0.6, 0.7)).tolist() == [1, 1]
    assert holm(numbers()).tolist() == []
