"""The modules after a layer, run on outputs that were computed elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cam.errors import LayerNotSpatial
from cam.outputs.outputs import watching
from cam.outputs.reading import logits_of
from cam.runtimes.tail import Tail
from tests.zoo.convolutional import segmenter, skips, small
from tests.zoo.parts import hook_count, images
from tests.zoo.transformers import of_timm


@pytest.mark.parametrize(
    ("build", "layer", "inputs", "size"),
    [
        (small, "conv2", (), 8),
        (lambda: small(inplace=True), "relu1", (), 8),
        (skips, "middle", ("first", "side"), 8),
        (of_timm, "blocks.2.norm1", ("blocks.1",), 64),
        (segmenter, "backbone.6", ("backbone.4",), 64),
    ],
)
def test_it_gives_what_the_model_gives(
    build: Callable[[], nn.Module], layer: str, inputs: tuple[str, ...], size: int
) -> None:
    torch.manual_seed(0)
    model = build().eval()
    x = images(3, size=size)
    tail = Tail(model, layer, x[:1], logits_of)
    assert tail.inputs == inputs
    with torch.no_grad(), watching(model, [layer, *inputs]) as seen:
        expected = logits_of(model(x))
    leaf = seen[layer].clone().requires_grad_()
    found = logits_of(tail.output(x, {**seen, layer: leaf}))
    torch.testing.assert_close(found, expected)
    (gradient,) = torch.autograd.grad(found.square().sum(), leaf)
    assert gradient.abs().sum() > 0
    assert hook_count(model) == 0
    assert not any("forward" in vars(module) for module in model.modules())


def test_the_trunk_does_not_run() -> None:
    model = skips()
    x = images(2)
    tail = Tail(model, "middle", x[:1], logits_of)
    with torch.no_grad(), watching(model, ["middle", *tail.inputs]) as seen:
        model(x)
    ran: list[str] = []
    for name, module in model.named_children():
        module.register_forward_pre_hook(lambda *_, name=name: ran.append(name))

    def fails(*_: Any) -> Tensor:
        raise AssertionError("the trunk runs")

    for name in ("first", "unused", "side", "middle"):
        model.get_submodule(name)._conv_forward = fails  # type: ignore[assignment]
    assert tail.output(x, seen).shape == (2, 3)
    assert "head" in ran


def test_an_output_that_is_no_tensor_cannot_be_handed_over() -> None:
    with pytest.raises(LayerNotSpatial, match="reads the output of 'pair' as well"):
        Tail(skips(pair=True), "middle", images(1), logits_of)
