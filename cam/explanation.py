"""What is asked of an image, and what it gets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cam.errors import CamError, NonFinite
from cam.targets import ClassTarget

Map = NDArray[np.float32]


@dataclass(frozen=True)
class Question:
    """What is asked of one image: a map for each target at each layer. No target, no backward."""

    targets: tuple[ClassTarget, ...]
    method: str
    layers: tuple[str, ...]
    budget: int | None = None
    """Most forward passes, for a method that needs many; None for the method's own default."""

    def resolve(self, logits: Tensor) -> list[ClassTarget] | CamError:
        """Its targets with their classes filled in, given the image's logits (C,)."""
        if not logits.isfinite().all():
            return NonFinite("the model's logits for this image are not finite")
        try:
            return [target.resolve(logits) for target in self.targets]
        except CamError as error:
            return error


@dataclass(frozen=True, eq=False)
class Explanation:
    """One class activation map."""

    target: ClassTarget
    """What was explained, its class filled in."""
    score: float
    """The number explained: the class's logit, unless the target says otherwise."""
    probability: float
    """The class's softmax probability, 0 … 1."""
    method: str
    layer: str
    map: NDArray[np.float32]
    """float32 (h, w) at the layer's resolution, ≥ 0, not normalised: see `cam.heatmap`."""


@dataclass(frozen=True, eq=False)
class Answer:
    """What one image got: its logits, float32 (C,), and a map per target and layer, in the
    question's order, layers fastest."""

    logits: NDArray[np.float32]
    explanations: tuple[Explanation, ...]


def compose(
    question: Question,
    targets: list[ClassTarget] | CamError,
    logits: Tensor,
    maps: list[dict[str, Map | CamError]],
) -> Answer | CamError:
    """An image's answer from its resolved targets, its logits (C,), and for each target the map
    of each layer; the first error among them, if there is one."""
    if isinstance(targets, CamError):
        return targets
    probabilities = logits.softmax(0)
    explanations = []
    for target, found in zip(targets, maps, strict=True):
        for layer in [name for name in question.layers if name in found] or found:
            values = found[layer]
            if isinstance(values, CamError):
                return values
            explanations.append(
                Explanation(
                    target=target,
                    score=float(target.score(logits)),
                    probability=float(probabilities[target.index]),
                    method=question.method,
                    layer=layer,
                    map=values,
                )
            )
    return Answer(logits.numpy(), tuple(explanations))
