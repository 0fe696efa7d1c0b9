"""Test a model's layers with one image: change it, or a layer, in one patch after another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any, Final

import torch
from torch import Tensor, nn

from cam.hooks.calls import Modules, Turns, turns_of
from cam.hooks.grids import Grid, Size
from cam.positions.flow import feeding
from cam.positions.responses import (
    LEAST_PATCH,
    PLAIN,
    Fit,
    Patch,
    Peaks,
    outputs_at,
    patches_of,
    peaks_of,
    responses,
    seen_part,
    tokens_first,
)
from cam.positions.stated import Stated
from cam.positions.views import EDGE, Centres, View, centres_of

CELLS = (7, 7)
"""Rows and columns of the patches for feature maps, if the model states no token grid."""
MOST_BRANCHES: Final = 8
"""Maximum number of groups of layers whose part of the image is measured. Each takes about thirty
passes."""


@dataclass(frozen=True, eq=False)
class Measured:
    """What is known of one layer from the changes of the image, or of a source."""

    grids: Sequence[Grid]
    """The grids that its shape allows, the likeliest first."""
    moved: Mapping[str, Tensor]
    """Kind of grid → responses, as `cam.positions.responses.responses` returns them."""
    patches: Sequence[Patch]
    peaks: dict[Grid, Peaks] = field(default_factory=dict)

    def fit(self, grid: Grid, size: Size, view: View = PLAIN) -> Fit | None:
        """Return how well a grid fits under a view; None if the layer did not respond."""
        if grid.kind not in self.moved:
            return None
        if grid not in self.peaks:
            self.peaks[grid] = peaks_of(grid, self.moved[grid.kind], self.patches)
        return self.peaks[grid].fit(size, view)

    def distance(self, grid: Grid, size: Size, view: View) -> float:
        """Return the mean distance of the responses from their patches, in positions."""
        fit = self.fit(grid, size, view)
        return fit.distance if fit else inf

    @property
    def moves(self) -> bool:
        """Whether any of the patches changes the layer's output."""
        return any(bool(moved.any()) for moved in self.moved.values())

    def centres(self, grid: Grid, size: Size) -> Centres | None:
        """Return where the layer responds on a grid; None if its responses are not sharp."""
        if grid.kind not in self.moved:
            return None
        moved = self.moved[grid.kind]
        if grid.kind == "tokens":
            moved = grid.apply(moved[..., None])[:, 0]
        centres = centres_of(moved, [patch.centre(size) for patch in self.patches])
        return centres if centres.sharp else None


@dataclass(frozen=True)
class LocatedLayer:
    """A layer whose place is known, as seen from the layers behind it."""

    name: str
    grid: Grid
    """Its rows and columns, as they lie in its output."""
    view: View

    @property
    def cells(self) -> Size:
        return self.grid.height, self.grid.width

    def fits(self, grid: Grid) -> bool:
        """Return whether strides alone lead from the layer's rows and columns to those of `grid`:
        both are divided by one number, or multiplied with it, and rounded."""
        (height, width), rows, columns = self.cells, grid.height, grid.width
        enlarged = rows > height or columns > width
        if enlarged:
            height, width, rows, columns = rows, columns, height, width
        return any(
            abs(height - times * rows) < max(times, 2)
            and abs(width - times * columns) < max(times, 2)
            for times in {max(round(height / rows), 1), max(round(width / columns), 1)}
        )


class Measurement:
    """The tests of the layers of one model with one image, in eval mode and without gradients.

    Args:
        outputs: name → output for the image.
        grids: name → the grids that its shape allows, the likeliest first. These layers are tested.
        runs: module → how often it runs in a forward pass, if layers may be calls of modules.
        stated: what the model's modules state about its tokens.
    """

    def __init__(
        self,
        model: nn.Module,
        image: Tensor,
        outputs: Mapping[str, Any],
        grids: Mapping[str, Sequence[Grid]],
        runs: Mapping[str, int],
        stated: Stated,
    ) -> None:
        self._model, self._image, self._grids = model, image, grids
        self._modules = Modules(model)
        self._outputs: dict[str, Tensor] = {name: outputs[name] for name in grids}
        self.size: Size = (int(image.shape[-2]), int(image.shape[-1]))
        self.turned = {name for name, output in self._outputs.items() if tokens_first(output)}
        """The layers whose tokens lie before the batch."""
        self.shapes = {
            name: tuple((output.transpose(0, 1) if name in self.turned else output).shape[1:])
            for name, output in self._outputs.items()
        }
        """Name → shape of the output, without the batch dimension."""
        self.within = {name: turns_of(name, runs) for name in grids}
        """Name → the turns in which the layer runs, see `cam.hooks.calls.turns_of`."""
        self._whole = Patch(0, 0, *self.size)
        self._parts: dict[Turns, Patch] = {}
        self._behind: dict[tuple[str, Patch], dict[str, Measured]] = {}
        self.layers = self._tested(stated)
        """Name → what changes of the image show, in the order of execution."""

    @property
    def parts(self) -> dict[Turns, Patch]:
        """Turns → the part of the image at which its layers look, as far as it is known: of all
        calls, and of branches that look at a part."""
        return {
            turns: part
            for turns, part in self._parts.items()
            if turns or _is_part(part, self._whole)
        }

    @cached_property
    def feeding(self) -> Mapping[str, frozenset[str]]:
        """Name → the layers from which its output is computed directly."""
        return feeding(self._model, self._modules, self._image, self._grids)

    @cached_property
    def of_tall_image(self) -> Mapping[str, tuple[int, ...]]:
        """Name → shape of the output for an image of twice the height, without the batch dimension;
        nothing if the model takes no such image."""
        modules = {name: self._modules[name] for name in self._grids}
        try:
            outputs = outputs_at(self._model, modules, torch.cat([self._image, self._image], 2))
        except Exception:  # a model may raise anything about an image of another size
            return {}
        return {
            name: tuple(output.shape[1:])
            for name, output in outputs.items()
            if isinstance(output, Tensor)
        }

    def seen(self, turns: Turns) -> Patch:
        """Return the part of the image at which the layers of a turn look."""
        if turns not in self._parts:
            self._parts[turns] = self._part_of(
                name for name in self._grids if self.within[name] == turns
            )
        return self._parts[turns]

    def behind(self, source: LocatedLayer, part: Patch | None = None) -> Mapping[str, Measured]:
        """Test all feature maps by changes of a source's output.

        Args:
            part: the positions of the source that are changed; None for all of them.
        """
        part = part or Patch(0, 0, *source.cells)
        key = source.name, part
        if key not in self._behind:
            maps = [name for name in self._grids if len(self.shapes[name]) == 3]
            patches = patches_of(source.cells, CELLS, part, least=1)
            self._behind[key] = self._responding(maps, patches, self._change(source))
        return self._behind[key]

    def part_of(self, source: LocatedLayer, name: str) -> Patch:
        """Return the positions of a source at which a layer looks."""
        before = {name: self._outputs[name]}
        part = seen_part(self._model, self._modules, self._image, before, self._change(source))
        return part or Patch(0, 0, *source.cells)

    def _change(self, source: LocatedLayer) -> tuple[str, Tensor, int]:
        axis = 3 if source.grid.kind == "channels last" else 1
        return source.name, self._outputs[source.name], axis

    def _tested(self, stated: Stated) -> dict[str, Measured]:
        measured: dict[str, Measured] = {}
        for cells, names in self._by_cells(stated).items():
            measured |= self._responding(names, patches_of(self.size, cells))
            for turns in dict.fromkeys(self.within[name] for name in names):
                alike = [name for name in names if self.within[name] == turns]
                seen = self.seen(turns)
                every = _moving([measured[name] for name in alike]).all()
                if not every or _is_part(seen, self._whole):
                    inside = patches_of(self.size, cells, seen)
                    measured |= self._responding(alike, inside)
                # A branch, or what comes behind a crop, may look at a part of what the others see.
                for branch in _branches({name: measured[name] for name in alike}):
                    part = self._part_of(branch)
                    if _is_part(part, self._parts.get(turns, self._whole)):
                        # As if it ran in a call of its own.
                        own = (*turns, (0, len(self._parts)))
                        self._parts[own] = part
                        self.within |= dict.fromkeys(branch, own)
                        measured |= self._responding(branch, patches_of(self.size, cells, part))
        return {name: measured[name] for name in self._grids}

    def _responding(
        self,
        names: Iterable[str],
        patches: Sequence[Patch],
        changed: tuple[str, Tensor, int] | None = None,
    ) -> dict[str, Measured]:
        before = {name: self._outputs[name] for name in names}
        kinds = {name: {grid.kind for grid in self._grids[name]} for name in before}
        moved = responses(self._model, self._modules, self._image, before, patches, kinds, changed)
        return {name: Measured(self._grids[name], moved.get(name, {}), patches) for name in before}

    def _part_of(self, names: Iterable[str]) -> Patch:
        before = {name: self._outputs[name] for name in names}
        return seen_part(self._model, self._modules, self._image, before) or self._whole

    def _by_cells(self, stated: Stated) -> dict[Size, list[str]]:
        """Group the layers by the rows and columns of the patches that test their grids.

        The patches for a layer of tokens have the size of its tokens, so that one token sees each
        patch. With smaller patches, tokens from a strided layer would see few of the patches. With
        larger patches, many tokens would see each patch. A wrong grid would then fit by chance.
        """
        sides: dict[int, Size] = {}
        for name, grids in self._grids.items():
            if grids[0].kind == "tokens":
                sides.setdefault(self.shapes[name][0], (grids[0].height, grids[0].width))
        usual = (*stated.sides, CELLS)[0]
        groups: dict[Size, list[str]] = defaultdict(list)
        for name, shape in self.shapes.items():
            groups[sides[shape[0]] if len(shape) == 2 else usual].append(name)
        return groups


def _moving(layers: Iterable[Measured]) -> Tensor:
    """Return which patches move any of the layers, which were tested with the same ones: bool
    (patches,)."""
    moved = [cells.flatten(1).any(1) for layer in layers for cells in layer.moved.values()]
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
