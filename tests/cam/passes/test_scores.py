"""Scores that are gathered from a batch's tensors equal those of one image after another."""

from __future__ import annotations

from itertools import product
from typing import Literal

import pytest
import torch
from torch import Tensor

from cam import ClassTarget, Question
from cam.outputs.output import scale_of
from cam.outputs.outputs import Outputs
from cam.passes.scores import Scores, Targets

BATCH, CLASSES = 7, 4


def numbers_of(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


OUTPUTS = {
    "softmax": Outputs(logits=numbers_of(BATCH, CLASSES)),
    "sigmoid": Outputs(logits=numbers_of(BATCH, CLASSES), activation="sigmoid"),
    "value": Outputs(logits=numbers_of(BATCH, CLASSES), meaning="value"),
    "segments": Outputs(segments=numbers_of(BATCH, CLASSES, 6, 8)),
    "segments of sigmoids": Outputs(
        segments=numbers_of(BATCH, CLASSES, 6, 8), activation="sigmoid"
    ),
}
OF: tuple[Literal["logit", "probability"], ...] = ("logit", "probability")
TARGETS = [
    ClassTarget(index, minus=minus, against=against, of=of, background=background)
    for index, minus, against, of, background in product(
        (None, 0, 3), (None, 1, 2), (False, True), OF, (None, 2)
    )
]


def gathered(outputs: Outputs, asked: list[ClassTarget]) -> tuple[Targets, Scores]:
    targets = Targets([Question((each,), "gradcam", ("a",)) for each in asked], outputs)
    scores = targets.at_once(0)
    assert scores is not None
    assert scores.items == list(range(len(asked)))
    return targets, scores


@pytest.mark.parametrize("kind", list(OUTPUTS))
@pytest.mark.parametrize("start", range(0, len(TARGETS), BATCH))
def test_they_equal_those_of_each_image(kind: str, start: int) -> None:
    outputs = OUTPUTS[kind]
    asked = TARGETS[start : start + BATCH]
    if kind == "value":
        asked = [target for target in asked if target.of == "logit"] or [ClassTarget()]
    asked = asked + asked[:1] * (BATCH - len(asked))
    _, scores = gathered(outputs, asked)
    numbers = scores.numbers(iter(scores.tensors))
    for item, target in enumerate(asked):
        output = outputs[item]
        if target.index is None and outputs.kind != "value" and target.minus is not None:
            best = target._predicted(output)
            if best == target.minus:  # refused when the answer is read
                continue
        resolved = target.resolve(output)
        score, probability = numbers[item]
        assert score == pytest.approx(float(resolved.score(output)), abs=1e-5)
        assert probability == pytest.approx(resolved.probability(output), abs=1e-6)


def test_items_with_fewer_targets_and_others_are_left_out() -> None:
    """Of three images the first has two targets, the second one, and the third a box."""
    first = Question((ClassTarget(1), ClassTarget(2)), "gradcam", ("a",))
    second = Question((ClassTarget(),), "gradcam", ("a",))
    third = Question((ClassTarget(0, box=(0, 0, 2, 2)),), "gradcam", ("a",))
    outputs = Outputs(segments=numbers_of(3, CLASSES, 6, 8), size=(6, 8))
    targets = Targets([first, second, third], outputs)
    assert targets.rounds == 2
    for turn, items in ((0, [0, 1]), (1, [0])):
        scores = targets.at_once(turn)
        assert scores is not None
        assert scores.items == items
    (resolved,) = targets.one_by_one(0).values()
    assert isinstance(resolved, ClassTarget)
    assert resolved.mask is not None
    assert targets.one_by_one(1) == {}
    assert targets.at_once(2) is None


def test_a_class_that_there_is_not_does_not_spoil_the_others() -> None:
    outputs = OUTPUTS["softmax"]
    _, scores = gathered(outputs, [ClassTarget(0), ClassTarget(99), *[ClassTarget(1)] * 5])
    assert outputs.logits is not None
    assert scores.values[0] == outputs.logits[0, 0]
    assert scores.values[2:].tolist() == outputs.logits[2:, 1].tolist()


@pytest.mark.parametrize("of", OF)
def test_the_factors_of_half_precision(of: Literal["logit", "probability"]) -> None:
    """Of probabilities near 1, whose gradients are small, each its own power of two."""
    logits = torch.tensor([[0.0, 1], [0, 9], [0, 18], [0, -40]], requires_grad=True)
    outputs = Outputs(logits=logits * 1)
    target = ClassTarget(1, of=of)
    _, scores = gathered(outputs, [target] * 4)
    alone: list[float] = []
    for row in logits:
        single: Tensor = row.detach()[None].requires_grad_() * 1
        one = Outputs(logits=single)
        alone.append(scale_of(one[0], target.score(one[0])))
    assert scores.scales(outputs).tolist() == alone
