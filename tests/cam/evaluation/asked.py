"""Questions of scores, and their answers step by step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import nn

from cam import ClassTarget, Explanation, Question, explain, explain_batch
from cam.errors import CamError
from cam.evaluation.candidate import Candidate
from cam.evaluation.evaluate import evaluate_in_steps
from cam.evaluation.metrics import MetricOptions, Scores
from cam.outputs.reading import Reading
from cam.progress import Progress
from tests.zoo.by_hand import Numbers, Weighed, tensor

SIGMOID = Reading(activation="sigmoid")
"""How `by_hand.Weighed` is read. Stated, so that no pass finds it out."""


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
