"""Models that normalise their input in place: the caller's tensor stays, and each pass sees it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cam
from cam import ClassTarget, Question
from cam.passes.batch_dependence import conduct_of
from tests.zoo.convolutional import normalising
from tests.zoo.parts import as_after_training, pooled

LAYER = "net.6"
CLASS = ClassTarget(1)


def trained(*, in_place: bool) -> nn.Module:
    """A classifier with the statistics and weights of a trained one.

    Args:
        in_place: whether it normalises the caller's own tensor.
    """
    net = pooled(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Linear(16, 5)),
    )
    seeded = torch.Generator().manual_seed(3)
    for parameter in net.parameters():
        parameter.data = torch.randn(parameter.shape, generator=seeded) * 0.3
    return normalising(as_after_training(net), in_place=in_place)


@pytest.fixture
def image() -> Tensor:
    return torch.rand(3, 28, 28, generator=torch.Generator().manual_seed(0))


def explained(method: str) -> Callable[[nn.Module, Tensor], list[float]]:
    def explain(model: nn.Module, image: Tensor) -> list[float]:
        explanations = cam.explain(model, image[None], target=1, method=method)
        return [float(np.abs(each.map).sum()) for each in explanations]

    return explain


def predicted(model: nn.Module, image: Tensor) -> list[float]:
    (answer,) = cam.explain_batch(model, image[None], [Question((), "gradcam", ())])
    assert not isinstance(answer, cam.CamError)
    return [float(answer.output.numbers[0].sum())]


def scored(model: nn.Module, image: Tensor) -> list[float]:
    judged = np.linspace(0, 1, 196, dtype=np.float32).reshape(14, 14)
    scores = cam.evaluate(model, image, judged, target=1, metrics=["deletion", "insertion"])
    return [scores[name].value or 0.0 for name in ("deletion", "insertion")]


def observed(model: nn.Module, image: Tensor) -> list[float]:
    (seen,) = cam.observe(model, image[None], [LAYER], CLASS)
    return [float(np.abs(seen.output).sum())]


def embedded(model: nn.Module, image: Tensor) -> list[float]:
    return [float(cam.embed(model, image[None], LAYER).sum())]


def factorised(model: nn.Module, image: Tensor) -> list[float]:
    return [float(each.map.sum()) for each in cam.factorise(model, image[None], LAYER, 2)]


def judged_as_a_batch(model: nn.Module, image: Tensor) -> list[float]:
    conduct_of(model, image[None], many=True)
    return []


@pytest.mark.parametrize(
    "work",
    [
        *map(explained, ("gradcam", "eigencam", "finercam", "scorecam", "integratedgradients")),
        predicted,
        scored,
        observed,
        embedded,
        factorised,
        judged_as_a_batch,
    ],
)
def test_a_model_that_changes_its_input_is_explained_as_one_that_does_not(
    image: Tensor, work: Callable[[nn.Module, Tensor], list[float]]
) -> None:
    given = image.clone()
    found = work(trained(in_place=True), given)
    assert torch.equal(given, image)
    assert found == pytest.approx(work(trained(in_place=False), image), rel=1e-5)
