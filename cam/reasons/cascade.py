"""The reasons of one photo, which are added one by one, each with the pixels that it masks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cam.drawing.heatmap import minmax, symmetric
from cam.drawing.placement import resize
from cam.errors import InvalidOption
from cam.explanation import Explanation
from cam.methods import INPUT, METHODS

MOST_REASONS: Final = 5
"""Greatest number of reasons of a photo."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Reason(Explanation):
    """The explanation of a photo in which the pixels of earlier reasons are masked.

    `score` and `probability` are those of the target for that masked photo: they tell how much was
    left before this reason. `map` is float32 (H, W) on the model's input. It is scaled to 0 … 1, or
    to −1 … 1 if signed, over the pixels that are not masked, and is 0 at the masked ones.
    """

    number: int
    """1 for the photo as it is, 2 for the photo in which the pixels of reason 1 are masked, and so
    on."""
    mask: NDArray[np.bool_]
    """Pixels at which `map` reaches the threshold: bool (H, W). They are masked before the next
    reason. No pixel belongs to two reasons of a photo."""

    @property
    def share(self) -> float:
        """Share of the input's pixels that belong to this reason, 0 … 1."""
        return float(self.mask.mean())

    @property
    def title(self) -> str:
        """The number of the reason, and the target in words, with its probability or score."""
        return f"reason {self.number}: {super().title}"


def layer_of(explanation: Explanation, fuse: str) -> str | None:
    """Return the layer at which further reasons are found, so that none of them chooses another;
    None if the map is not of one layer: of the input, of several levels, or fused."""
    single = fuse == "none" and not METHODS[explanation.method].levels
    return explanation.layer if single and explanation.layer != INPUT else None


class Cascade:
    """The reasons of one photo for one target, method and layer.

    Args:
        shape: height and width of the model's input.
        count: largest number of reasons, 1 … `MOST_REASONS`.
        threshold: least value of a map at a pixel that is masked, above 0 and below 1.

    Raises:
        InvalidOption: if `count` or `threshold` cannot have its value.
    """

    def __init__(self, shape: tuple[int, int], count: int, threshold: float) -> None:
        whole = isinstance(count, int) and not isinstance(count, bool)
        if not whole or not 1 <= count <= MOST_REASONS:
            raise InvalidOption(f"count is {count!r:.80}; it can be 1 to {MOST_REASONS}")
        if not isinstance(threshold, float | int) or not 0 < threshold < 1:
            raise InvalidOption(f"threshold is {threshold!r:.80}; it is above 0 and below 1")
        self._count, self._threshold = count, threshold
        self.reasons: list[Reason] = []
        self.masked = np.zeros(shape, bool)
        """Pixels of all reasons so far, bool (H, W)."""
        self.open = True
        """Whether the photo in which `masked` is masked is to be explained."""

    def add(self, explanation: Explanation) -> None:
        """Add the explanation of the photo in which `masked` is masked.

        If its map is the same at all other pixels, it is not a further reason, and the cascade
        ends.
        """
        values, visible = resize(explanation.map, *self.masked.shape), ~self.masked
        shown = np.zeros_like(values)
        if visible.any():
            scale = symmetric if explanation.signed else minmax
            shown[visible] = scale(values[visible])
        mask = shown >= self._threshold
        if mask.any() or not self.reasons:
            known = {**vars(explanation), "map": shown}
            self.reasons.append(Reason(**known, number=len(self.reasons) + 1, mask=mask))
            self.masked = self.masked | mask
        self.open = len(self.reasons) < self._count
        if not mask.any():
            self.end(
                f"the map of the {'masked ' if self.masked.any() else ''}photo is the same "
                f"everywhere ({explanation.title})"
            )

    def end(self, why: str) -> None:
        """End the cascade before its last reason, with a warning of the last one that was found."""
        if self.open:
            self.open, last = False, self.reasons[-1]
            warning = f"there is no reason {last.number + 1}: {why}"
            self.reasons[-1] = replace(last, warnings=(*last.warnings, warning))
