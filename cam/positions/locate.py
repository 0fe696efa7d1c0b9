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
"""A user's function from a layer's output (B, …) to (B, K, h, w), or words: see `grid_in_words`."""
CELLS = (7, 7)
"""Rows and columns of the patches for feature maps, if the model states no token grid."""
TELLING = 25
"""Least number of positions of a feature map whose grid is taken from the test. With fewer
positions, each position sees the whole image many times over, and padding decides where the output
changes most. The grid then follows from the shape, if the shape is unambiguous."""


Key = tuple[str, Size, Reshape | None]
_FOUND: WeakKeyDictionary[nn.Module, dict[Key, Location | None]] = WeakKeyDictionary()
"""Model → the known locations. A layer that does not run exactly once, or does not return a
tensor, has None."""
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
    _FOUND[copy] = dict(_FOUND.get(model, {}))
    _DECLARED[copy] = dict(_DECLARED.get(model, {}))


def locate(model: nn.Module, image: Tensor, layers: Iterable[str] | None = None) -> Located:
    """Find out where the outputs of layers lie on images of the size of `image`.

    The function runs the model once, and once more for each patch unless all shapes are
    unambiguous. If the locations of all the layers are known, it does not run the model. The model
    is left in its original state.

    Args:
        image: float (1, C, H, W), preprocessed, on the model's device and in its dtype.
        layers: names. If None, all layers of the model are located, and every grid is tested, even
            if its shape is unambiguous.
    """
    size = (int(image.shape[-2]), int(image.shape[-1]))
    known = _FOUND.setdefault(model, {})
    modules = {
        name: module
        for name, module in model.named_modules()
        if name and not isinstance(module, torch.jit.ScriptModule)  # runs no hooks
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
        if not image.isfinite().all():  # layers can be located with noise instead
            noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(0))
            image = noise.to(image)
        with evaluating(model), torch.inference_mode(False), torch.no_grad():
            outputs = outputs_at(model, missing, image)
            locations = _locations(model, outputs, reshapes, image, layers)
        known |= {(name, size, reshapes[name]): locations.get(name) for name in missing}
    found = {name: known[name, size, reshapes[name]] for name in names}
    return Located({name: each for name, each in found.items() if each})


def token_grid(model: nn.Module, image: Tensor, count: int) -> Grid | None:
    """Return the grid of the model's layers with `count` tokens, or None if there is no grid."""
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
    """Return the locations of layers that returned `outputs` for the image."""
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


def _judged(
    doubtful: Mapping[str, Sequence[Grid]],
    shapes: Mapping[str, tuple[int, ...]],
    moved: Mapping[str, Mapping[str, Tensor]],
    patches: Sequence[Patch],
    size: Size,
) -> dict[str, Location]:
    """Choose for each layer one of its possible grids.

    Layers with the same number of tokens get the same grid. The early layers show it better than
    the late layers, in which every token has seen all others.
    """
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
        # The order of tokens may change between layers: then the fit of a layer must be exact.
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
    """Choose a grid among those that fit at least half as many layers as any other grid.

    The chosen grid has the likeliest rows and columns, which leave the fewest tokens over, and
    among these the arrangement that fits best. Fewer rows and columns can always be placed among
    more tokens, and one of the many ways to place them fits by chance.
    """
    most = max(map(len, votes.values()))
    often = {grid: sum(each) / len(each) for grid, each in votes.items() if 2 * len(each) >= most}
    first = next(grid for grid in likely if grid in often)
    alike = [grid for grid in often if (grid.height, grid.width) == (first.height, first.width)]
    return min(alike, key=lambda grid: often[grid])


def _why_not(shape: tuple[int, ...], moved: Mapping[str, Tensor] | None) -> str:
    """Return the reason why a layer has no grid, as a clause."""
    if moved is None or not any(bool(each.any()) for each in moved.values()):
        return f"its output {shape} does not change with the image"
    return (
        f"its output {shape} does not lie on the image: a change at one place of the image does "
        "not show at one place of the output"
    )


def _reshape(model: nn.Module, layer: str) -> Reshape | None:
    """Return the reshape that was last declared for the layer, or None."""
    for pattern, reshape in reversed(_DECLARED.get(model, {}).items()):
        if fnmatch.fnmatchcase(layer, pattern):
            return reshape
    return None


def _reshaped(reshape: Reshape, output: Tensor) -> Location:
    """Return the location of a layer whose reshape was declared."""
    shape = tuple(output.shape[1:])
    if isinstance(reshape, str):
        grid = grid_in_words(reshape)
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
