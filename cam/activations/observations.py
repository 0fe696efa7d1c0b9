"""What is observed at a layer: its input, output and gradient, and its concepts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Statistics:
    """Statistics of all numbers in a tensor."""

    mean: float
    std: float
    """Population standard deviation."""
    minimum: float
    maximum: float
    zeros: float
    """Share of exact zeros, 0 … 1; behind a ReLU this is the share of dead units."""


@dataclass(frozen=True, eq=False)
class Observation:
    """One layer in one forward pass of one image, and in the backward pass of one target."""

    layer: str
    type: str
    """The module's class name."""
    input: NDArray[np.float32] | None
    """The first floating-point tensor among the layer's inputs, without the batch axis; None if
    there is none."""
    output: NDArray[np.float32]
    """The layer's output, without the batch axis."""
    gradient: NDArray[np.float32] | None
    """∂score/∂output; None if the target does not depend on the layer."""
    maps: NDArray[np.float32] | None
    """The output as feature maps (K, h, w), upright as the image is; None if it does not lie on the
    image."""
    weights: NDArray[np.float32] | None
    """The mean gradient of each channel, (K,), which is its weight in Grad-CAM; None if the output
    does not lie on the image, or there is no gradient."""

    def strongest(self, count: int, by: str) -> list[int]:
        """Return the indices of at most `count` channels, strongest first.

        The strength of a channel is its mean activation; if `by` is "gradient", it is the absolute
        value of its Grad-CAM weight. The list is empty if the output does not lie on the image or
        there is no gradient.
        """
        if by == "gradient":
            strength = None if self.weights is None else np.abs(self.weights)
        else:
            strength = None if self.maps is None else self.maps.mean(axis=(1, 2))
        if strength is None:
            return []
        return [int(index) for index in np.argsort(-strength, kind="stable")[:count]]


@dataclass(frozen=True, eq=False)
class Concept:
    """A pattern of channels that a layer shows at several positions of an image."""

    map: NDArray[np.float32]
    """Strength of the concept at each position: float32 (h, w), ≥ 0; on the pixels of the model's
    input if the positions do not cover it evenly: see `Explanation.placement`."""
    share: float
    """Share of the concept in the sum of the activations, 0 … 1."""
    logits: NDArray[np.float32] | None
    """Logits that the model returns when every position shows this concept alone: float32 (C,);
    None if the model is not a classifier."""
    probabilities: NDArray[np.float32] | None = None
    """Probabilities that the model's activation makes of the logits."""


def statistics(values: NDArray[np.float32]) -> Statistics:
    """Return statistics of all numbers in an array."""
    return Statistics(
        mean=float(values.mean(dtype=np.float64)),
        std=float(values.std(dtype=np.float64)),
        minimum=float(values.min()),
        maximum=float(values.max()),
        zeros=float((values == 0).mean()),
    )
