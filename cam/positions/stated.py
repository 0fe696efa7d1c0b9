"""Read what a model's modules state about its tokens: the sides of their grid and their order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from cam.hooks.grids import Grid, Size


@dataclass(frozen=True)
class Stated:
    """What a model states about its own tokens."""

    sides: tuple[Size, ...] = ()
    """Heights and widths of the grids of its patch embeddings, in tokens."""
    orders: tuple[Grid, ...] = ()
    """Grids of a model that keeps its tokens in another order and can restore the row order."""


def stated_by(model: nn.Module, size: Size) -> Stated:
    """Return what the modules of `model` state for an image of `size`. They may state the size of a
    patch (`patch_size` of a module or its configuration), the grid (`grid_size`), or the order of
    the tokens (`reroll`)."""
    sides: list[Size] = []
    orders: list[Grid] = []
    for module in model.modules():
        for owner in (module, getattr(module, "config", None)):
            patch = _pair(getattr(owner, "patch_size", None))
            if patch and size[0] >= patch[0] and size[1] >= patch[1]:
                sides.append((size[0] // patch[0], size[1] // patch[1]))
        grid = _pair(getattr(module, "grid_size", None))
        if grid:
            sides.append(grid)
        orders += _rerolled(module)
    return Stated(tuple(dict.fromkeys(sides)), tuple(dict.fromkeys(orders)))


def _pair(value: Any) -> Size | None:
    if isinstance(value, int):
        value = (value, value)
    if not isinstance(value, tuple | list) or len(value) != 2:
        return None
    if not all(type(number) is int and number > 0 for number in value):
        return None
    return value[0], value[1]


def _rerolled(module: nn.Module) -> Iterator[Grid]:
    """Yield the orders of Hiera's tokens, which lie unit by unit, for each block. The module's
    `reroll` restores the row order of a block's tokens, and its `schedule` states their number. The
    models of timm and transformers have both."""
    reroll = getattr(module, "reroll", None)
    schedule = getattr(reroll, "schedule", None) or getattr(module, "schedule", None)
    if not callable(reroll) or not isinstance(schedule, Mapping):
        return
    for block, planned in schedule.items():
        try:
            height, width = planned[1]
            indices = torch.arange(float(height * width)).view(1, -1, 1)
            rolled = reroll(indices, block)
        except Exception:  # noqa: S112  # another kind of reroll, which states nothing
            continue
        if tuple(rolled.shape) == (1, height, width, 1):
            order = tuple(int(index) for index in rolled.flatten().tolist())
            yield Grid("tokens", height, width, order=order)
