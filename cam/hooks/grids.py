"""How a layer's output lies on the image: feature maps, channels-last maps and tokens become
(batch, channels, height, width).

What a shape could mean is told here; which of it is true is told by `cam.positions.locate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from cam.errors import LayerNotSpatial, MethodUnsuited

Kind = Literal["channels first", "channels last", "tokens", "custom"]
Size = tuple[int, int]
"""Height and width."""
NO_GRID = "no grid of positions on the image"
MAX_EXTRA = 16
"""Class, distillation and register tokens that may stand beside the patches."""
TOLERANCE = 4
"""Cells that convolutions without padding take off a side (Inception's stem takes the most)."""


@dataclass(frozen=True)
class Grid:
    """Where in a layer's output its positions are."""

    kind: Kind
    height: int
    width: int
    prefix: int = 0
    """Tokens before the first patch."""
    order: tuple[int, ...] | None = field(default=None, repr=False)
    """Of tokens that do not lie row by row behind the prefix: each position's token, row by row."""
    reshape: Callable[[Tensor], Tensor] | None = None
    """Of a custom grid: from the output (B, …) to (B, K, height, width)."""

    def apply(self, output: Tensor) -> Tensor:
        """An output, or its gradient, as (batch, channels, height, width)."""
        if self.reshape:
            return self.reshape(output)
        if self.kind == "channels last":
            return output.movedim(3, 1)
        if self.kind == "tokens":
            patches = output[:, self._tokens(output)].transpose(1, 2)
            return patches.reshape(*patches.shape[:2], self.height, self.width)
        return output

    def put(self, output: Tensor, values: Tensor) -> Tensor:
        """A copy of an output with other values, (batch, channels, height, width), at its
        positions; tokens that are no patches stay.

        Raises:
            MethodUnsuited: if the grid is custom: only its owner knows the way back.
        """
        if self.kind == "custom":
            raise MethodUnsuited("it changes the layer, and a reshape of your own has no inverse")
        changed = output.clone()
        if self.kind == "channels last":
            changed[:] = values.movedim(1, 3)
        elif self.kind == "tokens":
            changed[:, self._tokens(output)] = values.flatten(2).transpose(1, 2).to(changed)
        else:
            changed[:] = values
        return changed

    def _tokens(self, output: Tensor) -> slice | Tensor:
        """The indices of the patches along the output's dimension of tokens, row by row."""
        if self.order is not None:
            return torch.tensor(self.order, device=output.device)
        return slice(self.prefix, self.prefix + self.height * self.width)


@dataclass(frozen=True)
class Location:
    """Where one layer's output lies on the image."""

    shape: tuple[int, ...]
    """The output's, without the batch."""
    grid: Grid | None
    problem: str | None = None
    """Why it has no grid, as half a sentence."""
    verified: bool = True
    """Whether the grid was tried; else the shape left no doubt."""


@dataclass(frozen=True)
class Located:
    """Where the outputs of a model's layers lie on images of one size."""

    found: Mapping[str, Location]
    """Of layers that run once in a forward pass and return a tensor."""

    def grid(self, layer: str) -> Grid | None:
        return self.found[layer].grid if layer in self.found else None

    def grids(self, activations: Mapping[str, Tensor], images: Tensor) -> dict[str, Grid]:
        """The grid of each of the layers that returned `activations` (B, …) for images (B, …).

        Raises:
            LayerNotSpatial: if one does not lie on the images.
        """
        grids = {}
        for layer, activation in activations.items():
            shape, known = tuple(activation.shape), self.found.get(layer)
            if known is None or shape != (len(images), *known.shape):
                problem = f"its output {shape[1:]} is {NO_GRID}"
                raise LayerNotSpatial(f"no map can be made at layer {layer!r}: {problem}")
            if known.grid is None:
                raise LayerNotSpatial(f"no map can be made at layer {layer!r}: {known.problem}")
            grids[layer] = known.grid
        return grids


def grid_in_words(words: str) -> Grid:
    """The grid that a person means by "tokens HEIGHT WIDTH PREFIX", e.g. "tokens 14 14 1"; the
    prefix may be left out.

    Raises:
        LayerNotSpatial: if the words are others.
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
    """The grid of feature maps (B, K, h, w), where the shape leaves no doubt: the two last
    dimensions have the image's proportions, the channels before them do not."""
    if len(shape) == 4 and covers(shape[2], shape[3], image):
        others = covers(shape[1], shape[2], image) or shape[1] == shape[2] == shape[3]
        return None if others else Grid("channels first", shape[2], shape[3])
    return None


def candidates(
    shape: Sequence[int], image: Size, *, sides: Sequence[Size] = (), orders: Sequence[Grid] = ()
) -> list[Grid]:
    """Every grid that an output of `shape`, batch first, of a layer that saw an image of (height,
    width) could have, the likeliest first.

    Of four dimensions the last two or those before the last are positions. Of three the tokens lie
    row by row, with at most MAX_EXTRA other tokens before, behind or in the middle of them, in as
    many rows and columns as the model states, or as one stride makes of the image or of a square.

    Args:
        sides: heights and widths of the token grids that the model states.
        orders: grids that the model states, whose tokens lie in another order.
    """
    if len(shape) == 4:
        found = []
        if shape[2] * shape[3] > 1:
            found.append(Grid("channels first", shape[2], shape[3]))
        if min(shape[1], shape[2]) > 1:
            found.append(Grid("channels last", shape[1], shape[2]))
        # A model may resize the image itself; proportions only tell which is likelier.
        return sorted(found, key=lambda grid: not covers(grid.height, grid.width, image))
    if len(shape) != 3:
        return []
    count = shape[1]
    found = [grid for grid in orders if grid.order and len(grid.order) == count]
    likely = [each for each in sides if 0 <= count - math.prod(each) <= MAX_EXTRA]
    for height, width in dict.fromkeys([*likely, *_sides(count, image)]):
        found += _arrangements(count, height, width)
    return list(dict.fromkeys(found))


def _sides(count: int, image: Size) -> Iterator[Size]:
    """Rows and columns of tokens that one stride makes of the image or of a square, which a model
    may resize it to: first those that leave the fewest tokens over."""
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
    """Whether one stride and one padding make so many rows and columns of the image."""
    fewest = [pixels // (each + 1) for each, pixels in zip(sides, image, strict=True)]
    most = [-(-pixels // (each - 1)) for each, pixels in zip(sides, image, strict=True)]
    return any(
        sides == ((image[0] + padding) // stride, (image[1] + padding) // stride)
        for stride in range(max(*fewest, 1), min(most) + 1)
        for padding in range(1 - stride, stride)
    )


def _arrangements(count: int, height: int, width: int) -> Iterator[Grid]:
    """Where height × width of `count` tokens may be: behind the others, which is usual, before
    them, between them, or around one in the middle."""
    extra = count - height * width
    for prefix in range(extra, -1, -1):
        yield Grid("tokens", height, width, prefix)
    if extra == 1:
        middle = count // 2
        order = tuple(index for index in range(count) if index != middle)
        yield Grid("tokens", height, width, order=order)


def covers(height: int, width: int, image: Size) -> bool:
    """Whether height × width cells could be the image at some stride."""
    if height * width <= 1 or abs(height - width * image[0] / image[1]) > 1:
        return False
    stride = max(round(image[0] / (height + TOLERANCE / 2)), 1)
    strides = range(max(stride - 1, 1), stride + 2)
    return any(abs(height - image[0] / each) <= TOLERANCE for each in strides)
