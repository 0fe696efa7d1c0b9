"""Batch norms are folded into convolutions where nothing else sees the convolution's output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from cam.runtimes.folding import fold
from tests.zoo.parts import Net, as_after_training, images


@pytest.mark.parametrize(
    ("name", "count"), [("resnet18", 20), ("mobilenet_v3_small", 34), ("densenet121", 59)]
)
def test_the_outputs_stay(name: str, count: int) -> None:
    """In a DenseNet half of the norms come before their convolutions, and stay."""
    torch.manual_seed(0)
    model = as_after_training(torchvision.models.get_model(name, weights=None))
    x = images(2, size=64)
    layers = [each for each, _ in model.named_modules() if each.count(".") < 2 and each]
    with torch.no_grad():
        before = model(x)
        assert fold(model, x[:1], layers[-3]) == count
        torch.testing.assert_close(model(x), before, rtol=1e-3, atol=1e-3 * float(before.std()))
    assert not any(module._forward_hooks for module in model.modules())


def plain(x: Tensor, first: nn.Module, last: nn.Module, norm: nn.Module) -> Any:
    return last(norm(first(x)))


def skipped(x: Tensor, first: nn.Module, last: nn.Module, norm: nn.Module) -> Any:
    made = first(x)
    return last(norm(made)) + last(made)


def block(conv: nn.Module, norm: nn.Module, function: Callable[..., Tensor] = plain) -> nn.Module:
    """A convolution, its norm, and what else may become of the convolution's output."""
    return Net(function, first=nn.Sequential(conv), last=nn.ReLU(), norm=norm)


def conv(**given: object) -> nn.Conv2d:
    torch.manual_seed(3)
    return nn.Conv2d(3, 3, 3, padding=1, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("layer", ["first", "first.0"])
def test_the_convolution_that_makes_the_layer_stays(layer: str) -> None:
    model = as_after_training(block(conv(), nn.BatchNorm2d(3)))
    assert fold(model, images(1), layer) == 0
    assert fold(model, images(1), "norm") == 1
    assert isinstance(model.get_submodule("norm"), nn.Identity)


@pytest.mark.parametrize(
    "model",
    [
        block(conv(), nn.BatchNorm2d(3), skipped),
        block(conv(), nn.BatchNorm2d(3), lambda x, **parts: plain(plain(x, **parts), **parts)),
        block(conv(), nn.GroupNorm(3, 3)),
        block(conv(), nn.BatchNorm2d(3, track_running_stats=False)),
        block(parametrizations.weight_norm(conv()), nn.BatchNorm2d(3)),
        block(nn.ConvTranspose2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)),
    ],
    ids=["skipped", "twice", "group norm", "no statistics", "weight norm", "transposed"],
)
def test_what_is_not_folded(model: nn.Module) -> None:
    before = model.eval()(images(2))
    assert fold(model, images(1), "last") == 0
    torch.testing.assert_close(model(images(2)), before)


def test_a_hook_at_the_norm_and_half_precision_stay() -> None:
    model = as_after_training(block(conv(bias=False), nn.BatchNorm2d(3))).bfloat16()
    seen: list[Tensor] = []
    model.get_submodule("norm").register_forward_hook(
        lambda module, args, output: seen.append(output)
    )
    x = images(2).bfloat16()
    model(x)
    assert fold(model, x[:1], "norm") == 1
    model(x)
    before, _, after = seen
    assert after.dtype == torch.bfloat16
    torch.testing.assert_close(after, before, rtol=0.05, atol=0.1)
