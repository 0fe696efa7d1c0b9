"""What is said of a score, word for word."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cam.evaluation.metrics import Score
from cam.evaluation.verdict import percentile, verdict

CHANCE = tuple(number / 100 for number in range(59))
"""0 to 0.58, evenly spaced."""


@pytest.mark.parametrize(
    ("metric", "value", "baselines", "expected"),
    [
        (
            "insertion",
            0.7,
            {"gaussian": 0.45, "edges": 0.3, "uniform": 0.2},
            "better than chance, a centred Gaussian and an edge detector",
        ),
        # The uniform map is left out.
        (
            "insertion",
            0.3,
            {"gaussian": 0.6, "edges": 0.2, "uniform": 0.9},
            "better than an edge detector; no better than chance or a centred Gaussian",
        ),
        # Of deletion less is more.
        (
            "deletion",
            0.7,
            {"gaussian": 0.8, "edges": 0.6, "uniform": 0.2},
            "better than a centred Gaussian; no better than an edge detector; worse than chance",
        ),
        # 57 of 59 are worse, and three of 60 are one in twenty; then 56.
        ("stability", 0.565, {}, "better than chance"),
        ("stability", 0.555, {}, "no better than chance"),
        ("stability", 0.015, {}, "worse than chance"),
        ("stability", 0.025, {}, "no better than chance"),
        # Equal is no better, either way, and so is what rounding makes.
        ("insertion", 0.56, {}, "no better than chance"),
        ("insertion", 0.3, {"edges": 0.3}, "no better than chance or an edge detector"),
        ("insertion", 0.3, {"edges": 0.3 - 1e-6}, "no better than chance or an edge detector"),
        (
            "insertion",
            0.3,
            {"edges": 0.3 - 1e-4},
            "better than an edge detector; no better than chance",
        ),
        # A baseline without a value is not spoken of.
        ("stability", 0.3, {"edges": None}, "no better than chance"),
        ("insertion", None, {"edges": 0.5}, None),
    ],
)
def test_the_words(
    metric: str, value: float | None, baselines: dict[str, float | None], expected: str | None
) -> None:
    assert verdict(metric, Score(value, baselines, chance=CHANCE)) == expected


def test_without_random_maps_nothing_is_said_of_chance() -> None:
    for chance in ((), (0.1,)):
        score = Score(0.5, {"random": 0.1, "edges": 0.2}, chance=chance)
        assert verdict("insertion", score) == "better than an edge detector"
        assert percentile("insertion", score) is None
    assert verdict("insertion", Score(0.5, {"random": 0.4, "uniform": 0.1})) is None


def test_the_median_of_twelve_random_maps_is_no_better_than_chance() -> None:
    """It once was better than the one that was drawn."""
    drawn = tuple(0.1 * number for number in range(12))
    assert verdict("insertion", Score(0.55, chance=drawn)) == "no better than chance"
    assert percentile("insertion", Score(0.55, chance=drawn)) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("t", "expected"),
    [(0.711, 0.75), (1.895, 0.95), (2.998, 0.99), (-1.895, 0.05)],
)
def test_of_few_random_maps_students_distribution_tells(t: float, expected: float) -> None:
    """The quantiles of seven degrees of freedom, from a table. Eight values of −1 and 1 have the
    mean 0 and s = √(8 / 7)."""
    drawn = (-1.0, 1.0) * 4
    value = t * math.sqrt(8 / 7) * math.sqrt(1 + 1 / 8)
    found = percentile("insertion", Score(value, chance=drawn))
    assert found == pytest.approx(expected, abs=2e-4)
    other = percentile("deletion", Score(value, chance=drawn))
    assert other == pytest.approx(1 - expected, abs=2e-4)


def test_random_maps_that_all_have_one_value_are_beaten_by_any_better_one() -> None:
    for value, expected in ((0.3, 0.5), (0.4, 1.0), (0.2, 0.0)):
        assert percentile("insertion", Score(value, chance=(0.3,) * 8)) == expected


@pytest.mark.parametrize("count", [8, 59])
def test_a_random_map_is_rarely_called_better_or_worse(count: int) -> None:
    rng = np.random.default_rng(count)
    said = [
        verdict("insertion", Score(float(row[0]), chance=tuple(row[1:].tolist())))
        for row in rng.normal(size=(2000, count + 1))
    ]
    for word in ("better than chance", "worse than chance"):
        assert 0.02 < said.count(word) / len(said) < 0.065
    assert said.count("no better than chance") / len(said) > 0.87


def test_the_order_of_the_baselines_does_not_depend_on_the_scores() -> None:
    forward = {"gaussian": 0.2, "edges": 0.3}
    backward = dict(reversed(forward.items()))
    said = "better than chance, a centred Gaussian and an edge detector"
    assert verdict("insertion", Score(0.9, forward, chance=CHANCE)) == said
    assert verdict("insertion", Score(0.9, backward, chance=CHANCE)) == said


@pytest.mark.parametrize(("count", "beside"), [(59, (15, 30, 45)), (7, (2, 4, 6))])
def test_a_map_beside_its_mirror_images(count: int, beside: tuple[int, ...]) -> None:
    """Better than all misplaced maps but a mirror image, it is no better than chance; but another
    misplaced map may be as good."""
    chance = np.linspace(0.1, 0.2, count)
    assert verdict("insertion", Score(0.5, chance=tuple(chance))) == "better than chance"
    for turn in range(1, count + 1):
        other = chance.copy()
        other[turn - 1] = 0.6 if count == 59 else 0.5
        score = Score(0.5, chance=tuple(other))
        if turn in beside:
            assert verdict("insertion", score) == "no better than chance"
        elif count == 59:
            assert verdict("insertion", score) == "better than chance"
        if count == 59:
            assert percentile("insertion", score) == pytest.approx(58 / 60)
    assert verdict("insertion", Score(0.0, chance=tuple(chance))) == "worse than chance"
    low = chance.copy()
    low[beside[0] - 1] = -0.1
    assert verdict("insertion", Score(0.0, chance=tuple(low))) == "no better than chance"


@pytest.mark.parametrize("metric", ["energy", "pointing"])
def test_a_place_is_better_than_chance_only_before_all_misplaced_maps(metric: str) -> None:
    """By 57 of 59, which other metrics need, the map of another photo is better in 11.5 %. The
    percentile stays what it is."""
    for value, said, share in (
        (0.585, "better than chance", 59 / 60),
        (0.575, "no better than chance", 58 / 60),
        (0.005, "no better than chance", 2 / 60),
        (-0.01, "worse than chance", 1 / 60),
    ):
        score = Score(value, chance=CHANCE)
        assert verdict(metric, score) == said
        assert percentile(metric, score) == pytest.approx(share)
    assert verdict("stability", Score(0.575, chance=CHANCE)) == "better than chance"
