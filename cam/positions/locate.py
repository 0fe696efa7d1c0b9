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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from operator import itemgetter
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from cam.drawing.placement import Box, Placement
from cam.hooks.calls import Modules, call_of
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
from cam.positions.judgement import located_by
from cam.positions.measurement import Measurement
from cam.positions.responses import (
    outputs_at,
    runs_of,
    tokens_first,
)
from cam.positions.rounding import SHIFT
from cam.positions.stated import stated_by

Reshape = str | Callable[[Tensor], Tensor]
"""A user's function from a layer's output (B, …) to (B, K, h, w), or words: see `grid_in_words`."""
SETTINGS: Final = (bool, int, str, tuple, type(None))
"""Types of the attributes of modules that may be settings. Numbers that a model counts in a forward
pass are tensors."""
PASSING: Final = ("training", "_is_full_backward_hook")
"""Attributes of modules that say nothing of where their outputs lie."""
DEPENDS: Final = "the part of the image that its output shows depends on the image"


class Setup:
    """A model's modules and their settings, such as `grad_checkpointing` or an image size, without
    `training`. While they stay as they are, the layers lie where they lay."""

    def __init__(self, model: nn.Module) -> None:
        # It keeps no module alive: `KnownLocations` must go with its model.
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
class KnownLocations:
    """The known locations of a model, as it was when they were found."""

    setup: Setup
    found: dict[Size, dict[str, Location | None]] = field(default_factory=dict)
    """Size of the image → layer → location. Layers that do not run exactly once are left out, and
    calls that do not have None."""
    reshaped: dict[tuple[str, Size, Reshape], Location | None] = field(default_factory=dict)
    """The locations of layers with a declared reshape."""


_KNOWN: WeakKeyDictionary[nn.Module, KnownLocations] = WeakKeyDictionary()
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
    for form in reshape.values():
        if isinstance(form, str):
            grid_in_words(form)
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
        _KNOWN[copy] = KnownLocations(Setup(copy), dict(known.found), dict(known.reshaped))
    _DECLARED[copy] = dict(_DECLARED.get(model, {}))


def remember(model: nn.Module, size: Size, locations: Mapping[str, Location]) -> None:
    """Take over the locations that `locate` has found for all layers of an equal model, so that
    they are not found again. Layers with a declared reshape are located by that.

    Args:
        size: height and width of the image.
        locations: `Located.found`.
    """
    others: dict[str, Location | None] = {
        name: location for name, location in locations.items() if _reshape(model, name) is None
    }
    _KNOWN[model] = KnownLocations(Setup(model), {size: others})


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
        known = _KNOWN[model] = KnownLocations(Setup(model))
    layers = None if layers is None else list(layers)
    here = known.found.get(size)
    if layers is not None and here is not None and not _DECLARED.get(model):
        at_once = {name: location for name in layers if (location := here.get(name))}
        if len(at_once) == len(set(layers)):
            return Located(at_once)
    modules = Modules(model)
    asked = list(modules) if layers is None else [name for name in layers if name in modules]
    reshapes = {name: form for name in asked if (form := _reshape(model, name)) is not None}
    missing = [name for name, form in reshapes.items() if (name, size, form) not in known.reshaped]
    if missing:
        outputs = _outputs(model, image, missing)
        for name in missing:
            place = _reshaped(reshapes[name], outputs[name]) if name in outputs else None
            known.reshaped[name, size, reshapes[name]] = place
    rest = [name for name in asked if name not in reshapes]
    calls = [name for name in rest if call_of(name)[1] and name not in (here or ())]
    if rest and (here is None or calls):
        located_now = _locations(model, image, of_calls=bool(calls))
        known.found[size] = {**(here or {}), **dict.fromkeys(calls), **located_now}
    located = {}
    for name in asked:
        if name in reshapes:
            place = known.reshaped[name, size, reshapes[name]]
        else:
            place = known.found[size].get(name)
        if place:
            located[name] = place
    return Located(located)


def token_grid(model: nn.Module, image: Tensor, count: int) -> Grid | None:
    """Return the grid of the model's layers with `count` tokens, or None if there is no grid."""
    votes = Counter(
        location.grid
        for location in locate(model, image).found.values()
        if location.grid and location.grid.kind == "tokens" and location.shape[0] == count
    )
    # Attention matrices have no batch behind their tokens.
    return replace(votes.most_common(1)[0][0], tokens_first=False) if votes else None


def _modules(model: nn.Module) -> list[nn.Module]:
    """Return a model's modules, as `nn.Module.modules` does, in a quarter of its time."""
    modules, seen = [], set()
    waiting: list[nn.Module | None] = [model]
    while waiting:
        module = waiting.pop()
        if module is not None and id(module) not in seen:
            seen.add(id(module))
            modules.append(module)
            waiting.extend(module._modules.values())
    return modules


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
    with evaluating(model), torch.inference_mode(False), torch.no_grad():
        runs = runs_of(model, image) if of_calls else {}
    locations = _found_with(model, image, runs)
    if any(location.grid and location.grid.placement for location in locations.values()):
        height, width = image.shape[-2:]
        moved = image.flip((-2, -1)).roll((height // 6, width // 6), (-2, -1))
        locations = _same(locations, _found_with(model, moved, runs), max(height, width))
    return dict(locations)


def _same(
    locations: Mapping[str, Location], other: Mapping[str, Location], side: int
) -> dict[str, Location]:
    """Return the locations found with one image, without those that differ for another image."""
    return {
        name: Location(location.shape, None, DEPENDS)
        if name in other and _differ(location.grid, other[name].grid, side)
        else location
        for name, location in locations.items()
    }


def _differ(one: Grid | None, other: Grid | None, side: int) -> bool:
    """Return whether two grids lie at different places of an image with this greater side."""
    here = one.placement if one else None
    if here is None:
        return False
    if other is None:
        return True
    whole = Box(0, 0, here.width, here.height)
    there = other.placement or Placement(whole, here.height, here.width)
    if replace(here, box=there.box) != there:
        return True
    edges, others = astuple(here.box), astuple(there.box)
    return any(abs(a - b) > SHIFT * side for a, b in zip(edges, others, strict=True))


def _found_with(model: nn.Module, image: Tensor, runs: Mapping[str, int]) -> dict[str, Location]:
    """Return the locations of the layers that one image shows.

    Args:
        runs: module → number of its runs, for the modules whose calls are located one by one.
    """
    size = (int(image.shape[-2]), int(image.shape[-1]))
    calls = [
        f"{name}#{number + 1}"
        for name, count in runs.items()
        if count > 1
        for number in range(count)
    ]
    outputs = _outputs(model, image, [*Modules(model), *calls])
    stated = stated_by(model, size)
    locations: dict[str, Location] = {}
    doubtful: dict[str, list[Grid]] = {}
    for name, output in outputs.items():
        if not isinstance(output, Tensor):
            locations[name] = Location((), None, no_tensor(output))
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
            locations[name] = Location(shape[1:], None, _no_grid(shape))
    if not doubtful:
        return locations
    with evaluating(model), torch.inference_mode(False), torch.no_grad():
        tests = Measurement(model, image, outputs, doubtful, runs, stated)
        for name, location in located_by(tests).items():
            grid = location.grid and replace(location.grid, tokens_first=name in tests.turned)
            locations[name] = replace(location, grid=grid)
    return locations


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
    """Return the reason why no map can be made of an output that is not a tensor, as a clause."""
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
