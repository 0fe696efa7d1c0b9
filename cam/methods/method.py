"""One way from a model and an image to a map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from torch import Tensor

from cam.methods.components import Component, projected
from cam.methods.gradients import weighted_sum
from cam.methods.subject import Score, Steps, Subject

Cost = Literal["one forward", "one backward", "two backwards", "N forwards", "N backwards"]
INPUT: Final = "input"
"""Stands where a layer's name would, for methods that look at the image itself."""


@dataclass(frozen=True)
class Method:
    """One way from a model and an image to a map."""

    name: str
    summary: str
    """One line for people who choose."""
    cost: Cost
    """Beside the forward pass up to the target layer, which all share."""
    weights: Callable[[Tensor, Tensor], Tensor] | None = None
    map: Callable[[Tensor, Tensor], Tensor | Component] | None = None
    steps: Callable[[Subject], Steps] | None = None
    score: Score | None = None
    """What it differentiates instead of the target's own score."""
    at: Literal["layer", "input"] = "layer"
    """`input`: no target layer is asked for."""
    budget: int = 0
    """Most forward passes of one image, unless the caller says otherwise."""
    class_specific: bool = True
    """Whether the map depends on the target."""
    signed: bool = False
    """Whether it has a side below 0: what speaks against the target."""
    replays: bool = False
    """Whether it runs what follows the layer again, from a record of the first forward pass."""
    levels: bool = False
    """Whether it makes one map of all the layers together; its default ones are a detector's
    levels."""

    @property
    def differentiates(self) -> bool:
        """Whether it needs the layer's gradient, in one pass."""
        return self.steps is None and self.class_specific

    def apply(
        self, activations: Tensor, gradients: Tensor, *, eigen: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """The maps, float32 (n, h, w), before any relu, of a method of one pass; with `eigen`, the
        weighted activations' first principal component instead of their sum. And of a leading
        component its `Component.ratio`, (n,)."""
        if self.map:
            found = self.map(activations, gradients)
            return found if isinstance(found, Component) else (found, None)
        assert self.weights  # where there are no steps
        weights = self.weights(activations, gradients)
        if eigen:
            return projected(weights * activations.float())
        return weighted_sum(weights, activations), None
