"""Which layers a model has, what comes out of them, and which one a CAM wants by default."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cam.errors import NoTargetLayer
from cam.evaluation import evaluating
from cam.targets import logits_of

_POOLING = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)


@dataclass(frozen=True)
class Layer:
    """One module of a model as a forward pass found it."""

    name: str
    type: str
    """The module's class name."""
    shape: tuple[int, ...] | None
    """The output's shape for one image, without the batch dimension; None if it is no tensor."""
    problem: str | None
    """Why no map can be made at this layer, as half a sentence; None if one can."""
    pooling: bool = False
    """An adaptive pooling layer: explainable, but coarser than what it pools."""

    @property
    def explainable(self) -> bool:
        return self.problem is None


def survey(model: nn.Module, image: Tensor) -> list[Layer]:
    """Every module of `model` in the order in which they finish on `image`; then those that never
    ran.

    A block finishes after its last layer, so of modules that share one output the outermost comes
    last. Runs one forward and one backward pass in eval mode and leaves the model as it found it.

    Args:
        image: one image, float (1, C, H, W), on the model's device and in its dtype.

    Raises:
        NotLogits: if the model's output holds no (batch, classes) tensor.
    """
    names = {module: name for name, module in model.named_modules() if name}
    outputs: dict[str, Any] = {}
    runs: Counter[str] = Counter()

    def note(name: str, module: nn.Module, args: Any, output: Any) -> None:
        runs[name] += 1
        outputs.pop(name, None)
        outputs[name] = output

    with ExitStack() as scope:
        scope.enter_context(evaluating(model))
        scope.enter_context(torch.inference_mode(False))
        scope.enter_context(torch.enable_grad())
        for module, name in names.items():
            scope.callback(module.register_forward_hook(partial(note, name)).remove)
        probe = image.detach().clone().requires_grad_()
        logits = logits_of(model(probe.clone()))  # the clone: a leaf may not be changed in place
        connected = _connected(logits, outputs)

    found = []
    modules = dict(model.named_modules())
    size = (int(image.shape[-2]), int(image.shape[-1]))
    for name in [*outputs, *(name for name in names.values() if name not in outputs)]:
        output = outputs.get(name)
        found.append(
            Layer(
                name=name,
                type=type(modules[name]).__name__,
                shape=tuple(output.shape[1:]) if isinstance(output, Tensor) else None,
                problem=_problem(output, runs[name], name in connected, size),
                pooling=isinstance(modules[name], _POOLING),
            )
        )
    return found


def default_layer(layers: list[Layer]) -> str:
    """The layer a CAM wants when none is named: of a `survey`, the last explainable one that does
    not merely pool.

    Raises:
        NoTargetLayer: if there is none.
    """
    for layer in reversed(layers):
        if layer.explainable and not layer.pooling:
            return layer.name
    raise NoTargetLayer("no layer of the model has a spatial output that its logits depend on")


def _connected(logits: Tensor, outputs: dict[str, Any]) -> set[str]:
    """The names of the outputs on which the logits depend."""
    tensors = {
        name: output
        for name, output in outputs.items()
        if isinstance(output, Tensor) and output.requires_grad
    }
    if not tensors or not logits.requires_grad:
        return set()
    gradients = torch.autograd.grad(logits.sum(), list(tensors.values()), allow_unused=True)
    return {name for name, g in zip(tensors, gradients, strict=True) if g is not None}


def _problem(output: Any, runs: int, connected: bool, image: tuple[int, int]) -> str | None:
    if runs == 0:
        return "it does not run in a forward pass"
    if not isinstance(output, Tensor):
        return f"its output is a {type(output).__name__}, not a tensor"
    if not is_spatial(output, image):
        return f"its output {tuple(output.shape[1:])} is not (channels, height, width)"
    if runs > 1:
        return f"it runs {runs} times in a forward pass; name the block around it"
    if not connected:
        return "the logits do not depend on it"
    return None


def is_spatial(output: Tensor, image: tuple[int, int]) -> bool:
    """Whether a layer's output is a floating-point (batch, channels, height, width) grid of more
    than one position, in the proportions of the model's input (height, width), give or take the
    cell that strides and padding round off. Tells (B, h, w, C) layouts from (B, C, h, w)."""
    if output.ndim != 4 or not output.is_floating_point():
        return False
    height, width = int(output.shape[2]), int(output.shape[3])
    proportional = abs(height - width * image[0] / image[1]) <= 1
    return height * width > 1 and proportional
