"""Where a layer's positions lie on the model's input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cam.drawing.heatmap import Box, Float, place

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Placement:
    """Where a layer's positions lie on the model's input, if the model resizes, crops, pads,
    mirrors or transposes the image itself, so that they do not cover the input evenly."""

    box: Box
    """Edges of the positions, in pixels of the input. They lie outside the input where the model
    pads the image."""
    height: int
    """Height of the input in pixels."""
    width: int
    transposed: bool = False
    """Whether the rows of the layer's output follow the columns of the input."""
    upside_down: bool = False
    """Whether the first row of positions, after the transposition, is the lowest on the input."""
    mirrored: bool = False
    """Whether the first column of positions, after the transposition, is the rightmost."""

    def turn(self, maps: Tensor) -> Tensor:
        """Return maps (…, h, w) of the layer upright, as the input is."""
        upright = maps.transpose(-2, -1) if self.transposed else maps
        return upright.flip(self._flipped) if self._flipped else upright

    def turn_back(self, maps: Tensor) -> Tensor:
        """Return upright maps as they lie in the layer: the inverse of `turn`."""
        flipped = maps.flip(self._flipped) if self._flipped else maps
        return flipped.transpose(-2, -1) if self.transposed else flipped

    def on_input(self, upright: Float) -> Float:
        """Return an upright map (h, w) on the pixels of the input, float32 (height, width): resized
        bilinearly, and 0 where the model does not look."""
        return place(upright, self.box, self.height, self.width)[0]

    @property
    def _flipped(self) -> list[int]:
        return [axis for axis, flip in ((-2, self.upside_down), (-1, self.mirrored)) if flip]
