"""Models whose probabilities and maps can be computed by hand, and what they have seen."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cam import ClassTarget, Explanation, Question, explain, explain_batch
from cam.errors import CamError
from cam.evaluation.candidate import Candidate
from cam.evaluation.evaluate import evaluate_in_steps
from cam.evaluation.metrics import MetricOptions, Scores
from cam.outputs.reading import Reading
from cam.progress import Progress

Numbers = NDArray[np.float64]
SIGMOID = Reading(activation="sigmoid")
"""How `Weighed` is read. Stated, so that no pass finds it out."""


class Weighed(nn.Module):
    """One logit: the sum of the pixels, each times its weight.

    So the probability is 1 / (1 + e^−z), the gradient at every pixel is its weight, and the map of
    hirescam at `layer` is max(0, weight · pixel), summed over the channels.
    """

    def __init__(self, weights: Numbers) -> None:
        super().__init__()
        self.layer = nn.Identity()
        self.weights = nn.Parameter(torch.from_numpy(weights.astype(np.float32)))
        self.batches: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.batches.append(x.detach().clone())
        out: Tensor = (self.layer(x) * self.weights).sum((1, 2, 3))
        return out[:, None]

    @property
    def seen(self) -> Numbers:
        """The images that the model has seen, (n, C, H, W)."""
        return torch.cat(self.batches).numpy().astype(np.float64)

    @property
    def passes(self) -> int:
        return sum(len(each) for each in self.batches)

    def chance(self, image: Numbers) -> float:
        """Return the probability, computed without torch."""
        weights = self.weights.detach().numpy().astype(np.float64)
        return float(1 / (1 + np.exp(-(weights * image).sum())))

    def heat(self, image: Numbers) -> Numbers:
        """Return the map of hirescam at `layer`, computed without torch."""
        weights = self.weights.detach().numpy().astype(np.float64)
        found: Numbers = (weights * image).sum(0).clip(min=0)
        return found


def drawn(*shape: int, seed: int = 0, low: float = -0.5, high: float = 0.5) -> Numbers:
    """Return float32 numbers from `low` to `high`, as float64."""
    found = np.random.default_rng(seed).uniform(low, high, shape)
    return found.astype(np.float32).astype(np.float64)


def weighed(*shape: int, seed: int = 0, low: float = -0.5, high: float = 0.5) -> Weighed:
    return Weighed(drawn(*shape, seed=seed, low=low, high=high)).eval()


def picture(*shape: int, seed: int = 1) -> Numbers:
    """Return an image without a pixel of 0."""
    return drawn(*shape, seed=seed, low=0.1, high=1)


def tensor(image: Numbers) -> Tensor:
    return torch.from_numpy(image.astype(np.float32))


def explained(model: nn.Module, image: Numbers, *, method: str = "hirescam") -> Explanation:
    """Return the map of the positive class at `layer`; afterwards the model has seen nothing."""
    (found,) = explain(model, tensor(image)[None], target=1, method=method, layer="layer")
    if isinstance(model, Weighed):
        model.batches.clear()
    return found


def alone(**options: object) -> MetricOptions:
    """Return options without baselines."""
    return MetricOptions(baselines=(), **options)  # type: ignore[arg-type]


def asked(*targets: int, layers: Sequence[str] = ("layer",)) -> Question:
    return Question(tuple(map(ClassTarget, targets)), "hirescam", tuple(layers))


def in_steps(
    model: Weighed,
    image: Numbers,
    question: Question,
    candidates: Sequence[Candidate],
    metrics: Sequence[str],
    options: MetricOptions,
    chunk: int = 16,
) -> tuple[list[Progress], list[Scores] | CamError]:
    """Return every progress and the result."""
    steps = evaluate_in_steps(
        model,
        tensor(image),
        question,
        candidates,
        metrics,
        options,
        answer=partial(explain_batch, model, reading=SIGMOID),
        chunk=chunk,
        reading=SIGMOID,
    )
    told = []
    while True:
        try:
            told.append(next(steps))
        except StopIteration as stop:
            found: list[Scores] | CamError = stop.value
            return told, found
