"""Measure how the outputs of layers respond to changes of the image, and how well a grid fits.

The image is changed in one patch after another.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cam.drawing.placement import Region
from cam.hooks.calls import Modules, hooked
from cam.hooks.grids import Grid, Size, covers
from cam.positions.views import View

FRACTIONS = (
    (0.10, 0.25), (0.20, 0.75), (0.30, 0.45), (0.42, 0.95), (0.50, 0.10),
    (0.60, 0.60), (0.75, 0.85), (0.85, 0.30), (0.95, 0.55),
)  # fmt: skip
"""Positions of the changed patches, as shares of height and width. No two lie in one row or column,
and the set has no symmetry, so that a mirrored or rotated grid does not fit."""
LEAST_PATCH = 6
"""Least side of a patch in pixels. A patch covers several tokens if tokens are smaller."""
HITS = 0.75
"""Least `hits` of a grid that fits."""
FOLLOWS = 0.9
"""Least `follows` of a grid of few tokens, and of a grid for which fewer patches hit (at least half
of `HITS`)."""
LEAST_FOLLOWS = 0.7
"""Least `follows` of a grid whose shape leaves doubt, however many patches hit. Some patches hit by
chance if the positions have seen all others, or if a grid has few columns."""
SINGLE = 0.95
"""Least share of the response to a patch in one token, of a layer whose tokens have not seen each
other."""
FEW = 9
"""Number of tokens below which all patches must hit."""
FEW_PIXELS = 8
"""Side of a patch in pixels below which its noise is symmetric about its middle: the middle of a
few pixels of noise, and so of the responses to them, lies beside that of the patch."""
FAINT = 0.02
"""Strength of the strips that tell which part of the image is seen. A model that crops what is
brightest would crop a bright strip."""
PLAIN = View()
Float64 = NDArray[np.float64]
AXES = {4: {"channels first": 1, "channels last": 3}, 3: {"tokens": 2}}
"""Number of dimensions of an output → each possible kind of grid and its channel dimension."""


@dataclass(frozen=True)
class Patch:
    """A rectangle of the image, given by its edges in pixels."""

    top: int
    left: int
    bottom: int
    right: int

    @property
    def region(self) -> Region:
        """The patch as a region of the image."""
        return Region(self.left, self.top, self.right - self.left, self.bottom - self.top)

    def centre(self, size: Size) -> tuple[float, float]:
        """Return the centre, as shares of the height and width of an image of `size`."""
        return (self.top + self.bottom) / 2 / size[0], (self.left + self.right) / 2 / size[1]


@dataclass(frozen=True)
class Fit:
    """How well the changes of a layer's output match the patch positions that a grid predicts."""

    hits: float
    """Share of the patches for which the output changes most at the patch, or next to it: at most
    0.51 positions away for tokens, at most 1 for maps."""
    follows: float
    """Pearson's correlation of the patch centres with the centres of the changes in the output,
    along the worse of the two axes."""
    distance: float
    """Distance from a patch to the position that changes most, in positions: the mean over the
    patches, each limited to 3."""
    unlikely: bool = False
    """Whether the shape leaves doubt: true for tokens, which may be arranged in many ways, and for
    grids without the image's proportions."""
    few: bool = False
    """Whether there are so few tokens that most of their arrangements fit by chance."""
    missed: bool = False
    """Whether nearly all of the response to a patch is in one token, and some patches miss it: a
    layer whose tokens have not seen each other contradicts a grid by a single one."""

    @property
    def exact(self) -> bool:
        """Whether all patches hit and the mean distance is near 0."""
        return self.hits == 1 and self.distance < 0.1

    @property
    def good(self) -> bool:
        """Whether the grid fits well enough to be used."""
        if self.missed:
            return False
        if self.few:
            return self.hits == 1 and self.follows >= FOLLOWS
        hits = self.hits >= HITS and (self.follows >= LEAST_FOLLOWS or not self.unlikely)
        return hits or (self.follows >= FOLLOWS and self.hits >= HITS / 2)


def patches_of(
    size: Size, cells: Size, within: Patch | None = None, least: int = LEAST_PATCH
) -> list[Patch]:
    """Return patches of an image of `size`, or of the part `within` of it. The image or the part is
    divided into `cells` (rows, columns), and a patch is one cell, or several neighbours if cells
    are smaller than `least` pixels."""
    part = within or Patch(0, 0, *size)
    height, width = part.bottom - part.top, part.right - part.left
    rows, columns = min(cells[0], height), min(cells[1], width)
    rows = max(rows // max(-(-least * rows // height), 1), min(4, rows))
    columns = max(columns // max(-(-least * columns // width), 1), min(4, columns))
    places = dict.fromkeys((int(y * rows), int(x * columns)) for y, x in FRACTIONS)
    return [
        Patch(
            part.top + round(row * height / rows),
            part.left + round(column * width / columns),
            part.top + round((row + 1) * height / rows),
            part.left + round((column + 1) * width / columns),
        )
        for row, column in places
    ]


def outputs_at(model: nn.Module, modules: Mapping[str, nn.Module], image: Tensor) -> dict[str, Any]:
    """Return the outputs for the image of the layers that run once."""
    outputs: dict[str, Any] = {}
    runs: Counter[str] = Counter()

    def note(name: str, module: nn.Module, args: Any, output: Any) -> None:
        runs[name] += 1
        # Later modules may change it in place.
        outputs[name] = output.clone() if isinstance(output, Tensor) else output

    with hooked(modules, note):
        model(image.clone())
    return {name: output for name, output in outputs.items() if runs[name] == 1}


def runs_of(model: nn.Module, image: Tensor) -> Counter[str]:
    """Return how often each module runs in a forward pass for the image."""
    runs: Counter[str] = Counter()

    def note(name: str, module: nn.Module, args: Any) -> None:
        runs[name] += 1

    with ExitStack() as scope:
        for name, module in Modules(model).items():
            scope.callback(module.register_forward_pre_hook(partial(note, name)).remove)
        model(image.clone())
    return runs


def tokens_first(output: Tensor) -> bool:
    """Return whether an output for one image has its tokens before the batch, (N, 1, K)."""
    return output.ndim == 3 and output.shape[0] > 1 == output.shape[1]


def responses(
    model: nn.Module,
    modules: Mapping[str, nn.Module],
    image: Tensor,
    before: Mapping[str, Tensor],
    patches: Sequence[Patch],
    kinds: Mapping[str, Collection[str]] | None = None,
    changed: tuple[str, Tensor, int] | None = None,
    strength: float = 1.0,
) -> dict[str, dict[str, Tensor]]:
    """Return how much each position of each layer's output changes, compared to `before`, when each
    patch of the image is changed.

    Args:
        kinds: layer → the kinds of grid for which this is asked; None asks for all.
        changed: a layer, its output for the image, and the dimension of the output's channels. Then
            patches of that output are changed, not patches of the image.
        strength: how much a patch is changed, in units of twice the image's standard deviation.

    Returns:
        Layer → kind of grid → float32 (patches, h, w), or (patches, N) for tokens: the norm of the
        change over the channels, on the CPU. A layer whose output changes its shape, or that runs
        more or less than once in a pass, is left out.
    """
    moved: dict[str, dict[str, list[Tensor]]] = {name: defaultdict(list) for name in before}

    def note(name: str, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.shape == before[name].shape:
            squares = (output.float() - before[name].float()).nan_to_num().square_()
            if tokens_first(squares):
                squares = squares.transpose(0, 1)
            for kind, axis in AXES[squares.ndim].items():
                if kinds is None or kind in kinds[name]:
                    moved[name][kind].append(squares.sum(axis).sqrt_()[0].cpu())

    with hooked({name: modules[name] for name in before}, note):
        if changed is None:
            for one in _changed(image, patches, strength):
                model(one)
        else:
            layer, output, axis = changed
            for one in _changed(output.movedim(axis, 1), patches, strength):
                instead = one.movedim(1, axis)
                with modules[layer].register_forward_hook(lambda *_, put=instead: put):
                    model(image.clone())
    return {
        name: {kind: torch.stack(changes) for kind, changes in kinds.items()}
        for name, kinds in moved.items()
        if kinds and all(len(changes) == len(patches) for changes in kinds.values())
    }


def seen_part(
    model: nn.Module,
    modules: Mapping[str, nn.Module],
    image: Tensor,
    before: Mapping[str, Tensor],
    changed: tuple[str, Tensor, int] | None = None,
) -> Patch | None:
    """Return the part of the image that any of the layers looks at, or None if they look at
    nothing. Each edge is found by changing strips along it, to about a hundredth of the side.

    Args:
        before: the outputs of the layers for the image.
        changed: as for `responses`. Then it is the part of that layer's positions.
    """
    sides = image.shape if changed is None else changed[1].movedim(changed[2], 1).shape
    height, width = int(sides[-2]), int(sides[-1])

    def moves(patch: Patch) -> bool:
        moved = responses(model, modules, image, before, [patch], None, changed, FAINT)
        return any(bool(cells.any()) for kinds in moved.values() for cells in kinds.values())

    strips: list[tuple[Callable[[int], Patch], int]] = [
        (lambda n: Patch(0, 0, n, width), height),
        (lambda n: Patch(0, 0, height, n), width),
        (lambda n: Patch(height - n, 0, height, width), height),
        (lambda n: Patch(0, width - n, height, width), width),
    ]
    least = [max(side // 100, 1) for _, side in strips]
    at_edge = [moves(strip(few)) for (strip, _), few in zip(strips, least, strict=True)]
    if not any(at_edge) and not moves(Patch(0, 0, height, width)):
        return None
    edges = []
    for (strip, side), few, moved in zip(strips, least, at_edge, strict=True):
        # A strip of `unseen` pixels moves nothing, one of `seen` does. Most models see the edge.
        unseen, seen = (0, few) if moved else (few, side)
        while seen - unseen > few:
            middle = (unseen + seen) // 2
            unseen, seen = (unseen, middle) if moves(strip(middle)) else (middle, seen)
        edges.append(unseen)
    return Patch(edges[0], edges[1], height - edges[2], width - edges[3])


def _changed(image: Tensor, patches: Sequence[Patch], strength: float) -> Iterator[Tensor]:
    """Yield a copy of the image (1, C, H, W) for each patch, with the patch changed. The noise has
    a fixed seed."""
    rng = torch.Generator().manual_seed(0)
    contrast = float(image.float().std(correction=0)) or 1.0
    for patch in patches:
        changed = image.clone()
        part = changed[..., patch.top : patch.bottom, patch.left : patch.right]
        # The patch becomes brighter and rougher: some layers do not respond to one of the two.
        noise = torch.randn(part.shape, generator=rng)
        if min(part.shape[-2:]) < FEW_PIXELS:
            noise = (noise + noise.flip(-2, -1)) / 2**0.5
        part += (2 * strength * contrast * (1 + noise)).to(part)
        yield changed


@dataclass(frozen=True)
class Peaks:
    """Where a layer responds to each patch that changes its output, in positions of one grid."""

    grid: Grid
    """Without a placement."""
    patches: Sequence[Patch]
    """The patches that change the output."""
    count: int
    """Number of all patches."""
    places: Sequence[tuple[float, float]]
    """Row and column of the greatest response to each patch; 0.5 is the middle of the first."""
    rows: Float64
    columns: Float64
    """float64 (patches,): the centres of the responses."""
    shape: Size
    """Rows and columns of the responses."""
    single: bool
    """Whether the grid is of tokens, each patch changes one token, and others hardly."""

    def fit(self, size: Size, view: View = PLAIN) -> Fit:
        """Return how well the grid explains the responses, if the layer has that view of an image
        of `size`."""
        if len(self.patches) < 2:
            return Fit(0.0, 0.0, inf)
        height, width = self.shape
        # Rounding in strides and padding may shift feature maps by one position.
        slack = 0.51 if self.grid.kind == "tokens" else 1.0
        distances, wanted = [], []
        for patch, (row, column) in zip(self.patches, self.places, strict=True):
            first = view.shares(patch.top / size[0], patch.left / size[1])
            last = view.shares(patch.bottom / size[0], patch.right / size[1])
            down = _outside(row, first[0] * height, last[0] * height)
            across = _outside(column, first[1] * width, last[1] * width)
            distances.append(max(down, across))
            wanted.append(view.shares(*patch.centre(size)))
        down, across = np.array(wanted).T
        follows = []
        if height > 1:
            follows.append(_correlation(self.rows, down))
        if width > 1:
            follows.append(_correlation(self.columns, across))
        return Fit(
            # A patch that changes nothing does not count as a hit, but counts as a patch: a few
            # patches that do change the output are little evidence.
            hits=sum(distance <= slack for distance in distances) / self.count,
            follows=min(follows, default=0.0),
            distance=sum(min(distance, 3.0) for distance in distances) / len(distances),
            unlikely=self.grid.kind == "tokens" or not covers(height, width, size),
            few=self.grid.kind == "tokens" and height * width < FEW,
            missed=self.single and max(distances) > slack,
        )


def peaks_of(grid: Grid, moved: Tensor, patches: Sequence[Patch]) -> Peaks:
    """Return where a layer responds to each of the patches.

    Args:
        moved: the layer's responses: float32 (patches, h, w), or (patches, N) for tokens.
    """
    if grid.kind == "tokens":
        moved = grid.apply(moved[..., None])[:, 0]
    moving = moved.flatten(1).any(1)
    places = [patch for patch, moves in zip(patches, moving.tolist(), strict=True) if moves]
    changes = moved[moving].double()
    shares = changes / changes.sum((1, 2), keepdim=True)
    # A change that every patch causes does not show where the patch is, so it is subtracted.
    more = shares - (shares.sum(0) - shares) / max(len(shares) - 1, 1)
    height, width = moved.shape[1:]
    weights = more.clamp(min=0)
    weights = weights / weights.sum((1, 2), keepdim=True).clamp(min=1e-30)
    first = more.flatten(1).argmax(1).tolist()
    return Peaks(
        grid,
        places,
        len(patches),
        [(place // width + 0.5, place % width + 0.5) for place in first],
        (weights.sum(2) @ torch.arange(height, dtype=torch.float64)).numpy(),
        (weights.sum(1) @ torch.arange(width, dtype=torch.float64)).numpy(),
        (height, width),
        grid.kind == "tokens" and bool((shares.amax((1, 2)) >= SINGLE).all()),
    )


def _outside(position: float, one: float, other: float) -> float:
    """Return how far a position lies outside the interval between two edges: 0 inside."""
    return max(min(one, other) - position, position - max(one, other), 0.0)


def _correlation(one: Float64, other: Float64) -> float:
    """Return Pearson's correlation of two vectors."""
    one, other = one - one.mean(), other - other.mean()
    return float(
        (one * other).sum() / max(float(np.sqrt((one**2).sum() * (other**2).sum())), 1e-12)
    )
