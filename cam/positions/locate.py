"""Where the positions of a model's layers lie on the image: found by changing the image.

    located = locate(model, image, ["blocks.3.norm1"])
    located.grid("blocks.3.norm1")               # Grid("tokens", 14, 14, prefix=1)

A shape does not tell in which order tokens lie, how many of them are no patches, or whether four
dimensions are a map at all. So the image is changed in one small patch after another, and a layer
has a grid if its output moves most where the patch is. What was found is remembered for as long
as the model exists.
"""

from __future__ import annotations

import fnmatch
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from cam.hooks.grids import (
    NO_GRID,
    Grid,
    Located,
    Location,
    Size,
    candidates,
    grid_in_words,
    grid_of_map,
)
from cam.hooks.inference import evaluating
from cam.positions.responses import Fit, Patch, fit, outputs_at, patches_of, responses
from cam.positions.stated import Stated, stated_by

Reshape = str | Callable[[Tensor], Tensor]
"""A user's own way from a layer's output (B, …) to (B, K, h, w), or words: see `grid_in_words`."""
CELLS = (7, 7)
"""Rows and columns of the patches that tell grids of feature maps, where no tokens are stated."""
TELLING = 25
"""Positions of feature maps: of fewer each sees the whole image many times over, and what moves
most is a matter of padding. There the shape is believed, where it leaves no doubt."""


Key = tuple[str, Size, Reshape | None]
_FOUND: WeakKeyDictionary[nn.Module, dict[Key, Location | None]] = WeakKeyDictionary()
"""A layer that does not run once, or returns no tensor, has None."""
_DECLARED: WeakKeyDictionary[nn.Module, dict[str, Reshape]] = WeakKeyDictionary()


def declare(model: nn.Module, reshape: Mapping[str, Reshape]) -> None:
    """Say how the outputs of layers, by name or pattern, become (batch, channels, height, width),
    for as long as the model exists. Nothing is tried there.

    Raises:
        LayerNotSpatial: if a reshape in words has other words.
    """
    for each in reshape.values():
        if isinstance(each, str):
            grid_in_words(each)
    _DECLARED[model] = {**_DECLARED.get(model, {}), **reshape}


@contextmanager
def declared(model: nn.Module, reshape: Mapping[str, Reshape]) -> Iterator[None]:
    """The same for as long as the block runs.

    Raises:
        LayerNotSpatial: if a reshape in words has other words.
    """
    before = _DECLARED.get(model, {})
    declare(model, reshape)
    try:
        yield
    finally:
        _DECLARED[model] = before


def inherit(model: nn.Module, copy: nn.Module) -> None:
    """Take over for a copy of a model what is known of the model."""
    _FOUND[copy] = dict(_FOUND.get(model, {}))
    _DECLARED[copy] = dict(_DECLARED.get(model, {}))


def locate(model: nn.Module, image: Tensor, layers: Iterable[str] | None = None) -> Located:
    """Find where the outputs of layers lie on images of the size of `image`.

    Runs the model once and, unless shapes leave no doubt, once more for each patch; for layers
    that are known not at all. The model is left as found.

    Args:
        image: float (1, C, H, W), preprocessed, on the model's device and in its dtype.
        layers: names; without, all that the model has, and then no shape is trusted.
    """
    size = (int(image.shape[-2]), int(image.shape[-1]))
    known = _FOUND.setdefault(model, {})
    modules = {
        name: module
        for name, module in model.named_modules()
        if name and not isinstance(module, torch.jit.ScriptModule)  # which runs no hooks
    }
    names = [name for name in (modules if layers is None else layers) if name in modules]
    reshapes = {name: _reshape(model, name) for name in names}
    missing = {}
    for name in names:
        key = (name, size, reshapes[name])
        before = known.get(key)
        if key not in known or (before and not before.verified and layers is None):
            missing[name] = modules[name]
    if missing:
        if not image.isfinite().all():  # a photo that cannot be explained is no reason to guess
            noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(0))
            image = noise.to(image)
        with evaluating(model), torch.inference_mode(False), torch.no_grad():
            outputs = outputs_at(model, missing, image)
            locations = _locations(model, outputs, reshapes, image, layers)
        known |= {(name, size, reshapes[name]): locations.get(name) for name in missing}
    found = {name: known[name, size, reshapes[name]] for name in names}
    return Located({name: each for name, each in found.items() if each})


def token_grid(model: nn.Module, image: Tensor, count: int) -> Grid | None:
    """The grid of the model's layers of `count` tokens, if it has any."""
    votes = Counter(
        each.grid
        for each in locate(model, image).found.values()
        if each.grid and each.grid.kind == "tokens" and each.shape[0] == count
    )
    return votes.most_common(1)[0][0] if votes else None


def _locations(
    model: nn.Module,
    outputs: dict[str, Tensor],
    reshapes: Mapping[str, Reshape | None],
    image: Tensor,
    layers: Iterable[str] | None,
) -> dict[str, Location]:
    """Where layers lie that returned `outputs` for the image."""
    size = (int(image.shape[-2]), int(image.shape[-1]))
    stated = stated_by(model, size)
    found: dict[str, Location] = {}
    doubtful: dict[str, list[Grid]] = {}
    for name, output in outputs.items():
        shape, reshape = tuple(output.shape), reshapes[name]
        if reshape is not None:
            found[name] = _reshaped(reshape, output)
            continue
        clear = None if layers is None else grid_of_map(shape, size)
        if clear:
            found[name] = Location(shape[1:], clear, verified=False)
            continue
        if shape[0] == 1 and output.is_floating_point():
            grids = candidates(shape, size, sides=stated.sides, orders=stated.orders)
            if grids:
                doubtful[name] = grids
                continue
        found[name] = Location(shape[1:], None, f"its output {shape[1:]} is {NO_GRID}")
    if doubtful:
        shapes = {name: tuple(outputs[name].shape[1:]) for name in doubtful}
        modules = dict(model.named_modules())
        for cells, names in _by_cells(doubtful, shapes, stated).items():
            patches = patches_of(size, cells)
            before = {name: outputs[name] for name in names}
            moved = responses(model, modules, image, before, patches)
            grids_of = {name: doubtful[name] for name in names}
            found |= _judged(grids_of, shapes, moved, patches, size)
    return found


def _by_cells(
    doubtful: Mapping[str, Sequence[Grid]], shapes: Mapping[str, tuple[int, ...]], stated: Stated
) -> dict[Size, list[str]]:
    """The layers, by the rows and columns of the patches that tell their grids: those of their own
    tokens, so that each patch is seen by one. Of smaller patches, tokens that were strided over
    see few, and of larger ones, many tokens see each: then a wrong grid fits by chance."""
    sides: dict[int, Size] = {}
    for name, grids in doubtful.items():
        if grids[0].kind == "tokens":
            sides.setdefault(shapes[name][0], (grids[0].height, grids[0].width))
    usual = (*stated.sides, CELLS)[0]
    groups: dict[Size, list[str]] = defaultdict(list)
    for name in doubtful:
        groups[sides[shapes[name][0]] if len(shapes[name]) == 2 else usual].append(name)
    return groups


def _judged(
    doubtful: Mapping[str, Sequence[Grid]],
    shapes: Mapping[str, tuple[int, ...]],
    moved: Mapping[str, Mapping[str, Tensor]],
    patches: Sequence[Patch],
    size: Size,
) -> dict[str, Location]:
    """Which of its possible grids each layer has. All layers of as many tokens have the same one:
    the first of them tell it better than those in which every token has seen all others."""
    fits: dict[str, dict[Grid, Fit]] = {}
    votes: dict[int, dict[Grid, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name, grids in doubtful.items():
        moves = moved.get(name, {})
        fits[name] = {
            grid: each
            for grid in grids
            if moves and (each := fit(grid, moves[grid.kind], patches, size)).good
        }
        for grid, each in fits[name].items():
            if grid.kind == "tokens":
                votes[shapes[name][0]][grid].append(each.distance)
    likely = {shapes[name][0]: grids for name, grids in doubtful.items()}
    elected = {_elected(of_count, likely[count]) for count, of_count in votes.items()}
    found = {}
    for name, good in fits.items():
        shape = shapes[name]
        # Tokens may change their order on the way: then a layer must leave no doubt by itself.
        usable = [
            grid
            for grid, each in good.items()
            if grid.kind != "tokens" or grid in elected or each.exact
        ]
        usable.sort(key=lambda grid: (grid not in elected, good[grid].distance))
        best = usable[0] if usable else None
        clear = grid_of_map((1, *shape), size)
        if clear and clear.height * clear.width < TELLING:
            best = clear
        found[name] = Location(shape, best, None if best else _why_not(shape, moved.get(name)))
    return found


def _elected(votes: Mapping[Grid, Sequence[float]], likely: Sequence[Grid]) -> Grid:
    """Of the grids that fit at least half as many layers as any does: of the likeliest rows and
    columns, which leave the fewest tokens over, the arrangement that fits best. Fewer rows and
    columns can always be laid into more tokens, and one of many ways to do it fits by chance."""
    most = max(map(len, votes.values()))
    often = {grid: sum(each) / len(each) for grid, each in votes.items() if 2 * len(each) >= most}
    first = next(grid for grid in likely if grid in often)
    alike = [grid for grid in often if (grid.height, grid.width) == (first.height, first.width)]
    return min(alike, key=lambda grid: often[grid])


def _why_not(shape: tuple[int, ...], moved: Mapping[str, Tensor] | None) -> str:
    if moved is None or not any(bool(each.any()) for each in moved.values()):
        return f"its output {shape} does not change with the image"
    return (
        f"its output {shape} does not lie on the image: a change at one place of the image does "
        "not show at one place of the output"
    )


def _reshape(model: nn.Module, layer: str) -> Reshape | None:
    """What was declared for the layer, the last first."""
    for pattern, reshape in reversed(_DECLARED.get(model, {}).items()):
        if fnmatch.fnmatchcase(layer, pattern):
            return reshape
    return None


def _reshaped(reshape: Reshape, output: Tensor) -> Location:
    """Where a layer lies whose output is reshaped as it was declared."""
    shape = tuple(output.shape[1:])
    if isinstance(reshape, str):
        grid = grid_in_words(reshape)
        last = grid.prefix + grid.height * grid.width
        if output.ndim == 3 and last <= output.shape[1]:
            return Location(shape, grid)
        return Location(shape, None, f"its output {shape} has no {last} tokens for {reshape!r}")
    try:
        shaped: Any = reshape(output)
    except Exception as error:  # it is the user's, and a pattern may match what it was not made for
        return Location(shape, None, f"its output {shape} cannot be reshaped: {error}")
    if not isinstance(shaped, Tensor) or shaped.ndim != 4 or len(shaped) != len(output):
        what = tuple(shaped.shape) if isinstance(shaped, Tensor) else type(shaped).__name__
        problem = f"its reshape returns {what}, not (batch, channels, height, width)"
        return Location(shape, None, problem)
    return Location(
        shape, Grid("custom", int(shaped.shape[2]), int(shaped.shape[3]), reshape=reshape)
    )
