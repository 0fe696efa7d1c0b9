"""Grids of a layer's output: how maps and tokens become (batch, channels, height, width).

A grid describes feature maps, channels-last maps or tokens. This module lists the grids that a
shape allows; `cam.positions.locate` finds out which of them is the right one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from cam.drawing.placement import Placement, interpolation
from cam.errors import LayerNotSpatial, MethodUnsuited

Kind = Literal["channels first", "channels last", "tokens", "custom"]
Size = tuple[int, int]
"""Height and width."""
NO_GRID = "not a grid of positions on the image"
STACKED = "rows for one image"
TOKENS_FIRST = (
    "it changes the layer's output for several images, which needs (batch, tokens, channels), not "
    "(tokens, batch, channels)"
)
MAX_EXTRA = 16
"""Largest number of class, distillation and register tokens beside the patches."""
TOLERANCE = 4
"""Largest number of cells by which convolutions without padding shorten a side (Inception's
stem)."""


@dataclass(frozen=True)
class Grid:
    """The arrangement of the positions in a layer's output. Rows and columns are counted upright,
    as they lie on the image."""

    kind: Kind
    height: int
    width: int
    prefix: int = 0
    """Number of tokens before the first patch."""
    order: tuple[int, ...] | None = field(default=None, repr=False)
    """Index of the token of each position, row by row; None if the tokens themselves lie row by
    row after the prefix."""
    reshape: Callable[[Tensor], Tensor] | None = None
    """Function of a custom grid, from the output (B, …) to (B, K, height, width)."""
    placement: Placement | None = None
    """Where the positions lie on the model's input; None if they cover it evenly and upright."""
    tokens_first: bool = False
    """Whether the tokens lie before the batch, (N, B, K), as in torch's transformers by default."""

    def shape(self, one: tuple[int, ...], batch: int) -> tuple[int, ...]:
        """Return the shape of an output for a batch, from that of one image without the batch."""
        return (one[0], batch, *one[1:]) if self.tokens_first else (batch, *one)

    def apply(self, output: Tensor) -> Tensor:
        """Return an output, or its gradient, as (batch, channels, height, width), upright."""
        if self.reshape:
            return self.reshape(output)
        if self.kind == "channels last":
            output = output.movedim(3, 1)
        elif self.kind == "tokens":
            if self.tokens_first:
                output = output.transpose(0, 1)
            patches = output[:, self._tokens(output)].transpose(1, 2)
            sides = self.height, self.width
            if self.placement and self.placement.transposed:
                sides = sides[::-1]
            output = patches.reshape(*patches.shape[:2], *sides)
        return self.placement.turn(output) if self.placement else output

    def enlarge(self, maps: Tensor, size: Size) -> Tensor:
        """Resize maps (n, channels, height, width) bilinearly to images of `size`, each position at
        its place on the images: (n, channels, *size), 0 where the model does not look."""
        if self.placement is None:
            return interpolate(maps, size=size, mode="bilinear")
        box = self.placement.box
        rows = interpolation(maps.shape[2], box.top, box.bottom, size[0])
        columns = interpolation(maps.shape[3], box.left, box.right, size[1])
        return torch.from_numpy(rows).to(maps) @ maps @ torch.from_numpy(columns).to(maps).T

    @property
    def upright(self) -> Grid:
        """The grid of the maps that `apply` returns."""
        placement = self.placement and replace(
            self.placement, transposed=False, upside_down=False, mirrored=False
        )
        return Grid("channels first", self.height, self.width, placement=placement)

    def put(self, output: Tensor, values: Tensor) -> Tensor:
        """Return a copy of an output with `values`, (batch, channels, height, width), at its
        positions. Tokens that are not patches keep their values.

        Raises:
            MethodUnsuited: if the grid is custom, because its function has no known inverse.
        """
        if self.kind == "custom":
            raise MethodUnsuited("it changes the layer, and a reshape of your own has no inverse")
        changed = output.clone()
        if self.placement:
            values = self.placement.turn_back(values)
        if self.kind == "channels last":
            changed[:] = values.movedim(1, 3)
        elif self.kind == "tokens":
            changed[:, self._tokens(output)] = values.flatten(2).transpose(1, 2).to(changed)
        else:
            changed[:] = values
        return changed

    def _tokens(self, output: Tensor) -> slice | Tensor:
        """Return the indices of the patches along the token dimension of the output, row by row."""
        if self.order is not None:
            return torch.tensor(self.order, device=output.device)
        return slice(self.prefix, self.prefix + self.height * self.width)


@dataclass(frozen=True)
class Location:
    """Where one layer's output lies on the image."""

    shape: tuple[int, ...]
    """Shape of the output, without the batch dimension; empty if the output is not a tensor."""
    grid: Grid | None
    problem: str | None = None
    """Reason why the output has no grid, as a clause that completes an error message."""


@dataclass(frozen=True)
class Located:
    """Where the outputs of a model's layers lie on images of one size."""

    found: Mapping[str, Location]
    """Layer name → location, for layers that run once in a forward pass."""

    def grid(self, layer: str) -> Grid | None:
        return self.found[layer].grid if layer in self.found else None

    def grids(self, activations: Mapping[str, Tensor], images: Tensor) -> dict[str, Grid]:
        """Return the grid of each layer that returned `activations` (B, …) for images (B, …).

        Raises:
            LayerNotSpatial: if the output of a layer has no grid on the images.
        """
        grids = {}
        for layer, activation in activations.items():
            shape, known = tuple(activation.shape), self.found.get(layer)
            if known and known.grid is None:
                raise LayerNotSpatial(f"no map can be made at layer {layer!r}: {known.problem}")
            if not (known and known.grid) or shape != known.grid.shape(known.shape, len(images)):
                problem = f"its output {shape[1:]} is {NO_GRID}"
                raise LayerNotSpatial(f"no map can be made at layer {layer!r}: {problem}")
            grids[layer] = known.grid
        return grids


def grid_in_words(words: str) -> Grid:
    """Return the grid that "tokens HEIGHT WIDTH PREFIX" describes, e.g. "tokens 14 14 1". The
    prefix may be left out.

    Raises:
        LayerNotSpatial: if the words do not have this form.
    """
    kind, *numbers = words.split() or [""]
    if kind != "tokens" or len(numbers) not in (2, 3) or not all(n.isdecimal() for n in numbers):
        raise LayerNotSpatial(
            f"a reshape is 'tokens HEIGHT WIDTH PREFIX', such as 'tokens 14 14 1', not {words!r}"
        )
    height, width, prefix = map(int, [*numbers, "0"][:3])
    if not height * width:
        raise LayerNotSpatial(f"a reshape has at least one row and one column, unlike {words!r}")
    return Grid("tokens", height, width, prefix)


def grid_of_map(shape: Sequence[int], image: Size) -> Grid | None:
    """Return the grid of feature maps (B, K, h, w) if the shape is unambiguous, otherwise None.

    A shape is unambiguous if its last two dimensions have the image's proportions, and dimensions
    1 and 2 do not.
    """
    if len(shape) == 4 and covers(shape[2], shape[3], image):
        others = covers(shape[1], shape[2], image) or shape[1] == shape[2] == shape[3]
        return None if others else Grid("channels first", shape[2], shape[3])
    return None


def candidates(
    shape: Sequence[int], image: Size, *, sides: Sequence[Size] = (), orders: Sequence[Grid] = ()
) -> list[Grid]:
    """Return every grid that a layer's output may have, the likeliest first.

    In an output with four dimensions, the positions are the last two dimensions, or the two
    dimensions before the last. In an output with three dimensions, the tokens lie row by row, with
    at most MAX_EXTRA other tokens before them, after them or in the middle. The numbers of rows
    and columns are those that the model states, or those that one stride makes of the image or of
    a square.

    Args:
        shape: of the output, with the batch dimension.
        image: height and width of the image that the layer saw.
        sides: heights and widths of the token grids that the model states.
        orders: grids that the model states, whose tokens lie in another order.
    """
    if len(shape) == 4:
        grids = []
        if shape[2] * shape[3] > 1:
            grids.append(Grid("channels first", shape[2], shape[3]))
        if min(shape[1], shape[2]) > 1:
            grids.append(Grid("channels last", shape[1], shape[2]))
        # A model may resize the image, so the proportions only tell which grid is likelier.
        return sorted(grids, key=lambda grid: not covers(grid.height, grid.width, image))
    if len(shape) != 3:
        return []
    count = shape[1]
    grids = [grid for grid in orders if grid.order and len(grid.order) == count]
    likely = [side for side in sides if 0 <= count - math.prod(side) <= MAX_EXTRA]
    for height, width in dict.fromkeys([*likely, *_sides(count, image)]):
        grids += _arrangements(count, height, width)
    return list(dict.fromkeys(grids))


def _sides(count: int, image: Size) -> Iterator[Size]:
    """Yield the rows and columns of tokens that one stride makes of the image, or of a square to
    which a model may resize it. Grids with the fewest tokens left over come first."""
    for extra in range(min(MAX_EXTRA, count - 2) + 1):
        for of in dict.fromkeys((image, (max(image), max(image)))):
            patches = count - extra
            height = round((patches * of[0] / of[1]) ** 0.5)
            for rows in (height, height - 1, height + 1):
                if rows > 1 and patches % rows == 0 and patches // rows > 1:
                    sides = rows, patches // rows
                    if _strided(sides, of):
                        yield sides


def _strided(sides: Size, image: Size) -> bool:
    """Return whether one stride and one padding make these rows and columns of the image."""
    fewest = [pixels // (length + 1) for length, pixels in zip(sides, image, strict=True)]
    most = [-(-pixels // (length - 1)) for length, pixels in zip(sides, image, strict=True)]
    return any(
        sides == ((image[0] + padding) // stride, (image[1] + padding) // stride)
        for stride in range(max(*fewest, 1), min(most) + 1)
        for padding in range(1 - stride, stride)
    )


def _arrangements(count: int, height: int, width: int) -> Iterator[Grid]:
    """Yield the arrangements of height × width patches among `count` tokens. The usual one comes
    first: the patches after all other tokens. The others have the patches between or before the
    other tokens, or around one token in the middle."""
    extra = count - height * width
    for prefix in range(extra, -1, -1):
        yield Grid("tokens", height, width, prefix)
    if extra == 1:
        middle = count // 2
        order = tuple(index for index in range(count) if index != middle)
        yield Grid("tokens", height, width, order=order)


def covers(height: int, width: int, image: Size) -> bool:
    """Return whether height × width cells may cover the image at some stride."""
    if height * width <= 1 or abs(height - width * image[0] / image[1]) > 1:
        return False
    stride = max(round(image[0] / (height + TOLERANCE / 2)), 1)
    strides = range(max(stride - 1, 1), stride + 2)
    return any(abs(height - image[0] / step) <= TOLERANCE for step in strides)
