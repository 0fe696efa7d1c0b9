"""How a layer's output lies on the image: feature maps, channels-last maps and tokens become
(batch, channels, height, width).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from cam.errors import LayerNotSpatial

NO_GRID = "no grid of positions on the image"
MAX_PREFIX = 8
"""Class, distillation and register tokens that may stand before the patches."""
TOLERANCE = 4
"""Cells that convolutions without padding take off a side (Inception's stem takes the most)."""


@dataclass(frozen=True)
class Grid:
    """Where in a layer's output its positions are."""

    kind: Literal["channels first", "channels last", "tokens"]
    height: int
    width: int
    prefix: int = 0
    """Tokens before the first patch."""

    def apply(self, output: Tensor) -> Tensor:
        """An output, or its gradient, as (batch, channels, height, width)."""
        if self.kind == "channels last":
            return output.movedim(3, 1)
        if self.kind == "tokens":
            patches = output[:, self.prefix :].transpose(1, 2)
            return patches.reshape(*patches.shape[:2], self.height, self.width)
        return output


def grid_of(shape: tuple[int, ...], image: tuple[int, int]) -> Grid | None:
    """The grid in an output of `shape`, batch first, of a layer that saw an image of (height,
    width); None if it has none.

    A grid has more than one position and the image's proportions, give or take the cells that
    strides and padding round off; where channels and positions could be mistaken for each other
    the channels come first. Tokens lie row by row, behind at most MAX_PREFIX others.
    """
    if len(shape) == 4:
        if _covers(shape[2], shape[3], image):
            return Grid("channels first", shape[2], shape[3])
        if _covers(shape[1], shape[2], image):
            return Grid("channels last", shape[1], shape[2])
    if len(shape) == 3:
        for prefix in range(MAX_PREFIX + 1):
            count = shape[1] - prefix
            height = round((max(count, 0) * image[0] / image[1]) ** 0.5)
            if height and count % height == 0 and _covers(height, count // height, image):
                return Grid("tokens", height, count // height, prefix)
    return None


def grids_of(activations: Mapping[str, Tensor], images: Tensor) -> dict[str, Grid]:
    """Where the positions of each layer's output (B, …) are.

    Raises:
        LayerNotSpatial: if one does not lie on the images (B, C, H, W).
    """
    size = (int(images.shape[-2]), int(images.shape[-1]))
    grids = {}
    for layer, activation in activations.items():
        shape = tuple(activation.shape)
        grid = grid_of(shape, size) if shape[:1] == (len(images),) else None
        if grid is None:
            raise LayerNotSpatial(f"layer {layer!r} has output {shape[1:]}, {NO_GRID}")
        grids[layer] = grid
    return grids


def _covers(height: int, width: int, image: tuple[int, int]) -> bool:
    """Whether height × width cells could be the image at some stride."""
    if height * width <= 1 or abs(height - width * image[0] / image[1]) > 1:
        return False
    stride = max(round(image[0] / (height + TOLERANCE / 2)), 1)
    strides = range(max(stride - 1, 1), stride + 2)
    return any(abs(height - image[0] / each) <= TOLERANCE for each in strides)
