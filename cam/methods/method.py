"""The `Method` class: the description of one explanation method."""

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
"""Name that stands in place of a layer's name, for methods that explain at the image itself."""


@dataclass(frozen=True)
class Method:
    """One way to compute a map for a model and an image."""

    name: str
    summary: str
    """One-line description for users who choose a method."""
    cost: Cost
    """Cost in addition to the forward pass up to the target layer, which all methods share."""
    weights: Callable[[Tensor, Tensor], Tensor] | None = None
    map: Callable[[Tensor, Tensor], Tensor | Component] | None = None
    steps: Callable[[Subject], Steps] | None = None
    score: Score | None = None
    """Score that the method differentiates instead of the target's own score."""
    at: Literal["layer", "input"] = "layer"
    """Whether the method takes a target layer; a method at the `input` takes none."""
    budget: int = 0
    """Maximum number of forward passes of one image, unless the caller sets another."""
    class_specific: bool = True
    """Whether the map depends on the target."""
    signed: bool = False
    """Whether the map can have values below 0, which are evidence against the target."""
    replays: bool = False
    """Whether the method runs the layers after the target layer again, from a record of the first
    forward pass."""
    levels: bool = False
    """Whether the method makes one map of all the layers together. Its default layers are a
    detector's levels."""

    @property
    def differentiates(self) -> bool:
        """Whether the method needs the layer's gradient, in one pass."""
        return self.steps is None and self.class_specific

    def apply(
        self, activations: Tensor, gradients: Tensor, *, eigen: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Return the maps of a method of one pass, float32 (n, h, w), and their `Component.ratio`.

        The relu of the weighted sum is left to the caller. With `eigen`, the maps of a method that
        has `weights` are projections on the first principal component of the weighted activations,
        instead of their sum. The ratio, (n,), is None where the maps are not projections on a
        leading component.
        """
        if self.map:
            found = self.map(activations, gradients)
            return found if isinstance(found, Component) else (found, None)
        assert self.weights  # a method without `steps` and `map` has weights
        weights = self.weights(activations, gradients)
        if eigen:
            return projected(weights * activations.float())
        return weighted_sum(weights, activations), None
