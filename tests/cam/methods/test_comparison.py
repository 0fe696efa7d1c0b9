"""Finer-CAM: by hand, and as its authors' code has it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pytorch_grad_cam import FinerCAM
from torch import nn

from cam import ClassTarget, Output, UnitTarget, explain
from cam.errors import MethodUnsuited
from cam.methods.comparison import finer
from tests.zoo.convolutional import small
from tests.zoo.parts import images


def test_by_hand() -> None:
    # Nearest to z_0 = 0 are the logits ln 2, -ln 2 and ln 4, with e^z = 2, 1/2, 4; ln 100 is far.
    logits = torch.tensor([0, math.log(2), math.log(100), math.log(4), -math.log(2)])
    weights = np.array([2, 4, 0.5])
    expected = -(weights * [math.log(2), math.log(4), -math.log(2)]).sum() / weights.sum()
    said = Output(logits=logits)
    assert float(finer(ClassTarget(0), said)) == pytest.approx(expected, rel=1e-5)
    assert float(finer(ClassTarget(0, against=True), said)) == pytest.approx(-expected, rel=1e-5)


def test_a_model_of_few_classes_has_fewer_rivals() -> None:
    assert float(finer(ClassTarget(0), Output(logits=torch.tensor([1.0, 3])))) == -2
    # Of three classes both others: e^z = 1 and 2 weight the differences ln 4 and ln 2.
    logits = torch.tensor([0, math.log(4), math.log(2)])
    score = finer(ClassTarget(1), Output(logits=logits))
    assert float(score) == pytest.approx((math.log(4) + 2 * math.log(2)) / 3)


@pytest.mark.filterwarnings("ignore")
def test_it_equals_pytorch_grad_cams() -> None:
    torch.manual_seed(4)
    model = nn.Sequential(small(seed=4), nn.Linear(3, 9)).eval()
    x = images(3, size=16)
    ours = explain(model, x, method="finercam", layer="0.conv2")
    layer = model.get_submodule("0.conv2")
    with FinerCAM(model, [layer]) as cam:
        cam(x)
        kept = cam.base_cam.activations_and_grads
        activations, gradients = kept.activations[0].detach().numpy(), kept.gradients[0].numpy()
        theirs = cam.base_cam.get_cam_image(x, layer, [], activations, gradients)
    for explanation, expected in zip(ours, theirs, strict=True):
        wanted = np.maximum(expected, 0)
        assert wanted.max() > 0
        np.testing.assert_allclose(explanation.map, wanted, atol=1e-5 * float(wanted.max()))


@pytest.mark.parametrize(
    ("target", "said", "words"),
    [
        (ClassTarget(0), Output(logits=torch.tensor([1.0])), "it needs a classifier's class"),
        (ClassTarget(0), Output(segments=torch.ones(3, 2, 2)), "it needs a classifier's class"),
        (ClassTarget(0, minus=1), Output(logits=torch.ones(3)), "leave out minus and of"),
        (ClassTarget(0, of="probability"), Output(logits=torch.ones(3)), "leave out minus and of"),
    ],
)
def test_what_it_cannot_compare(target: ClassTarget, said: Output, words: str) -> None:
    with pytest.raises(MethodUnsuited, match=words):
        finer(target, said)


def test_what_is_no_class_is_refused() -> None:
    with pytest.raises(MethodUnsuited, match="it needs a classifier's class"):
        explain(small(), images(1), method="finercam", target=UnitTarget("relu1", 0), layer="conv1")


@pytest.mark.parametrize("gap", [1, 15, 19, 25, 40, 110])
def test_the_surer_the_model_the_better_it_holds(gap: float) -> None:
    """∂y/∂z_c = 1, however small the rivals' probabilities are: their weights sum to 1."""
    logits = torch.tensor([gap, 0, -0.5, -1, -2], requires_grad=True)
    score = finer(ClassTarget(0), Output(logits=logits))
    (gradient,) = torch.autograd.grad(score, logits)
    assert float(gradient[0]) == pytest.approx(1, rel=1e-5)
    weights = np.exp([0, -0.5, -1]) / np.exp([0, -0.5, -1]).sum()
    assert score.item() == pytest.approx(gap - (weights * [0, -0.5, -1]).sum(), rel=1e-5)
