"""How the outputs of a model's layers respond as the image is changed patch by patch, and how well
a grid explains that.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cam.hooks.grids import Grid, Size, covers

FRACTIONS = (
    (0.10, 0.25), (0.20, 0.75), (0.30, 0.45), (0.42, 0.95), (0.50, 0.10),
    (0.60, 0.60), (0.75, 0.85), (0.85, 0.30), (0.95, 0.55),
)  # fmt: skip
"""Where patches are changed, as shares of height and width: no two in one row or column, and the
whole without symmetry, so that a mirrored or turned grid does not fit."""
LEAST_PATCH = 6
"""Pixels of a patch's side: smaller tokens are taken together."""
HITS = 0.75
"""Share of the patches that must move the output most where they are."""
FOLLOWS = 0.9
"""Where fewer do: how well the centre of what moves must follow the patch."""
LEAST_FOLLOWS = 0.7
"""However many hit, where a shape leaves doubt: some hit by chance where positions have seen all
others, or where a grid has few columns."""
FEW = 9
"""Tokens: of fewer, all patches must hit."""
AXES = {4: {"channels first": 1, "channels last": 3}, 3: {"tokens": 2}}
"""Of an output with so many dimensions: each kind of grid, and the dimension of its channels."""


@dataclass(frozen=True)
class Patch:
    """A rectangle of the image: edges in pixels."""

    top: int
    left: int
    bottom: int
    right: int


@dataclass(frozen=True)
class Fit:
    """How well a layer's output moves where a grid says that the patches are."""

    hits: float
    """Share of the patches whose position moves most, give or take one."""
    follows: float
    """Pearson's correlation of where the patches are and the centre of what moves, on the worse
    axis."""
    distance: float
    """From a patch to the position that moves most: its mean over the patches, in positions."""
    unlikely: bool = False
    """Whether the shape leaves doubt: of tokens, which may be arranged in many ways, and of grids
    without the image's proportions."""
    few: bool = False
    """Whether there are so few tokens that most of their arrangements fit by chance."""

    @property
    def exact(self) -> bool:
        """Whether all patches are where the grid says, as far as one can see."""
        return self.hits == 1 and self.distance < 0.1

    @property
    def good(self) -> bool:
        if self.few:
            return self.hits == 1 and self.follows >= FOLLOWS
        hits = self.hits >= HITS and (self.follows >= LEAST_FOLLOWS or not self.unlikely)
        return hits or (self.follows >= FOLLOWS and self.hits >= HITS / 2)


def patches_of(size: Size, cells: Size) -> list[Patch]:
    """Patches of an image of `size`, each one of `cells` (rows, columns), or several small ones."""
    rows, columns = min(cells[0], size[0]), min(cells[1], size[1])
    rows = max(rows // max(-(-LEAST_PATCH * rows // size[0]), 1), min(4, rows))
    columns = max(columns // max(-(-LEAST_PATCH * columns // size[1]), 1), min(4, columns))
    places = dict.fromkeys((int(y * rows), int(x * columns)) for y, x in FRACTIONS)
    return [
        Patch(
            round(row * size[0] / rows),
            round(column * size[1] / columns),
            round((row + 1) * size[0] / rows),
            round((column + 1) * size[1] / columns),
        )
        for row, column in places
    ]


def outputs_at(
    model: nn.Module, modules: Mapping[str, nn.Module], image: Tensor
) -> dict[str, Tensor]:
    """What the layers return for the image: those that run once and return a tensor."""
    outputs: dict[str, Tensor] = {}
    runs: Counter[str] = Counter()

    def note(name: str, module: nn.Module, args: Any, output: Any) -> None:
        runs[name] += 1
        if isinstance(output, Tensor) and output.ndim and not runs[name] > 1:
            outputs[name] = output.clone()  # what follows may change it in place

    with ExitStack() as scope:
        for name, module in modules.items():
            scope.callback(module.register_forward_hook(partial(note, name)).remove)
        model(image.clone())
    return {name: output for name, output in outputs.items() if runs[name] == 1}


def responses(
    model: nn.Module,
    modules: Mapping[str, nn.Module],
    image: Tensor,
    before: Mapping[str, Tensor],
    patches: Sequence[Patch],
) -> dict[str, dict[str, Tensor]]:
    """How far each position of each layer's output moves from where it was `before`, as each patch
    of the image is changed: layer → kind of grid → float32 (patches, h, w), or of tokens
    (patches, N). The norm over the channels, on the CPU."""
    moved: dict[str, dict[str, list[Tensor]]] = {name: defaultdict(list) for name in before}

    def note(name: str, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.shape == before[name].shape:
            change = (output.float() - before[name].float()).nan_to_num()
            for kind, axis in AXES[change.ndim].items():
                moved[name][kind].append(change.norm(dim=axis)[0].cpu())

    rng = torch.Generator().manual_seed(0)
    contrast = float(image.float().std(correction=0)) or 1.0
    with ExitStack() as scope:
        for name in before:
            scope.callback(modules[name].register_forward_hook(partial(note, name)).remove)
        for patch in patches:
            changed = image.clone()
            part = changed[..., patch.top : patch.bottom, patch.left : patch.right]
            # Brighter and rougher: some layers are blind to one of the two.
            part += ((2 + 2 * torch.randn(part.shape, generator=rng)) * contrast).to(part)
            model(changed)
    return {
        name: {kind: torch.stack(each) for kind, each in kinds.items()}
        for name, kinds in moved.items()
        if kinds and all(len(each) == len(patches) for each in kinds.values())
    }


def fit(grid: Grid, moved: Tensor, patches: Sequence[Patch], size: Size) -> Fit:
    """How well the grid explains the responses of a layer, (patches, h, w) or (patches, N)."""
    if grid.kind == "tokens":
        moved = grid.apply(moved[..., None])[:, 0]
    moving = moved.flatten(1).any(1)
    places = [patch for patch, each in zip(patches, moving.tolist(), strict=True) if each]
    if len(places) < 2:
        return Fit(0.0, 0.0, torch.inf)
    shares = moved[moving] / moved[moving].sum((1, 2), keepdim=True)
    # What moves whichever patch is changed does not tell where the patch is.
    more = shares - (shares.sum(0) - shares) / (len(shares) - 1)
    height, width = moved.shape[1:]
    y, x = size[0] / height, size[1] / width
    # Feature maps may be shifted by a position where strides and padding round.
    slack = 0.51 if grid.kind == "tokens" else 1.0
    distances = []
    for patch, each in zip(places, more, strict=True):
        row, column = divmod(int(each.argmax()), width)
        down = max(patch.top / y - row - 0.5, row + 0.5 - patch.bottom / y, 0.0)
        across = max(patch.left / x - column - 0.5, column + 0.5 - patch.right / x, 0.0)
        distances.append(max(down, across))
    weights = more.clamp(min=0)
    weights = weights / weights.sum((1, 2), keepdim=True).clamp(min=1e-30)
    rows = (weights.sum(2) * torch.arange(height)).sum(1)
    columns = (weights.sum(1) * torch.arange(width)).sum(1)
    follows = []
    if height > 1:
        wanted = torch.tensor([float(patch.top + patch.bottom) for patch in places])
        follows.append(_correlation(rows, wanted))
    if width > 1:
        wanted = torch.tensor([float(patch.left + patch.right) for patch in places])
        follows.append(_correlation(columns, wanted))
    return Fit(
        # A patch that moves nothing is no hit: few that do are little evidence.
        hits=sum(each <= slack for each in distances) / len(patches),
        follows=min(follows, default=0.0),
        distance=sum(min(each, 3.0) for each in distances) / len(places),
        unlikely=grid.kind == "tokens" or not covers(height, width, size),
        few=grid.kind == "tokens" and height * width < FEW,
    )


def _correlation(one: Tensor, other: Tensor) -> float:
    one, other = one - one.mean(), other - other.mean()
    return float((one * other).sum() / (one.norm() * other.norm()).clamp(min=1e-12))
