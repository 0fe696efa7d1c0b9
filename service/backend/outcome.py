"""What the engine answers, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from cam import Explanation

Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class Boxes:
    """The boxes that a detector found in one image, best first."""

    edges: NDArray[np.float32]
    """(N, 4): left, top, right and bottom in the input's pixels."""
    labels: NDArray[np.int64]
    """(N,): the class of each box."""
    scores: NDArray[np.float32]
    """(N,): 0 … 1."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """The output of a model for one image. A classifier has logits and probabilities, a segmenter
    has shares, a detector has boxes; a regression has values, which are in the place of logits."""

    logits: NDArray[np.float32] | None = None
    """Logits of the classes, or the values of a regression, (C,)."""
    probabilities: NDArray[np.float32] | None = None
    """Probabilities of the classes, (C,); None of a regression."""
    shares: NDArray[np.float64] | None = None
    """Share of the pixels where each class is predicted, (C,)."""
    boxes: Boxes | None = None

    @property
    def nbytes(self) -> int:
        """Number of bytes of the arrays."""
        arrays: list[NDArray[Any] | None] = [self.logits, self.probabilities, self.shares]
        if self.boxes is not None:
            arrays += [self.boxes.edges, self.boxes.labels, self.boxes.scores]
        return sum(array.nbytes for array in arrays if array is not None)


@dataclass(frozen=True, eq=False)
class ServedAnswer:
    """The answer for one image: the model's prediction, and one explanation for each target and
    layer, ordered by method, then by target, then by layer."""

    prediction: Prediction
    explanations: tuple[Explanation, ...]
    fast: frozenset[str] = frozenset()
    """Names of the methods whose maps the fast path computed; the unchanged model computed the
    others."""

    def doubted(self, doubts: tuple[str, ...]) -> ServedAnswer:
        """Return the answer with doubts about the request's prompts among the warnings of each
        explanation."""
        return replace(
            self,
            explanations=tuple(
                replace(each, warnings=(*each.warnings, *doubts)) for each in self.explanations
            ),
        )


@dataclass(frozen=True)
class Outcome(Generic[Value]):
    """A result, with the time that its item waited and the time that it ran."""

    value: Value
    queued_seconds: float
    run_seconds: float
    """Run time of the whole batch."""
    batch_size: int
