"""Find out where the positions of a model's layers lie on the image, by changing the image.

    located = locate(model, image, ["blocks.3.norm1"])
    located.grid("blocks.3.norm1")               # Grid("tokens", 14, 14, prefix=1)

A shape does not tell in which order tokens lie, how many of them are not patches, or whether an
output with four dimensions is a map at all. So the image is changed in one small patch after
another. A layer has a grid if its output changes most where the patch is. The results are stored
for as long as the model exists.
"""

from __future__ import annotations

import fnmatch
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from cam.hooks.calls import Modules, Turns, call_of, turns_of
from cam.hooks.grids import (
    NO_GRID,
    STACKED,
    Grid,
    Located,
    Location,
    Size,
    candidates,
    grid_in_words,
)
from cam.hooks.inference import evaluating
from cam.hooks.nested import in_words
from cam.positions.judgement import Measured, located_by
from cam.positions.responses import (
    LEAST_PATCH,
    Patch,
    outputs_at,
    patches_of,
    responses,
    runs_of,
    seen_part,
    tokens_first,
)
from cam.positions.stated import Stated, stated_by
from cam.positions.views import EDGE

Reshape = str | Callable[[Tensor], Tensor]
"""A user's function from a layer's output (B, …) to (B, K, h, w), or words: see `grid_in_words`."""
CELLS = (7, 7)
"""Rows and columns of the patches for feature maps, if the model states no token grid."""
SETTINGS: Final = (bool, int, str, tuple, type(None))
"""Types of the attributes of modules that may be settings. Numbers that a model counts in a forward
pass are tensors."""
MOST_BRANCHES: Final = 8
"""Maximum number of groups of layers of which it is found out at which part of the image they look.
Each takes about thirty passes."""
PASSING: Final = ("training", "_is_full_backward_hook")
"""Attributes of modules that say nothing of where their outputs lie."""


class Setup:
    """A model's modules and their settings, such as `grad_checkpointing` or an image size, without
    `training`. While they stay as they are, the layers lie where they lay."""

    def __init__(self, model: nn.Module) -> None:
        # It keeps no module alive: `Known` must go with its model.
        self._modules = [(id(module), *_settings(module)) for module in _modules(model)]

    def holds(self, model: nn.Module) -> bool:
        """Return whether the model still has these modules and settings. Every batch asks for it,
        so it must not take longer than some tenths of a millisecond."""
        modules = _modules(model)
        return len(modules) == len(self._modules) and all(
            id(module) == identity
            and len(vars(module)) == count
            and _reads(read, vars(module), value)
            for module, (identity, read, value, count) in zip(modules, self._modules, strict=True)
        )


@dataclass
class Known:
    """The known locations of a model, as it was when they were found."""

    setup: Setup
    found: dict[Size, dict[str, Location | None]] = field(default_factory=dict)
    """Size of the image → layer → location. Layers that do not run exactly once are left out, and
    calls that do not have None."""
    reshaped: dict[tuple[str, Size, Reshape], Location | None] = field(default_factory=dict)
    """The locations of layers with a declared reshape."""


_KNOWN: WeakKeyDictionary[nn.Module, Known] = WeakKeyDictionary()
_DECLARED: WeakKeyDictionary[nn.Module, dict[str, Reshape]] = WeakKeyDictionary()
"""Model → the reshapes that the user declared, by layer name or pattern."""


def declare(model: nn.Module, reshape: Mapping[str, Reshape]) -> None:
    """Declare how the outputs of layers become (batch, channels, height, width), for as long as
    the model exists. The grids of these layers are not tested.

    Args:
        reshape: layer name or pattern → reshape. The last pattern that matches a layer counts.

    Raises:
        LayerNotSpatial: if a reshape in words does not have the form that `grid_in_words` reads.
    """
    for each in reshape.values():
        if isinstance(each, str):
            grid_in_words(each)
    _DECLARED[model] = {**_DECLARED.get(model, {}), **reshape}


@contextmanager
def declared(model: nn.Module, reshape: Mapping[str, Reshape]) -> Iterator[None]:
    """Declare the reshapes, as `declare` does, for the duration of the block.

    Raises:
        LayerNotSpatial: if a reshape in words does not have the form that `grid_in_words` reads.
    """
    before = _DECLARED.get(model, {})
    declare(model, reshape)
    try:
        yield
    finally:
        _DECLARED[model] = before


def inherit(model: nn.Module, copy: nn.Module) -> None:
    """Give `copy`, a copy of a model, the locations and the declarations of the model."""
    known = _KNOWN.get(model)
    if known:
        _KNOWN[copy] = Known(Setup(copy), dict(known.found), dict(known.reshaped))
    _DECLARED[copy] = dict(_DECLARED.get(model, {}))


def remember(model: nn.Module, size: Size, found: Mapping[str, Location]) -> None:
    """Take over the locations that `locate` has found for all layers of an equal model, so that
    they are not found again. Layers with a declared reshape are located by that.

    Args:
        size: height and width of the image.
        found: `Located.found`.
    """
    others: dict[str, Location | None] = {
        name: each for name, each in found.items() if _reshape(model, name) is None
    }
    _KNOWN[model] = Known(Setup(model), {size: others})


def locate(model: nn.Module, image: Tensor, layers: Iterable[str] | None = None) -> Located:
    """Find out where the outputs of layers lie on images of the size of `image`.

    The function runs the model once, and once more for each patch: all layers are located
    together, so that the location of a layer does not depend on which layers are asked for. If the
    locations are known, it does not run the model, unless its modules or their settings have
    changed since. The model is left in its original state.

    Args:
        image: float (1, C, H, W), preprocessed, on the model's device and in its dtype.
        layers: names. If None, all layers of the model are located.
    """
    size = (int(image.shape[-2]), int(image.shape[-1]))
    known = _KNOWN.get(model)
    if known is None or not known.setup.holds(model):
        known = _KNOWN[model] = Known(Setup(model))
    layers = None if layers is None else list(layers)
    here = known.found.get(size)
    if layers is not None and here is not None and not _DECLARED.get(model):
        at_once = {name: location for name in layers if (location := here.get(name))}
        if len(at_once) == len(set(layers)):
            return Located(at_once)
    modules = Modules(model)
    asked = list(modules) if layers is None else [name for name in layers if name in modules]
    reshapes = {name: each for name in asked if (each := _reshape(model, name)) is not None}
    missing = [name for name, each in reshapes.items() if (name, size, each) not in known.reshaped]
    if missing:
        outputs = _outputs(model, image, missing)
        for name in missing:
            found = _reshaped(reshapes[name], outputs[name]) if name in outputs else None
            known.reshaped[name, size, reshapes[name]] = found
    rest = [name for name in asked if name not in reshapes]
    calls = [name for name in rest if call_of(name)[1] and name not in (here or ())]
    if rest and (here is None or calls):
        located_now = _locations(model, image, of_calls=bool(calls))
        known.found[size] = {**(here or {}), **dict.fromkeys(calls), **located_now}
    located = {}
    for name in asked:
        if name in reshapes:
            found = known.reshaped[name, size, reshapes[name]]
        else:
            found = known.found[size].get(name)
        if found:
            located[name] = found
    return Located(located)


def token_grid(model: nn.Module, image: Tensor, count: int) -> Grid | None:
    """Return the grid of the model's layers with `count` tokens, or None if there is no grid."""
    votes = Counter(
        each.grid
        for each in locate(model, image).found.values()
        if each.grid and each.grid.kind == "tokens" and each.shape[0] == count
    )
    # Attention matrices have no batch behind their tokens.
    return replace(votes.most_common(1)[0][0], tokens_first=False) if votes else None


def _modules(model: nn.Module) -> list[nn.Module]:
    """Return a model's modules, as `nn.Module.modules` does, in a quarter of its time."""
    found, seen = [], set()
    waiting: list[nn.Module | None] = [model]
    while waiting:
        module = waiting.pop()
        if module is not None and id(module) not in seen:
            seen.add(id(module))
            found.append(module)
            waiting.extend(module._modules.values())
    return found


def _settings(module: nn.Module) -> tuple[Callable[[dict[str, Any]], object], object, int]:
    """Return what reads a module's settings from its attributes, what it reads now, and the number
    of all attributes."""
    attributes = vars(module)
    names = [
        name
        for name, value in attributes.items()
        if type(value) in SETTINGS and name not in PASSING
    ]
    read = itemgetter(*names) if names else len
    return read, read(attributes), len(attributes)


def _reads(
    read: Callable[[dict[str, Any]], object], attributes: dict[str, Any], value: Any
) -> bool:
    """Return whether the settings have this value."""
    try:
        return bool(read(attributes) == value)
    except Exception:  # a setting is gone, or is an array now
        return False


def _outputs(model: nn.Module, image: Tensor, layers: Iterable[str]) -> dict[str, Any]:
    """Return the outputs for the image of those layers that run once."""
    modules = Modules(model)
    hooked = {name: modules[name] for name in layers}
    with evaluating(model), torch.inference_mode(False), torch.no_grad():
        return outputs_at(model, hooked, image)


def _locations(model: nn.Module, image: Tensor, *, of_calls: bool) -> dict[str, Location | None]:
    """Return the locations of all layers of the model that run once, and with `of_calls` those of
    each call of the others."""
    if not image.isfinite().all():  # layers can be located with noise instead
        noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(0))
        image = noise.to(image)
    size = (int(image.shape[-2]), int(image.shape[-1]))
    modules = Modules(model)
    with evaluating(model), torch.inference_mode(False), torch.no_grad():
        runs = runs_of(model, image) if of_calls else {}
    calls = [
        f"{name}#{number + 1}"
        for name, count in runs.items()
        if count > 1
        for number in range(count)
    ]
    outputs = _outputs(model, image, [*modules, *calls])
    stated = stated_by(model, size)
    found: dict[str, Location | None] = {}
    doubtful: dict[str, list[Grid]] = {}
    for name, output in outputs.items():
        if not isinstance(output, Tensor):
            found[name] = Location((), None, no_tensor(output))
            continue
        shape = tuple(output.shape)
        if tokens_first(output):
            shape = (1, shape[0], shape[2])
        grids = []
        if shape[:1] == (1,) and output.is_floating_point():
            grids = candidates(shape, size, sides=stated.sides, orders=stated.orders)
        if grids:
            doubtful[name] = grids
        else:
            found[name] = Location(shape[1:], None, _no_grid(shape))
    if not doubtful:
        return found
    turned = {name for name in doubtful if tokens_first(outputs[name])}
    shapes = {
        name: tuple((each.transpose(0, 1) if name in turned else each).shape[1:])
        for name, each in outputs.items()
        if name in doubtful
    }
    within = {name: turns_of(name, runs) for name in doubtful}
    parts: dict[Turns, Patch] = {}
    """Turns → the part of the image that its layers look at."""
    whole = Patch(0, 0, *size)

    def part_of(names: Iterable[str]) -> Patch:
        before = {name: outputs[name] for name in names}
        with evaluating(model), torch.inference_mode(False), torch.no_grad():
            return seen_part(model, modules, image, before) or whole

    def seen(turns: Turns) -> Patch:
        if turns not in parts:
            parts[turns] = part_of(name for name in doubtful if within[name] == turns)
        return parts[turns]

    def measure(names: Sequence[str], cells: Size, part: Patch | None) -> dict[str, Measured]:
        before = {name: outputs[name] for name in names}
        kinds = {name: {grid.kind for grid in doubtful[name]} for name in names}
        patches = patches_of(size, cells, part)
        with evaluating(model), torch.inference_mode(False), torch.no_grad():
            moved = responses(model, modules, image, before, patches, kinds)
        return {name: Measured(doubtful[name], moved.get(name, {}), patches) for name in names}

    measured: dict[str, Measured] = {}
    for cells, names in _by_cells(doubtful, shapes, stated).items():
        measured |= measure(names, cells, None)
        for turns in dict.fromkeys(within[name] for name in names):
            alike = [name for name in names if within[name] == turns]
            if turns in parts or not _moving([measured[name] for name in alike]).all():
                measured |= measure(alike, cells, seen(turns))
            # A branch, or what comes behind a crop, may look at a part of what the others see.
            for branch in _branches({name: measured[name] for name in alike}):
                part = part_of(branch)
                if _is_part(part, parts.get(turns, whole)):
                    own = (*turns, (0, len(parts)))  # as if it ran in a call of its own
                    parts[own] = part
                    within |= dict.fromkeys(branch, own)
                    measured |= measure(branch, cells, part)
    # In the order of execution, which `_by_cells` does not keep.
    ordered = {name: measured[name] for name in doubtful}
    smaller = {turns: part for turns, part in parts.items() if turns or _is_part(part, whole)}
    for name, each in located_by(ordered, shapes, size, seen, within, smaller).items():
        grid = each.grid and replace(each.grid, tokens_first=name in turned)
        found[name] = replace(each, grid=grid)
    return found


def _moving(layers: Iterable[Measured]) -> Tensor:
    """Return which patches move any of the layers, which were tested with the same ones: bool
    (patches,)."""
    moved = [each.flatten(1).any(1) for layer in layers for each in layer.moved.values()]
    return torch.stack(moved).any(0) if moved else torch.zeros(1, dtype=torch.bool)


def _branches(layers: Mapping[str, Measured]) -> list[list[str]]:
    """Return the groups of layers that the same patches move, without those that all patches move
    that move any layer, and those that none does: at most `MOST_BRANCHES`, the largest ones."""
    every = _moving(layers.values())
    groups: dict[tuple[bool, ...], list[str]] = defaultdict(list)
    for name, layer in layers.items():
        moving = _moving([layer])
        if moving.any() and not moving.equal(every):
            groups[tuple(moving.tolist())].append(name)
    return sorted(groups.values(), key=len, reverse=True)[:MOST_BRANCHES]


def _is_part(inner: Patch, outer: Patch) -> bool:
    """Return whether a part of the image is smaller than another one by more than what a stride
    may leave out."""
    sides = (
        (inner.bottom - inner.top, outer.bottom - outer.top),
        (inner.right - inner.left, outer.right - outer.left),
    )
    return any(whole - part >= max(2 * EDGE * whole, LEAST_PATCH) for part, whole in sides)


def _by_cells(
    doubtful: Mapping[str, Sequence[Grid]], shapes: Mapping[str, tuple[int, ...]], stated: Stated
) -> dict[Size, list[str]]:
    """Group the layers by the rows and columns of the patches that test their grids.

    The patches for a layer of tokens have the size of its tokens, so that one token sees each
    patch. With smaller patches, tokens from a strided layer would see few of the patches. With
    larger patches, many tokens would see each patch. A wrong grid would then fit by chance.
    """
    sides: dict[int, Size] = {}
    for name, grids in doubtful.items():
        if grids[0].kind == "tokens":
            sides.setdefault(shapes[name][0], (grids[0].height, grids[0].width))
    usual = (*stated.sides, CELLS)[0]
    groups: dict[Size, list[str]] = defaultdict(list)
    for name in doubtful:
        groups[sides[shapes[name][0]] if len(shapes[name]) == 2 else usual].append(name)
    return groups


def _reshape(model: nn.Module, layer: str) -> Reshape | None:
    """Return the reshape that was last declared for the layer, or None."""
    for pattern, reshape in reversed(_DECLARED.get(model, {}).items()):
        if fnmatch.fnmatchcase(layer, pattern):
            return reshape
    return None


def _no_grid(shape: tuple[int, ...]) -> str:
    """Return the reason why an output of this shape for one image has no grid, as a clause."""
    if len(shape) > 2 and shape[0] > 1:
        return (
            f"its output {shape} has {shape[0]} {STACKED}, as if crops, mirror images or windows "
            "shared the batch, and no shape tells which row shows what"
        )
    return f"its output {shape[1:]} is {NO_GRID}"


def no_tensor(output: Any) -> str:
    """Return the reason why no map can be made of an output that is no tensor, as a clause."""
    return (
        f"its output is {in_words(output)}, not one tensor; name a layer inside or behind it that "
        "returns maps (batch, channels, height, width), channels last too, or tokens (batch, "
        "tokens, channels)"
    )


def _reshaped(reshape: Reshape, output: Any) -> Location:
    """Return the location of a layer whose reshape was declared."""
    if not isinstance(output, Tensor):
        return Location((), None, no_tensor(output))
    shape = tuple(output.shape[1:])
    if isinstance(reshape, str):
        grid = replace(grid_in_words(reshape), tokens_first=tokens_first(output))
        output = output.transpose(0, 1) if grid.tokens_first else output
        shape = tuple(output.shape[1:])
        last = grid.prefix + grid.height * grid.width
        if output.ndim == 3 and last <= output.shape[1]:
            return Location(shape, grid)
        return Location(shape, None, f"its output {shape} has no {last} tokens for {reshape!r}")
    try:
        shaped: Any = reshape(output)
    except Exception as error:  # user code, and a pattern may match a layer it is not for
        return Location(shape, None, f"its output {shape} cannot be reshaped: {error}")
    if not isinstance(shaped, Tensor) or shaped.ndim != 4 or len(shaped) != len(output):
        what = tuple(shaped.shape) if isinstance(shaped, Tensor) else type(shaped).__name__
        problem = f"its reshape returns {what}, not (batch, channels, height, width)"
        return Location(shape, None, problem)
    return Location(
        shape, Grid("custom", int(shaped.shape[2]), int(shaped.shape[3]), reshape=reshape)
    )
