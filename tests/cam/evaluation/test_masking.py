"""Confidence, coherency, complexity and ADCC: by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pytorch_grad_cam.metrics.arcc import ARCC

from cam import evaluate
from cam.agreement import pearson
from cam.errors import MethodUnsuited
from cam.evaluation.metrics import Scores, harmonic
from cam.explanation import Map
from tests.cam.evaluation.asked import SIGMOID, alone, explained
from tests.zoo.by_hand import Numbers, Weighed, drawn, picture, tensor, weighed

ARCC_PARTS = ("coherency", "complexity", "arcc")
PARTS = ("confidence_drop", "confidence_increase", "coherency", "complexity", "adcc")


def of_map(model: Weighed, image: Numbers, heat: object, *metrics: str) -> Scores:
    return evaluate(
        model,
        tensor(image),
        np.asarray(heat, np.float32),
        target=1,
        metrics=metrics,
        options=alone(),
        reading=SIGMOID,
    )


def scaled(heat: Numbers) -> Numbers:
    return np.asarray((heat - heat.min()) / (heat.max() - heat.min()))


# The weights' seeds: with some the masked image is less probable, with others more.
@pytest.mark.parametrize("seed", range(5))
def test_every_part_of_a_map_that_is_made_anew(seed: int) -> None:
    model, image = weighed(2, 4, 4, seed=seed), picture(2, 4, 4)
    found = explained(model, image)
    np.testing.assert_allclose(found.map, model.heat(image), atol=1e-6)
    scores = evaluate(model, tensor(image), found, metrics=PARTS, options=alone(), reading=SIGMOID)
    heat = model.heat(image)
    masked = image * scaled(heat)
    whole, seen = model.chance(image), model.chance(masked)
    drop = max(0, whole - seen) / whole
    alike = (1 + np.corrcoef(heat.ravel(), model.heat(masked).ravel())[0, 1]) / 2
    covered = scaled(heat).mean()
    expected = {
        "confidence_drop": drop,
        "confidence_increase": float(seen > whole),
        "coherency": alike,
        "complexity": covered,
        "adcc": 3 / (1 / alike + 1 / (1 - covered) + 1 / (1 - drop)),
    }
    for name, value in expected.items():
        assert scores[name].value == pytest.approx(value, abs=1e-6), name
    assert scores["adcc"].details == {
        "coherency": pytest.approx(alike),
        "complexity": pytest.approx(covered),
        "confidence_drop": pytest.approx(drop, abs=1e-6),
    }
    assert scores["confidence_drop"].details == {
        "whole": pytest.approx(whole),
        "masked": pytest.approx(seen),
    }


def test_the_seeds_above_have_drops_and_increases() -> None:
    found = set()
    for seed in range(5):
        model, image = weighed(2, 4, 4, seed=seed), picture(2, 4, 4)
        masked = image * scaled(model.heat(image))
        found.add(model.chance(masked) > model.chance(image))
    assert found == {True, False}


@pytest.mark.parametrize("seed", range(5))
def test_arcc_of_its_parts(seed: int) -> None:
    """Its ROAD is that of 20, 40, 60 and 80 %, whatever percentages are asked for."""
    model, image = weighed(2, 6, 6, seed=seed), picture(2, 6, 6)
    found = explained(model, image)

    def scored(*metrics: str, **options: object) -> Scores:
        return evaluate(
            model,
            tensor(image),
            found,
            metrics=metrics,
            options=alone(**options),
            reading=SIGMOID,
        )

    scores = scored(*ARCC_PARTS, percentages=(30.0,))
    removed = scored("road", percentages=(20.0, 40.0, 60.0, 80.0))["road"].value
    alike, covered = scores["coherency"].value, scores["complexity"].value
    assert alike is not None
    assert covered is not None
    assert removed is not None
    assert removed > 0
    expected = 3 / (1 / alike + 1 / (1 - covered) + 1 / (2 * removed))
    assert scores["arcc"].value == pytest.approx(expected, abs=1e-6)
    assert scores["arcc"].details == {
        "coherency": pytest.approx(alike),
        "complexity": pytest.approx(covered),
        "road": pytest.approx(removed),
    }
    # pytorch-grad-cam's formula, of the same parts.
    peer = ARCC(None)
    peer.coherency, peer.complexity, peer.road = (
        lambda *given, part=part: np.array([part]) for part in (alike, covered, removed)
    )
    assert scores["arcc"].value == pytest.approx(float(peer(None, None, None, None)[0]), abs=1e-6)


def test_a_map_that_removes_the_wrong_pixels_has_no_arcc() -> None:
    """ROAD is below 0 where the coldest pixels count more than the hottest."""
    model, image = weighed(2, 6, 6), picture(2, 6, 6)
    found = explained(model, image)
    opposite = replace(found, map=-(drawn(2, 6, 6) * image).sum(0).astype(np.float32))
    right, wrong = (
        evaluate(model, tensor(image), each, metrics=["arcc"], options=alone(), reading=SIGMOID)[
            "arcc"
        ]
        for each in (found, opposite)
    )
    assert right.value
    removed = wrong.details["road"]
    assert isinstance(removed, float)
    assert removed < 0
    assert wrong.value == 0


# One logit, the sum of the pixels times log 3: with all four at 1/4 the probability is 3/4.
SUM = Weighed(np.full((1, 2, 2), np.log(3))).eval()
QUARTERS = np.full((1, 2, 2), 0.25)


@pytest.mark.parametrize(
    ("heat", "masked", "complexity"),
    [
        # Nothing is left: 1 / (1 + 1).
        ([[0, 0], [0, 0]], 1 / 2, 0.0),
        # The same heat everywhere covers all.
        ([[7, 7], [7, 7]], 3 / 4, 1.0),
        ([[-7, -7], [-7, -7]], 1 / 2, 0.0),
        # Half of the pixels: 1 / (1 + 3^−½).
        ([[5, 5], [0, 0]], 1 / (1 + 3**-0.5), 0.5),
        ([[5, 5], [-5, -5]], 1 / (1 + 3**-0.5), 0.5),
        # Scaled to 0, 1/2, 1/2 and 1: two pixels in all.
        ([[1, 2], [2, 3]], 1 / (1 + 3**-0.5), 0.5),
        ([[0, 0], [0, 2]], 1 / (1 + 3**-0.25), 0.25),
    ],
)
def test_masked_by_hand(heat: object, masked: float, complexity: float) -> None:
    scores = of_map(SUM, QUARTERS, heat, "confidence_drop", "confidence_increase", "complexity")
    assert scores["complexity"].value == pytest.approx(complexity)
    drop = scores["confidence_drop"]
    assert drop.details == {"whole": pytest.approx(3 / 4), "masked": pytest.approx(masked)}
    assert drop.value == pytest.approx((3 / 4 - masked) / (3 / 4), abs=1e-6)
    assert scores["confidence_increase"].value == 0


def test_an_increase_is_no_drop() -> None:
    """The second pixel speaks against the class: without it the probability is 3/4, not 1/2."""
    model = Weighed(np.log(3) * np.array([[[1.0, -1]]])).eval()
    scores = of_map(model, np.ones((1, 1, 2)), [[1, 0]], "confidence_drop", "confidence_increase")
    assert scores["confidence_drop"].value == 0
    assert scores["confidence_increase"].value == 1
    assert scores["confidence_increase"].details == {
        "whole": pytest.approx(1 / 2),
        "masked": pytest.approx(3 / 4),
    }


def test_a_constant_map_has_no_coherency_and_no_adcc() -> None:
    model, image = Weighed(np.ones((1, 4, 4))).eval(), np.full((1, 4, 4), 0.5)
    found = explained(model, image)
    assert np.ptp(found.map) == 0
    scores = evaluate(model, tensor(image), found, metrics=PARTS, options=alone(), reading=SIGMOID)
    assert scores["coherency"].value == 0
    assert scores["complexity"].value == 1
    assert scores["adcc"].value == 0
    assert scores["confidence_drop"].value == 0


def test_a_map_of_nothing_has_no_adcc() -> None:
    model, image = Weighed(-np.ones((1, 4, 4))).eval(), picture(1, 4, 4)
    found = explained(model, image)
    assert not found.map.any()
    scores = evaluate(model, tensor(image), found, metrics=PARTS, options=alone(), reading=SIGMOID)
    assert scores["adcc"].value == 0
    assert scores["adcc"].details["complexity"] == 0


def test_coherency_is_of_the_maps_as_they_are_with_what_lies_below_zero() -> None:
    """A signed map has its own correlation, not that of the part above 0."""
    model, image = weighed(1, 4, 4), picture(1, 4, 4)
    signed = (drawn(1, 4, 4) * image)[0]
    found = replace(explained(model, image), map=signed.astype(np.float32), signed=True)
    scores = evaluate(
        model, tensor(image), found, metrics=["coherency"], options=alone(), reading=SIGMOID
    )
    masked = (drawn(1, 4, 4) * image * scaled(signed))[0]
    expected = (1 + np.corrcoef(signed.ravel(), masked.ravel())[0, 1]) / 2
    assert scores["coherency"].value == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1.0, 1.0, 1.0), 1.0),
        ((0.5, 0.5, 0.5), 0.5),
        ((1.0, 0.5, 0.25), 3 / 7),
        ((0.2, 0.3, 0.6), 0.3),  # 3 / (5 + 10/3 + 5/3)
        ((1.0, 0.0, 1.0), 0.0),
        ((0.0, 0.0, 0.0), 0.0),
        ((1.0, -1e-9, 1.0), 0.0),
        ((0.5,), 0.5),
    ],
)
def test_the_harmonic_mean(values: tuple[float, ...], expected: float) -> None:
    assert harmonic(*values) == pytest.approx(expected)


def of(*rows: list[float]) -> Map:
    return np.array(rows, np.float32)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (of([1, 2], [3, 4]), of([10, 20], [30, 40]), 1.0),
        (of([1, 2], [3, 4]), of([4, 3], [2, 1]), -1.0),
        # Deviations −1.5 −.5 .5 1.5 and −1 −1 −1 3: 6 / √(5 · 12).
        (of([1, 2], [3, 4]), of([0, 0], [0, 4]), 6 / np.sqrt(60)),
        (of([1, 1], [1, 1]), of([1, 2], [3, 4]), None),
        (of([1, 2], [3, 4]), of([0, 0], [0, 0]), None),
    ],
)
def test_pearson_by_hand(first: Map, second: Map, expected: float | None) -> None:
    found = pearson(first, second)
    assert found == (expected if expected is None else pytest.approx(expected))
    assert pearson(second, first) == found


def test_pearson_of_great_numbers_that_differ_little() -> None:
    small = drawn(8, 8)
    great = (4096 + small).astype(np.float32)
    exact = np.corrcoef((great.astype(np.float64) - 4096).ravel(), small.ravel())[0, 1]
    assert pearson(great, small.astype(np.float32)) == pytest.approx(exact, abs=1e-9)


def test_adcc_and_its_parts_share_their_passes() -> None:
    model, image = weighed(1, 4, 4), picture(1, 4, 4)
    found = explained(model, image)
    together = evaluate(
        model, tensor(image), found, metrics=PARTS, options=alone(), reading=SIGMOID
    )
    assert model.passes == 1 + 1 + 1  # the image, the masked image, and its map
    for name in PARTS:
        apart = evaluate(
            model, tensor(image), found, metrics=[name], options=alone(), reading=SIGMOID
        )
        assert apart[name] == together[name]


@pytest.mark.parametrize("metric", ["coherency", "adcc", "arcc"])
def test_a_map_alone_has_no_coherency(metric: str) -> None:
    with pytest.raises(MethodUnsuited, match=f"{metric} makes maps of changed images"):
        of_map(SUM, QUARTERS, [[1, 0], [0, 0]], metric)
