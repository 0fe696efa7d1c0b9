"""Energy, pointing and completeness: by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cam import evaluate, explain
from cam.evaluation.metrics import MetricOptions, Score
from cam.progress import Completeness
from tests.cam.evaluation.asked import SIGMOID, alone, explained
from tests.zoo.by_hand import drawn, picture, tensor, weighed

MODEL, IMAGE = weighed(1, 4, 4), picture(1, 4, 4)
REGION = np.zeros((4, 4), bool)
REGION[:2, :2] = True
HEAT = np.array([[1, 2, 0, 0], [3, 0, -4, 0], [0, 0, 6, 0], [0, 0, 0, 8]], np.float32)


def score(metric: str, heat: object, region: object = REGION) -> Score:
    found = evaluate(
        MODEL,
        tensor(IMAGE),
        np.asarray(heat, np.float32),
        target=1,
        metrics=[metric],
        options=alone(region=region),
        reading=SIGMOID,
    )
    return found[metric]


@pytest.mark.parametrize(
    ("heat", "expected"),
    [
        (HEAT, 6 / 20),  # what is below 0 is not heat
        (np.ones((4, 4)), 4 / 16),
        (np.array([[5.0, 0], [0, 0]]).repeat(2, 0).repeat(2, 1), 1.0),
        (REGION * -1.0 + (~REGION) * 2, 0.0),
    ],
)
def test_energy_by_hand(heat: object, expected: float) -> None:
    found = score("energy", heat)
    assert found.value == pytest.approx(expected)
    assert found.details == {"region_share": 0.25}
    assert found.warning is None


def test_energy_is_of_the_map_at_the_size_of_the_input() -> None:
    """One hot cell of 2 × 2, resized: per axis the four pixels have 1, 3/4, 1/4 and 0 of it."""
    along = np.array([1, 0.75, 0.25, 0])
    whole = np.outer(along, along)
    expected = whole[:2, :2].sum() / whole.sum()  # 1.75² / 2²
    assert expected == pytest.approx((1.75 / 2) ** 2)
    assert score("energy", [[1, 0], [0, 0]]).value == pytest.approx(expected)


def test_a_map_of_zeros_has_no_energy() -> None:
    found = score("energy", np.zeros((4, 4)))
    assert found.value is None
    assert found.warning


@pytest.mark.parametrize(
    ("heat", "expected"),
    [
        (HEAT, 0.0),
        (HEAT * REGION, 1.0),
        # Two of three hottest pixels lie inside.
        ([[9, 0, 0, 0], [0, 9, 0, 0], [0, 0, 9, 0], [0, 0, 0, 8]], 2 / 3),
        (np.ones((4, 4)), 4 / 16),
        (np.zeros((4, 4)), 4 / 16),
        (-1 - 3.0 * ~REGION, 1.0),  # the hottest of what is below 0
    ],
)
def test_pointing_by_hand(heat: object, expected: float) -> None:
    found = score("pointing", heat)
    assert found.value == pytest.approx(expected)
    assert found.details == {"region_share": 0.25}


def test_the_uniform_baseline_has_the_regions_share() -> None:
    found = evaluate(
        MODEL,
        tensor(IMAGE),
        HEAT,
        target=1,
        metrics=["energy", "pointing"],
        options=MetricOptions(region=REGION, baselines=("uniform",)),
        reading=SIGMOID,
    )
    assert found["energy"].baselines == {"uniform": pytest.approx(0.25)}
    assert found["pointing"].baselines == {"uniform": pytest.approx(0.25)}


@pytest.mark.parametrize(
    ("attributed", "difference", "expected"),
    [(3.0, 4.0, 0.25), (4.0, 4.0, 0.0), (-3.0, -4.0, 0.25), (-4.0, 4.0, 2.0), (5.0, -2.0, 3.5)],
)
def test_completeness_by_hand(attributed: float, difference: float, expected: float) -> None:
    found = explained(MODEL, IMAGE)
    found = replace(found, completeness=Completeness(attributed, difference))
    scored = evaluate(MODEL, tensor(IMAGE), found, metrics=["completeness"], reading=SIGMOID)
    assert scored["completeness"].value == pytest.approx(expected)
    assert scored["completeness"].baselines == {}
    assert scored["completeness"].details == {"attributed": attributed, "difference": difference}
    assert scored["completeness"].warning is None


def test_integrated_gradients_of_a_linear_model_are_complete() -> None:
    (found,) = explain(
        MODEL, tensor(IMAGE)[None], target=1, method="integratedgradients", budget=10
    )
    scored = evaluate(MODEL, tensor(IMAGE), found, metrics=["completeness"], reading=SIGMOID)
    assert scored["completeness"].value == pytest.approx(0, abs=1e-5)
    weights = drawn(1, 4, 4)
    expected = float((weights * IMAGE).sum())
    assert scored["completeness"].details["difference"] == pytest.approx(expected, rel=1e-5)


def test_completeness_without_a_promise_or_a_difference_has_no_value() -> None:
    found = explained(MODEL, IMAGE)
    scored = evaluate(MODEL, tensor(IMAGE), found, metrics=["completeness"], reading=SIGMOID)
    assert scored["completeness"].value is None
    assert "not meant to add up" in str(scored["completeness"].warning)
    found = replace(found, completeness=Completeness(1.0, 0.0))
    scored = evaluate(MODEL, tensor(IMAGE), found, metrics=["completeness"], reading=SIGMOID)
    assert scored["completeness"].value is None
    assert scored["completeness"].warning
