"""Which layers a model has, what comes out of them, and which one a CAM wants by default."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cam.errors import NoTargetLayer
from cam.hooks.grids import NO_GRID, Grid, Location
from cam.hooks.inference import evaluating
from cam.outputs.detection import unfiltered
from cam.outputs.output import one_each, outputs_of, size_of, total
from cam.outputs.reading import AUTO, Reading
from cam.positions.levels import levels_of
from cam.positions.locate import locate

INDEPENDENT = "the model's output does not depend on it"
GRADIENTS_OFF = "the model runs it in torch.inference_mode, which records no gradients"
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
    grid: Grid | None = None
    """Where in its output the positions are."""
    natural: bool = True
    """Whether it may be the default: not a pooling layer, which is coarser than what it pools; of
    tokens and channels-last maps, not what is inside an attention or a perceptron, but a block or
    the normalisation before one, where tools for transformers look."""

    level: bool = False
    """Whether a detector's boxes are made from it: see `cam.positions.levels`."""
    common: bool = True
    """Whether all that the model says depends on it; of a detector, every box."""

    @property
    def explainable(self) -> bool:
        return self.problem is None


def survey(model: nn.Module, image: Tensor, reading: Reading = AUTO) -> list[Layer]:
    """Every module of `model` in the order in which they finish on `image`; then those that never
    ran.

    A block finishes after its last layer, so of modules that share one output the outermost comes
    last. Runs one forward and one backward pass in eval mode and leaves the model as it found it.

    Args:
        image: one image, float (1, C, H, W), on the model's device and in its dtype.
        reading: how the model's output is read.

    Raises:
        NotLogits: if the model's output holds neither logits nor detections.
    """
    names = {module: name for name, module in model.named_modules() if name}
    scripted = {
        name for module, name in names.items() if isinstance(module, torch.jit.ScriptModule)
    }
    frozen: set[str] = set()
    outputs: dict[str, Any] = {}
    runs: Counter[str] = Counter()

    def note(name: str, module: nn.Module, args: Any, output: Any) -> Tensor | None:
        runs[name] += 1
        outputs.pop(name, None)
        outputs[name] = output
        if torch.is_inference_mode_enabled():
            frozen.add(name)
        elif not torch.is_grad_enabled() and isinstance(output, Tensor):
            # A block of the model under torch.no_grad: a `Capture` records what follows in it.
            torch.set_grad_enabled(True)
            if output.is_floating_point():
                leaf = output.detach().requires_grad_()
                outputs[name] = leaf
                return leaf.clone()  # the model may change it in place
        return None

    with ExitStack() as scope:
        scope.enter_context(evaluating(model))
        scope.enter_context(unfiltered(model))
        scope.enter_context(torch.inference_mode(False))
        scope.enter_context(torch.enable_grad())
        for module, name in names.items():
            if name not in scripted:
                scope.callback(module.register_forward_hook(partial(note, name)).remove)
        probe = image.detach().clone().requires_grad_()
        # The clone: a leaf may not be changed in place.
        raw = model(probe.clone())
        said = outputs_of(raw, size=size_of(image), reading=reading, batch=len(image))
        said = one_each(said, probe)
        gradients = _gradients(total(said), outputs)
        # In noise a detector may find nothing: then nothing is known of what it depends on.
        known = said[0].detections is None or bool(len(said[0].detections.scores))

    found = []
    modules = dict(model.named_modules())
    located = locate(model, image)
    for name in [*outputs, *(name for name in names.values() if name not in outputs)]:
        output, location = outputs.get(name), located.found.get(name)
        problem = _problem(output, runs[name], location, gradients.get(name), known=known)
        if name in scripted:
            problem = "it is TorchScript, which runs no hooks"
        elif problem == INDEPENDENT and name in frozen:
            problem = GRADIENTS_OFF
        found.append(
            Layer(
                name=name,
                type=type(modules[name]).__name__,
                shape=tuple(output.shape[1:]) if isinstance(output, Tensor) else None,
                problem=problem,
                grid=located.grid(name),
                natural=_natural(modules[name], located.grid(name)),
            )
        )
    if said[0].detections is not None:
        return _with_levels(model, image, found)
    return found


def leaves(model: nn.Module) -> list[str]:
    """The names of all modules that hold no other, for `Capture`."""
    return [
        name
        for name, module in model.named_modules()
        if name and not any(True for _ in module.children())
    ]


def default_layer(layers: list[Layer]) -> str:
    """The layer a CAM wants when none is named: of a `survey`, the last explainable one that is
    `natural`, and of a detector one that every box depends on.

    Raises:
        NoTargetLayer: if there is none.
    """
    for layer in reversed(layers):
        if layer.explainable and layer.natural and layer.common:
            return layer.name
    frozen = [layer.name for layer in layers if layer.problem == GRADIENTS_OFF]
    if frozen:
        raise NoTargetLayer(
            "the model runs its layers with a spatial output in torch.inference_mode, which "
            "records no gradients; a method without any, such as eigencam, can be asked for one by "
            f"its name, such as {frozen[-1]!r}"
        )
    raise NoTargetLayer(
        "no layer of the model has a spatial output that a gradient of its logits reaches"
    )


def level_layers(layers: list[Layer]) -> tuple[str, ...]:
    """The layers that a detector's boxes are made from, of a `survey`; of other models the default
    layer alone.

    Raises:
        NoTargetLayer: if there is none.
    """
    levels = tuple(layer.name for layer in layers if layer.level)
    return levels or (default_layer(layers),)


def _with_levels(model: nn.Module, image: Tensor, layers: list[Layer]) -> list[Layer]:
    """A detector's layers, its levels and common ones among them marked."""
    usable = [layer.name for layer in layers if layer.explainable and layer.natural]
    found = levels_of(model, image, usable)
    if found is None:
        return layers
    return [
        replace(layer, level=layer.name in found.direct, common=layer.name in found.common)
        for layer in layers
    ]


def _gradients(score: Tensor, outputs: dict[str, Any]) -> dict[str, Tensor]:
    """The gradients of the score at those outputs on which it depends."""
    tensors = {
        name: output
        for name, output in outputs.items()
        if isinstance(output, Tensor) and output.requires_grad
    }
    if not tensors or not score.requires_grad:
        return {}
    gradients = torch.autograd.grad(score, list(tensors.values()), allow_unused=True)
    return {name: g for name, g in zip(tensors, gradients, strict=True) if g is not None}


def _natural(module: nn.Module, grid: Grid | None) -> bool:
    if grid is None or grid.kind == "channels first":
        return not isinstance(module, _POOLING)
    return "norm" in type(module).__name__.lower() or any(True for _ in module.children())


def _problem(
    output: Any, runs: int, location: Location | None, gradient: Tensor | None, *, known: bool
) -> str | None:
    if runs == 0:
        return "it does not run in a forward pass"
    if not isinstance(output, Tensor):
        return f"its output is a {type(output).__name__}, not a tensor"
    if runs > 1:
        return f"it runs {runs} times in a forward pass; name the block around it"
    if location is None or location.grid is None:
        return (
            location.problem if location else f"its output {tuple(output.shape[1:])} is {NO_GRID}"
        )
    if not known:
        return None
    if gradient is None:
        return INDEPENDENT
    if gradient.any() and not location.grid.apply(gradient).any():
        return "the model's output depends on its class token alone"
    return None
