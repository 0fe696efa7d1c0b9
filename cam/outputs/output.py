"""The output of a model for one image: logits of classes, logits of pixels, or detections."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cam.outputs.reading import Activation, Meaning, probabilities_of

Kind = Literal["classes", "segments", "detections", "value", "features"]


@dataclass(frozen=True, eq=False)
class Detections:
    """The boxes that a detector found in one image, best first."""

    boxes: Tensor
    """float (N, 4): left, top, right, bottom in the input's pixels."""
    labels: Tensor
    """int (N,), the class of each box."""
    scores: Tensor
    """float32 (N,), 0 … 1."""
    classes: Tensor | None = None
    """float32 (N, C), the probability of each class; None if the model does not return it."""

    def rows(self, chosen: list[int]) -> Detections:
        """Return the chosen detections, in the order of `chosen`."""
        classes = None if self.classes is None else self.classes[chosen]
        return Detections(self.boxes[chosen], self.labels[chosen], self.scores[chosen], classes)

    def detached(self) -> Detections:
        """Return the detections without a graph, on the CPU."""
        classes = None if self.classes is None else self.classes.detach().cpu()
        boxes, scores = self.boxes.detach().cpu(), self.scores.detach().cpu()
        return Detections(boxes, self.labels.cpu(), scores, classes)


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of an image's output from that of its batch, so that nothing is computed again
    for the image."""

    finite: bool
    """Whether all numbers are finite."""
    best: int | None = None
    """Index of a classifier's highest logit."""
    probabilities: Tensor | None = None
    """Probabilities of a classifier, (C,)."""
    wins: NDArray[np.integer] | None = None
    """The class with the highest logit at each pixel of a segmenter's output, int (h, w)."""


@dataclass(frozen=True, eq=False)
class Output:
    """The output of a model for one image; exactly one of the first four fields is set."""

    logits: Tensor | None = None
    """Logits of a classifier, float32 (C,). A model of one output has two classes: see
    `cam.outputs.reading.classes_of`. If the meaning is `value`, the values of a regression."""
    segments: Tensor | None = None
    """Logits of a segmenter, float32 (C, h, w): one for each class at each pixel."""
    detections: Detections | None = None
    """Detections of a detector."""
    features: Tensor | None = None
    """Features of a model without a head, float32 (…)."""
    size: tuple[int, int] | None = None
    """Height and width of the input, if they are known."""
    layers: Mapping[str, Tensor] = field(default_factory=dict)
    """Outputs of the layers that a target reads, without the batch axis: (K, h, w) if they have
    positions on the image."""
    activation: Activation = "softmax"
    """Activation that turns the logits into probabilities."""
    meaning: Meaning = "classes"
    """What the outputs are."""
    known: Known | None = field(default=None, repr=False)

    @property
    def probabilities(self) -> Tensor | None:
        """Probabilities of a classifier, (C,), or a segmenter, (C, h, w); None for other kinds."""
        if self.known and self.known.probabilities is not None:
            return self.known.probabilities
        values = self.logits if self.segments is None else self.segments
        if values is None or self.kind == "value":
            return None
        return probabilities_of(values, self.activation)

    @property
    def best(self) -> int:
        """Index of the highest logit of a classifier."""
        assert self.logits is not None
        if self.known and self.known.best is not None:
            return self.known.best
        return int(self.logits.argmax())

    @property
    def wins(self) -> NDArray[np.integer]:
        """The class with the highest logit at each pixel of a segmenter's output, int (h, w)."""
        assert self.segments is not None
        if self.known and self.known.wins is not None:
            return self.known.wins
        won: NDArray[np.integer] = self.segments.argmax(0).cpu().numpy()
        return won

    @property
    def kind(self) -> Kind:
        if self.segments is not None:
            return "segments"
        if self.logits is not None:
            return "value" if self.meaning == "value" else "classes"
        return "features" if self.features is not None else "detections"

    @property
    def numbers(self) -> list[Tensor]:
        """Floating-point tensors of the output: its logits, its features, or the scores and boxes
        of its detections."""
        tensors = [self.logits, self.segments, self.features]
        if self.detections is not None:
            tensors += [self.detections.scores, self.detections.boxes]
        return [tensor for tensor in tensors if tensor is not None]

    def detached(self) -> Output:
        """Return the output without a graph, a classifier's logits and a detector's boxes on the
        CPU."""
        return replace(
            self,
            logits=None if self.logits is None else self.logits.detach().cpu(),
            segments=None if self.segments is None else self.segments.detach(),
            features=None if self.features is None else self.features.detach(),
            detections=self.detections and self.detections.detached(),
            layers={name: value.detach() for name, value in self.layers.items()},
        )

    @property
    def finite(self) -> bool:
        if self.known:
            return self.known.finite
        return all(bool(numbers.isfinite().all()) for numbers in self.numbers)


def scale_of(output: Output, score: Tensor) -> float:
    """Return the factor, a power of two, that brings the greatest gradient of a score at the
    model's output to 1 … 2.

    A probability of 1 - 1e-6 has a gradient of 1e-6 at its logit, which float16 layers before
    that turn into zeros. The score times this factor has a gradient that they can hold; whoever
    differentiates it divides the layer's gradient by the factor, in float32. It is 1 where the
    score does not depend on the output.
    """
    numbers = [tensor for tensor in output.numbers if tensor.requires_grad]
    gradients = torch.autograd.grad(score, numbers, retain_graph=True, allow_unused=True)
    greatest = max(
        (float(gradient.abs().max()) for gradient in gradients if gradient is not None), default=1.0
    )
    if not 0 < greatest < math.inf:
        return 1.0
    return math.ldexp(1.0, min(1 - math.frexp(greatest)[1], 126))
