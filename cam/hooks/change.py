"""Changes that a hook makes to a tensor: clamp, scale, ablate, or a function of your own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

Edit = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Change:
    """The changes that `Capture` makes at one layer. Each function takes a tensor and returns a
    tensor of the same shape. It must not change its argument in place."""

    input: Edit | None = None
    """Change to the first floating-point tensor among the inputs (a forward pre-hook)."""
    output: Edit | None = None
    """Change to the output, before it is captured and passed on (a forward hook)."""
    gradient: Edit | None = None
    """Change to the gradient at the output, before it is captured and passed back (a tensor
    hook)."""


def clamp(low: float | None = None, high: float | None = None) -> Edit:
    """Return an edit that limits values to low … high."""
    return lambda values: values.clamp(low, high)


def scale(factor: float) -> Edit:
    """Return an edit that multiplies values by `factor`."""
    return lambda values: values * factor


def ablate(channels: Sequence[int], *, to: float = 0.0, dim: int = 1) -> Edit:
    """Return an edit that sets channels to the constant `to`. `dim` is the dimension of the
    channels: 1 in feature maps (B, K, h, w), -1 in tokens (B, N, D)."""

    def edit(values: Tensor) -> Tensor:
        changed = values.clone()
        changed.movedim(dim, 0)[list(channels)] = to
        return changed

    return edit
