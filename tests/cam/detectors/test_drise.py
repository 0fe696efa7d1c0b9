"""D-RISE's similarity and ODAM's levels, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import cam
from cam.detectors.methods import fused_levels
from cam.errors import CamError, MethodUnsuited
from tests.cam.detectors.test_detectors import random_masks_of
from tests.zoo.convolutional import small
from tests.zoo.detectors import Found, says

IMAGE = torch.full((1, 3, 32, 32), 0.5)
BUDGET = 40
MASKS = random_masks_of(IMAGE, BUDGET)
SCALE = MASKS.mean(0).numpy() / 0.5
"""The map of a box whose similarity is 1 under each mask."""
MINE = (0.0, 0.0, 8.0, 8.0)
THIRD = (4.0, 0.0, 12.0, 8.0)
"""It overlaps MINE by 32 of 96."""


def similarity(model: nn.Module, target: cam.Target) -> float:
    """What is the same under each mask."""
    (found,) = cam.explain(model, IMAGE, target=target, method="drise", budget=BUDGET)
    share = found.map / SCALE
    np.testing.assert_allclose(share, share[0, 0], rtol=1e-4, atol=1e-7)
    return float(share[0, 0])


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([(MINE, 1, 0.5)], 0.5),
        ([(MINE, 1, 0.5), (THIRD, 1, 0.9)], 0.5),  # 0.9 / 3 is less
        ([(MINE, 1, 0.2), (THIRD, 1, 0.9)], 0.3),  # and here more
        ([(MINE, 1, 0.2), (THIRD, 2, 0.9)], 0.2),  # of another class it is nothing
        ([(MINE, 1, 0.2), (THIRD, 2, 0.9), (THIRD, 1, 0.75)], 0.25),
    ],
)
def test_the_best_of_place_class_and_score(found: list[Found], expected: float) -> None:
    assert similarity(says(found), cam.ClassTarget(1, box=MINE)) == pytest.approx(expected)


def test_classes_are_compared_by_their_angle() -> None:
    """P = (3, 4) / 5 and (4, 3) / 5: cos = 24 / 25, whatever the labels are."""
    model = says([(MINE, 1, 0.1), (THIRD, 0, 0.9)], classes=torch.tensor([[0.3, 0.4], [0.8, 0.6]]))
    assert similarity(model, cam.ClassTarget(1, box=MINE)) == pytest.approx(0.9 / 3 * 24 / 25)


def test_where_nothing_is_found_nothing_speaks_for_the_box() -> None:
    model = says([(MINE, 1, 0.5)], dark=[])
    target = cam.ClassTarget(1, box=MINE)
    (found,) = cam.explain(model, IMAGE, target=target, method="drise", budget=BUDGET)
    light = MASKS[:, 3, 3] * 0.5 >= 0.25
    assert 5 < light.sum() < BUDGET - 5
    expected = 0.5 * MASKS[light].sum(0) / (BUDGET * 0.5)
    np.testing.assert_allclose(found.map, expected.numpy(), rtol=1e-4)


def test_several_boxes_share_the_masks() -> None:
    model = says([(MINE, 1, 0.5), (THIRD, 2, 0.25)])
    targets = [cam.ClassTarget(1, box=MINE), cam.ClassTarget(2, box=THIRD)]
    found = cam.explain(model, IMAGE, target=targets, method="drise", budget=BUDGET)
    for each, expected in zip(found, (0.5, 0.25), strict=True):
        np.testing.assert_allclose(each.map, expected * SCALE, rtol=1e-4)


def test_its_steps_are_told_as_they_are_done() -> None:
    target = cam.ClassTarget(1, box=MINE)
    question = cam.Question((target,), "drise", ("input",), BUDGET)
    steps = cam.explain_in_steps(says([(MINE, 1, 0.5)]), IMAGE[0], question, chunk=16)
    told = [(each.done, each.total) for each in steps]
    assert told == [(16, BUDGET), (32, BUDGET), (40, BUDGET)]


@pytest.mark.parametrize("method", ["drise", "odam"])
def test_a_classifier_has_no_boxes(method: str) -> None:
    with pytest.raises(MethodUnsuited, match=r"a box of a detector|the boxes of a detector"):
        cam.explain(small(), torch.rand(1, 3, 8, 8), method=method)


def test_what_speaks_against_a_box_is_no_question_for_drise() -> None:
    target = cam.ClassTarget(1, box=MINE, against=True)
    with pytest.raises(MethodUnsuited, match="explains only the evidence for a box"):
        cam.explain(says([(MINE, 1, 0.5)]), IMAGE, target=target, method="drise", budget=4)


def test_a_box_that_is_not_there_is_refused() -> None:
    with pytest.raises(CamError):
        cam.explain(
            says([(MINE, 1, 0.5)]),
            IMAGE,
            target=cam.ClassTarget(2, box=MINE),
            method="drise",
            budget=4,
        )


def test_levels_of_any_shape_by_hand() -> None:
    """The finest has most positions, not most rows: 2 × 3, not 5 × 1, whose share is 5 of 6."""
    maps = {"a": np.ones((2, 3), np.float32), "b": np.full((5, 1), 2, np.float32)}
    expected = np.full((2, 3), 1 + 2 * 5 / 6, np.float32)
    np.testing.assert_allclose(fused_levels(maps), expected, rtol=1e-6)
    np.testing.assert_allclose(fused_levels(dict(reversed(maps.items()))), expected, rtol=1e-6)
