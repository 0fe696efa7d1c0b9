"""What a hook may do to a tensor on its way: clamp, scale, ablate, or a function of your own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

Edit = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Change:
    """What `Capture` does at one layer. Each function gets a tensor and returns one of its shape;
    it must not change the one it gets."""

    input: Edit | None = None
    """Of the first floating-point tensor that goes in (a forward pre-hook)."""
    output: Edit | None = None
    """Of the output, before it is captured and passed on (a forward hook)."""
    gradient: Edit | None = None
    """Of the gradient at the output, before it is captured and passed back (a tensor hook)."""


def clamp(low: float | None = None, high: float | None = None) -> Edit:
    """Keep values in low … high."""
    return lambda values: values.clamp(low, high)


def scale(factor: float) -> Edit:
    """Multiply values."""
    return lambda values: values * factor


def ablate(channels: Sequence[int], *, to: float = 0.0, dim: int = 1) -> Edit:
    """Set channels to a constant; `dim` is where the channels are: 1 in feature maps (B, K, h, w),
    -1 in tokens (B, N, D)."""

    def edit(values: Tensor) -> Tensor:
        changed = values.clone()
        changed.movedim(dim, 0)[list(channels)] = to
        return changed

    return edit
