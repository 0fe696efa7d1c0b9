"""List the layers of a model with their outputs, and choose the default layer of a CAM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from cam.errors import NoTargetLayer
from cam.hooks.calls import Modules, call_of, hooked
from cam.hooks.capture import gradient_stop
from cam.hooks.grids import NO_GRID, STACKED, Grid, Location
from cam.hooks.inference import evaluating
from cam.hooks.replay import Replay
from cam.methods import Method, method_named
from cam.outputs.kind import kinds, unfiltered
from cam.outputs.logit_layers import logit_layers
from cam.outputs.output import Kind
from cam.outputs.outputs import forward, total
from cam.outputs.reading import AUTO, Reading
from cam.positions.locate import locate, no_tensor

INDEPENDENT = "the model's output does not depend on it"
GRADIENTS_OFF = "the model runs it in torch.inference_mode, which records no gradients"
STAGES: Final = 4
"""Maximum number of stages that `stage_layers` returns: as many as a ResNet, a ConvNeXt and a Swin
Transformer have."""
AUTO_LAYER: Final = "auto"
"""Name that stands in place of a layer's name, for the default layer."""
_DECLARED: WeakKeyDictionary[nn.Module, dict[str, str]] = WeakKeyDictionary()
"""Model → the default layers that the user declared: see `declare_layers`."""
_POOLING = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
_WRAPPED: Final = ("base_layer", "original_module")
"""Names of the module that an adapter of peft, such as LoRA, wraps."""


@dataclass(frozen=True)
class Layer:
    """One module of a model, as a forward pass shows it."""

    name: str
    type: str
    """The module's class name."""
    shape: tuple[int, ...] | None
    """Shape of the output for one image, without the batch dimension; None if the output is not a
    tensor."""
    problem: str | None
    """Reason why no map can be made at this layer, as a clause that completes an error message;
    None if a map can be made."""
    grid: Grid | None = None
    """Positions in its output; None if it has none."""
    natural: bool = True
    """Whether the layer may be the default. A pooling layer may not, because it is coarser than the
    layer that it pools. Among layers of tokens and channels-last maps, modules with submodules and
    normalisation layers may, because tools for transformers look there; other layers, such as those
    inside an attention or a perceptron, may not. One of several calls of a module may not, because
    the other calls show other parts of the evidence. An adapter of peft, such as LoRA, counts as
    the module that it wraps, and what is inside it may not be the default."""

    weighted: bool = False
    """Whether the module has weights that mix channels or positions. A rectifier, a pooling or a
    normalisation has none."""
    level: bool = False
    """Whether a detector's boxes are computed from it: see `OutputKind.with_levels`."""
    common: bool = True
    """Whether the whole output depends on it: in a detector, every box."""
    rectified: bool = False
    """Whether no value of its output for the image is below 0, as behind a rectifier."""
    logits: bool = False
    """Whether its output is the model's own output, see `cam.outputs.logit_layers`. Such a layer
    may not be the default: its map shows the logits again."""

    @property
    def explainable(self) -> bool:
        """Whether a map can be made at this layer."""
        return self.problem is None

    @property
    def eligible(self) -> bool:
        """Whether the layer may be the default, a level or a stage."""
        return self.explainable and self.natural and not self.logits


def survey(model: nn.Module, image: Tensor, reading: Reading = AUTO) -> list[Layer]:
    """Return every module of `model`, in the order in which the modules finish on `image`. Modules
    that never run come last. A module that runs several times is listed once, where its last call
    finishes, and each of its calls is listed as a layer of its own: "conv#1", "conv#2".

    A block finishes after its last layer, so the outermost of several modules that share one output
    comes last. The function runs one forward and one backward pass in eval mode, and the forward
    passes that locate the layers (see `cam.positions.locate`). It then restores the model.

    Args:
        image: one image, float (1, C, H, W), on the model's device and in its dtype.
        reading: how to read the model's output.

    Raises:
        NotLogits: if the model's output holds neither logits nor detections.
    """
    ran = _ran(model, image, reading)
    stopped = gradient_stop(model) is not None
    modules = dict(model.named_modules())
    adapters = tuple(f"{name}." for name, module in modules.items() if _wrapped(module))
    calls = [name for name in ran.outputs if name not in modules]
    located = locate(model, image, [*modules, *calls]).found
    layers = []
    for name in [*ran.outputs, *(name for name in modules if name and name not in ran.outputs)]:
        output, location = ran.outputs.get(name), located.get(name)
        module = modules[call_of(name)[0]]
        grid = location.grid if location else None
        problem = ran.problem(name, module, location)
        if problem == INDEPENDENT and stopped and _changes(model, image, name, location):
            problem = None
        layers.append(
            Layer(
                name=name,
                type=type(module).__name__,
                shape=_shape(output, location),
                problem=problem,
                grid=grid,
                natural=name in modules
                and not name.startswith(adapters)
                and _natural(_wrapped(module) or module, grid),
                weighted=any(parameter.ndim > 1 for parameter in module.parameters()),
                rectified=_rectified(output),
                logits=name in ran.logits,
            )
        )
    kind = kinds().get(ran.kind)
    return kind.with_levels(model, image, layers, reading) if kind else layers


def _changes(model: nn.Module, image: Tensor, name: str, location: Location | None) -> bool:
    """Return whether the output changes if the layer's positions are set to 0: where no gradient
    reaches the layer, this shows that the output depends on it. A detector finds nothing in noise,
    so what counts are all tensors of its output, before any are chosen by their scores."""
    if location is None or location.grid is None or call_of(name)[1]:
        return False
    grid = location.grid
    with torch.no_grad():
        replay = Replay(model, name, image)
        empty = grid.put(replay.activation, torch.zeros_like(grid.apply(replay.activation)))
        with unfiltered(model):
            plain, changed = (
                _tensors(replay.output(output)) for output in (replay.activation, empty)
            )
    return len(plain) != len(changed) or any(
        one.shape != other.shape or not torch.equal(one, other)
        for one, other in zip(plain, changed, strict=True)
    )


def _tensors(raw: Any) -> list[Tensor]:
    """Return all tensors of a model's output, however they are nested."""
    leaves = _pytree.tree_leaves(raw)
    fields = [value for leaf in leaves for value in getattr(leaf, "__dict__", {}).values()]
    return [value for value in [*leaves, *fields] if isinstance(value, Tensor)]


@dataclass(frozen=True)
class _Pass:
    """What one forward and one backward pass show of a model."""

    outputs: Mapping[str, Any]
    """Layer or call → output, in the order in which they finish."""
    runs: Mapping[str, int]
    gradients: Mapping[str, Tensor | None]
    frozen: Set[str]
    """The calls that ran in `torch.inference_mode`."""
    logits: Set[str]
    """The layers whose output is the model's own."""
    kind: Kind
    """The kind of the model's output."""
    empty: bool
    """Whether the output has no number, as that of a detector that finds nothing."""

    def problem(self, name: str, module: nn.Module, location: Location | None) -> str | None:
        """Return the reason why no map can be made at a layer, or None if a map can be made."""
        if isinstance(module, torch.jit.ScriptModule):
            return "it is TorchScript, which runs no hooks"
        runs = 1 if call_of(name)[1] else self.runs[name]
        if runs == 0:
            return "it does not run in a forward pass"
        output, gradient = self.outputs.get(name), self.gradients.get(name)
        if not isinstance(output, Tensor):
            return no_tensor(output)
        if runs > 1:
            return (
                f"it runs {runs} times in a forward pass; name the block around it, or one of its "
                "calls"
            )
        if location is None:
            return f"its output {tuple(output.shape[1:])} is {NO_GRID}"
        if location.grid is None:
            return location.problem
        # A detector may find nothing (in noise): then it is not known on which layers it depends.
        if self.empty:
            return None
        if gradient is None:
            return GRADIENTS_OFF if self.frozen & {name, f"{name}#1"} else INDEPENDENT
        if gradient.any() and not location.grid.apply(gradient).any():
            return "the model's output depends on its class token alone"
        return None


def _ran(model: nn.Module, image: Tensor, reading: Reading) -> _Pass:
    """Run a model forwards and backwards once, with hooks on all of its modules.

    Raises:
        NotLogits: if the model's output holds neither logits nor detections.
    """
    frozen: set[str] = set()
    outputs: dict[str, Any] = {}
    runs: Counter[str] = Counter()

    def note(module_name: str, module: nn.Module, args: Any, output: Any) -> Tensor | None:
        runs[module_name] += 1
        name = f"{module_name}#{runs[module_name]}"
        outputs[name] = output
        if torch.is_inference_mode_enabled():
            frozen.add(name)
        elif not torch.is_grad_enabled() and isinstance(output, Tensor):
            # A block of the model runs under torch.no_grad. As in a `Capture`, gradients are
            # switched on for the modules that follow in the block.
            torch.set_grad_enabled(True)
            if output.is_floating_point():
                leaf = output.detach().requires_grad_()
                outputs[name] = leaf
                return leaf.clone()  # the model may change its copy in place
        elif isinstance(output, Tensor) and any(output is argument for argument in args):
            # Others may read the input of an identity, and the model need not depend on its output.
            outputs[name] = copy = output.clone()
            return copy
        return None

    with ExitStack() as scope:
        scope.enter_context(evaluating(model))
        scope.enter_context(unfiltered(model))
        scope.enter_context(torch.inference_mode(False))
        scope.enter_context(torch.enable_grad())
        scope.enter_context(hooked(Modules(model), note))
        probe = image.detach().clone().requires_grad_()
        said = forward(model, probe, reading)
        by_layer = _by_layer(outputs, runs)
        return _Pass(
            outputs=by_layer,
            runs=runs,
            gradients=_gradients(total(said), by_layer),
            frozen=frozen,
            logits=logit_layers(said.numbers, _with_graph(by_layer), said.kind),
            kind=said.kind,
            empty=not said.numbers.numel(),
        )


def leaves(model: nn.Module) -> list[str]:
    """Return the names of all modules without submodules, for `Capture`."""
    return [
        name
        for name, module in model.named_modules()
        if name and not any(True for _ in module.children())
    ]


def default_layer(layers: list[Layer]) -> str:
    """Return the layer that a CAM uses by default: the last layer of a `survey` that is `eligible`
    and, in a detector, on which every box depends. A layer in front of a network that runs several
    times, such as a normalisation before test-time augmentation or a stem before a loop, is not a
    default layer.

    Raises:
        NoTargetLayer: if there is no such layer.
    """
    which = "every layer of the model with a spatial output"
    for position, layer in reversed(list(enumerate(layers))):
        if layer.eligible and layer.common:
            if not _feeds_calls(layers, position):
                return layer.name
            which = f"every layer of the model behind {layer.name!r}"
            break
    frozen = [layer.name for layer in layers if layer.problem == GRADIENTS_OFF]
    if frozen:
        raise NoTargetLayer(
            "the model runs its layers with a spatial output in torch.inference_mode, which "
            "records no gradients; a method without any, such as eigencam, can be asked for one by "
            f"its name, such as {frozen[-1]!r}"
        )
    if all(layer.shape is None for layer in layers):
        raise NoTargetLayer(
            "no module in the model runs and returns a tensor, as in a program of torch.export, so "
            "no layer can be looked at; occlusion, rise, gradient, smoothgrad, "
            "integratedgradients and expectedgradients need none"
        )
    calls = [layer.name for layer in layers if layer.explainable and call_of(layer.name)[1]]
    if calls:
        first = f"{call_of(calls[-1])[0]}#1"  # of augmentations, usually the image as it is
        call = first if first in calls else calls[-1]
        raise NoTargetLayer(
            f"{which} runs several times in a forward pass; name one call, such as {call!r}, or "
            "use a method that needs no layer, such as occlusion, rise or gradient"
        )
    own = [layer.name for layer in layers if layer.explainable and layer.logits]
    if own:
        raise NoTargetLayer(
            f"the model's only layer with a spatial output, {own[-1]!r}, returns the model's own "
            "output, whose map shows the logits again; it can be asked for by its name"
        )
    stacked = [layer.name for layer in layers if layer.problem and STACKED in layer.problem]
    if stacked:
        raise NoTargetLayer(
            f"the model's layers, such as {stacked[-1]!r}, return several {STACKED}, as if crops "
            "or mirror images shared the batch, and which row shows what is not known; explain the "
            "network inside with one image, or use a method that needs no layer, such as "
            "occlusion, rise or gradient"
        )
    raise NoTargetLayer(
        "no layer of the model has a spatial output that a gradient of its logits reaches"
    )


def _feeds_calls(layers: list[Layer], position: int) -> bool:
    """Return whether a layer of a classifier or a segmenter is followed by calls of modules that
    run several times and have a coarser grid than the layer, or are maps of the same grid and have
    weights: a whole network behind it."""
    own = layers[position].grid
    if own is None or any(layer.level or not layer.common for layer in layers):
        return False
    behind = [
        (layer, layer.grid)
        for layer in layers[position + 1 :]
        if layer.explainable and call_of(layer.name)[1] and layer.grid is not None
    ]
    return any(
        (2 * grid.height <= own.height and 2 * grid.width <= own.width)
        or (
            layer.weighted
            and grid.kind == own.kind == "channels first"
            and (grid.height, grid.width) == (own.height, own.width)
        )
        for layer, grid in behind
    )


def level_layers(layers: list[Layer]) -> tuple[str, ...]:
    """Return the layers of a `survey` from which a detector's boxes are computed."""
    return tuple(layer.name for layer in layers if layer.level)


def declare_layers(model: nn.Module, layers: Mapping[str, str]) -> None:
    """Declare default layers of a model, for as long as the model exists: where it is known that
    another layer than the one that `default_layer` finds is the best.

    Args:
        layers: name of a method → its default layer; "auto" → the default layer of the others.

    Raises:
        UnknownMethod: if a name is not in `METHODS`.
    """
    for name in layers:
        if name != AUTO_LAYER:
            method_named(name)
    _DECLARED[model] = dict(layers)


def declared_layers(model: nn.Module) -> Mapping[str, str]:
    """Return what `declare_layers` was given for the model; an empty mapping without it."""
    return _DECLARED.get(model, {})


def method_layers(
    method: Method, layers: list[Layer], declared: Mapping[str, str], *, alone: bool = True
) -> tuple[str, ...]:
    """Return the layers at which a method makes its map if none are named.

    Args:
        layers: a `survey`.
        declared: see `declare_layers`.
        alone: whether no other method is compared with this one. Methods that are compared share
            the default layer of the model, except for those that make one map of several layers.

    Raises:
        NoTargetLayer: if the model has no default layer, and the method has none of its own.
    """
    if method.name in declared and (alone or method.levels):
        return (declared[method.name],)
    default = declared.get(AUTO_LAYER) or default_layer(layers)
    if method.levels == "boxes":
        return level_layers(layers) or (default,)
    if method.levels == "stages":
        # RefineCAM multiplies maps of Grad-CAM++, so its last layer is the one best for these.
        return stage_layers(layers, declared.get("gradcam++", default))
    return (default,)


def stage_layers(layers: list[Layer], default: str) -> tuple[str, ...]:
    """Return the last layers of a network's stages, in execution order: at most `STAGES`. The last
    one is `default`.

    A stage is a part of the network whose outputs have one resolution. Each stage has more rows and
    more columns than the stage after it. Its last layer is the last one with the fewest dots in its
    name: a block rather than a layer inside the block. If it has `rectified` layers, it is one of
    these: Grad-CAM++ is derived for rectified activations, and its maps of the linear bottlenecks
    in which blocks of MobileNets and EfficientNets end are hardly better than chance. The layers
    are `eligible`, and in a detector every box depends on them. A network of one
    resolution has one stage.

    Args:
        layers: a `survey`.
        default: the name of one of these layers, which has a grid.
    """
    position = [layer.name for layer in layers].index(default)
    chosen = [layers[position]]
    while len(chosen) < STAGES:
        grid = chosen[0].grid
        assert grid  # an explainable layer has one
        finer = [
            (layer, layer.grid)
            for layer in layers[:position]
            if (layer.eligible and layer.common)
            and (layer.grid and layer.grid.height > grid.height and layer.grid.width > grid.width)
        ]
        if not finer:
            break
        size = (finer[-1][1].height, finer[-1][1].width)
        alike = [layer for layer, grid in finer if (grid.height, grid.width) == size]
        alike = [layer for layer in alike if layer.rectified] or alike
        least = min(layer.name.count(".") for layer in alike)
        last = next(layer for layer in reversed(alike) if layer.name.count(".") == least)
        chosen.insert(0, last)
        position = layers.index(last)
    return tuple(layer.name for layer in chosen)


def _gradients(score: Tensor, outputs: dict[str, Any]) -> dict[str, Tensor]:
    """Return the gradients of the score at the outputs on which it depends."""
    tensors = _with_graph(outputs)
    if not tensors or not score.requires_grad:
        return {}
    gradients = torch.autograd.grad(score, list(tensors.values()), allow_unused=True)
    return {name: g for name, g in zip(tensors, gradients, strict=True) if g is not None}


def _by_layer(outputs: dict[str, Any], runs: Counter[str]) -> dict[str, Any]:
    """Return the outputs by the names of layers, from those by module and call."""
    captured: dict[str, Any] = {}
    for name, output in outputs.items():
        module, number = call_of(name)
        if runs[module] > 1:
            captured[name] = output
        if runs[module] == number:
            captured[module] = output
    return captured


def _with_graph(outputs: dict[str, Any]) -> dict[str, Tensor]:
    """Return the outputs that are tensors with a graph."""
    return {
        name: output
        for name, output in outputs.items()
        if isinstance(output, Tensor) and output.requires_grad
    }


def _natural(module: nn.Module, grid: Grid | None) -> bool:
    """Return whether the module may be the default layer."""
    if hasattr(module, "no_gradient"):  # a part of a network, whatever is inside
        return True
    if grid is None or grid.kind == "channels first":
        return not isinstance(module, _POOLING)
    return "norm" in type(module).__name__.lower() or any(True for _ in module.children())


def _wrapped(module: nn.Module) -> nn.Module | None:
    """Return the module that an adapter wraps; None if the module is not an adapter."""
    children = [dict(module.named_children()).get(name) for name in _WRAPPED]
    return next((child for child in children if child is not None), None)


def _shape(output: Any, location: Location | None) -> tuple[int, ...] | None:
    """Return the shape of an output without the batch; None if it is not a tensor."""
    if not isinstance(output, Tensor):
        return None
    return location.shape if location else tuple(output.shape[1:])


def _rectified(output: Any) -> bool:
    """Return whether no number of the output is below 0."""
    real = isinstance(output, Tensor) and output.is_floating_point()
    return real and bool((output.detach() >= 0).all())
