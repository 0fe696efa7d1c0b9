"""The names, options and promises of the metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cam import METRICS
from cam.errors import InvalidOption
from cam.evaluation.metrics import BASELINES, DEFAULTS, MetricOptions, metric_named, step_of
from cam.methods.method import load


def test_every_metric_is_computed_and_none_besides() -> None:
    assert all(callable(load(metric.function)) for metric in METRICS.values())
    assert all(name == metric.name for name, metric in METRICS.items())
    assert set(DEFAULTS) <= set(METRICS)


def test_which_metrics_are_better_when_lower() -> None:
    lower = {name for name, metric in METRICS.items() if metric.better == "lower"}
    assert lower == {
        "deletion",
        "road_morf",
        "confidence_drop",
        "complexity",
        "sensitivity",
        "infidelity",
        "completeness",
    }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"steps": 0}, "steps is 0; it can be 1 to 1000, or 'fine'"),
        ({"steps": 1001}, "steps is 1001"),
        ({"deletion_to": "black"}, "deletion_to is 'black'; it can be zero, blur, mean"),
        ({"insertion_from": "white"}, "insertion_from is 'white'; it can be zero, blur, mean"),
        ({"percentages": ()}, "percentages has one value or more"),
        ({"percentages": (10.0, 0.0)}, r"each above 0 and below 100; it is \[10.0, 0.0\]"),
        ({"percentages": (100.0,)}, "below 100"),
        ({"percentages": (float("nan"),)}, "below 100"),
        ({"percentages": (50.0,) * 100}, "percentages has 100 values; at most 99"),
        ({"samples": 0}, "samples is 0; it can be 1 to 1000"),
        ({"samples": 1001}, "samples is 1001"),
        ({"squares": 1}, "squares is 1; it can be 2 to 1000"),
        ({"squares": 1001}, "squares is 1001"),
        ({"radius": 0.0}, "radius is 0.0; it is above 0 and at most 10"),
        ({"radius": -0.1}, "radius is -0.1"),
        ({"radius": 10.1}, "radius is 10.1"),
        ({"radius": float("nan")}, "radius is nan"),
        (
            {"baselines": ("random", "noise")},
            "there is no baseline 'noise'; the baselines are random, gaussian, edges, uniform",
        ),
    ],
)
def test_an_option_that_cannot_be_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        MetricOptions(**options).check()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"steps": 1},
        {"steps": 1000},
        {"steps": "fine"},
        {"percentages": (0.1, 99.9)},
        {"percentages": (50.0,) * 99},
        {"samples": 1, "squares": 2, "radius": 10.0},
        {"baselines": ()},
        {"baselines": BASELINES},
    ],
)
def test_the_edges_of_what_is_allowed_are_allowed(options: dict[str, Any]) -> None:
    MetricOptions(**options).check()


def test_a_metric_that_does_not_exist_is_named_beside_those_that_do() -> None:
    said = f"there is no metric 'accuracy'; the metrics are {', '.join(METRICS)}"
    with pytest.raises(InvalidOption, match=said):
        metric_named("accuracy")
    assert metric_named("road") is METRICS["road"]


@pytest.mark.parametrize(
    ("steps", "pixels", "expected"),
    [
        (30, 224 * 224, 1673),  # 50176 / 30 = 1672.53
        (30, 900, 30),
        (30, 16, 1),
        (3, 16, 6),
        (1, 16, 16),
        (1000, 16, 1),
        ("fine", 224 * 224, 224),
        ("fine", 16, 224),
    ],
)
def test_the_pixels_of_a_step(steps: Any, pixels: int, expected: int) -> None:
    assert step_of(MetricOptions(steps=steps), pixels) == expected


@pytest.mark.parametrize(
    ("name", "options", "passes", "maps"),
    [
        ("insertion", MetricOptions(), 29, 0),
        ("deletion", MetricOptions(), 29, 0),
        ("deletion", MetricOptions(steps="fine"), 4, 0),  # 900 pixels are four steps and a rest
        ("road", MetricOptions(), 36, 0),
        ("road_morf", MetricOptions(), 18, 0),
        ("road_lerf", MetricOptions(percentages=(20.0, 50.0)), 4, 0),
        ("confidence_drop", MetricOptions(), 1, 0),
        ("confidence_increase", MetricOptions(), 1, 0),
        ("coherency", MetricOptions(), 0, 1),
        ("complexity", MetricOptions(), 0, 0),
        ("adcc", MetricOptions(), 1, 1),
        ("arcc", MetricOptions(percentages=(50.0,)), 16, 1),
        ("sensitivity", MetricOptions(samples=7), 0, 7),
        ("infidelity", MetricOptions(squares=5), 5, 0),
        ("stability", MetricOptions(), 0, 3),
        ("energy", MetricOptions(), 0, 0),
        ("pointing", MetricOptions(), 0, 0),
        ("completeness", MetricOptions(), 0, 0),
    ],
)
def test_the_passes_that_a_metric_promises(
    name: str, options: MetricOptions, passes: int, maps: int
) -> None:
    assert sum(METRICS[name].forwards(options, 900).values()) == passes
    assert METRICS[name].maps(options) == maps


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("insertion", MetricOptions(), 7),
        ("deletion", MetricOptions(steps=1), 59),  # its two ends alone, which all maps share
        ("road_morf", MetricOptions(), 7),
        ("stability", MetricOptions(), 7),
        ("adcc", MetricOptions(), 7),
        ("confidence_drop", MetricOptions(), 59),
        ("infidelity", MetricOptions(), 59),  # all maps share the squares
        ("complexity", MetricOptions(), 59),
        ("insertion", MetricOptions(random_maps=30), 30),
        ("complexity", MetricOptions(random_maps=1), 1),
    ],
)
def test_cheap_metrics_are_compared_with_many_random_maps(
    name: str, options: MetricOptions, count: int
) -> None:
    assert METRICS[name].random_maps(options) == count


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("deletion", MetricOptions(), "by zero after preprocessing; 30 steps"),
        (
            "deletion",
            MetricOptions(deletion_to="mean", steps=7),
            "by the image's mean colour; 7 steps",
        ),
        (
            "insertion",
            MetricOptions(),
            "into the image blurred by an 11 × 11 Gaussian kernel of σ = 5",
        ),
        ("insertion", MetricOptions(steps="fine"), "steps of 224 pixels"),
        ("road", MetricOptions(percentages=(12.5, 50.0)), "12.5, 50 % removed"),
        (
            "sensitivity",
            MetricOptions(samples=3, radius=0.1),
            "over 3 images with uniform noise of ±0.1",
        ),
        ("sensitivity", MetricOptions(), "greatest ‖m − m′‖ / ‖m‖ over"),
        ("sensitivity", MetricOptions(scale_free=False), "greatest ‖m − m′‖ over"),
        ("infidelity", MetricOptions(squares=9), "over 9 random squares of 0.25 of each side"),
        ("infidelity", MetricOptions(scale_free=False), "the heat is not scaled"),
        (
            "stability",
            MetricOptions(),
            "its central 0.875 of each side, and of the image as JPEG of",
        ),
    ],
)
def test_the_convention_says_what_was_chosen(name: str, options: MetricOptions, said: str) -> None:
    assert said in METRICS[name].convention(options)


def test_every_metric_states_its_convention_and_a_sentence() -> None:
    for metric in METRICS.values():
        assert metric.summary.endswith(".")
        assert metric.convention(MetricOptions())
        assert set(metric.baselines) <= set(BASELINES)
        assert all(hasattr(MetricOptions(), name) for name in metric.options)
    assert {name for name, metric in METRICS.items() if metric.needs == "region"} == {
        "energy",
        "pointing",
    }


def test_an_option_that_is_named_by_a_metric_changes_its_convention_or_its_passes() -> None:
    other = MetricOptions(
        steps=7,
        deletion_to="mean",
        insertion_from="zero",
        percentages=(50.0,),
        samples=3,
        radius=0.5,
        squares=5,
        scale_free=False,
        region=np.ones((2, 2), bool),
    )
    for metric in METRICS.values():
        for name in metric.options:
            changed = MetricOptions(**{name: getattr(other, name)})
            assert metric.convention(changed) != metric.convention(MetricOptions()), (
                metric.name,
                name,
            )
