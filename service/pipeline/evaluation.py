"""Scores of maps: whether metrics suit, the scores, and from scores to schemas and lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cam import ClassTarget, Explanation, Question, Target
from cam.evaluation.candidate import Candidate, candidates_of
from cam.evaluation.metrics import METRICS, MetricOptions, Score, Scores
from cam.evaluation.verdict import percentile, verdict
from service.backend.interface import Listener, ModelBackend, naming
from service.backend.outcome import ServedAnswer
from service.backend.timings import Timings
from service.backend.work import Evaluate
from service.core import schemas
from service.core.choices import Fit
from service.core.errors import UnsuitedMetric
from service.models.audited import Audited
from service.models.preprocessing import ModelInput

USUAL: Final = MetricOptions()


def require_suited(metrics: Sequence[str], *, region: bool | None = None) -> None:
    """Check that the metrics can judge maps that the service makes.

    Args:
        region: whether a region is given; None where none can be.

    Raises:
        UnsuitedMetric: if a metric lacks its region.
    """
    lacking = [name for name in metrics if METRICS[name].needs == "region"]
    if lacking and not region:
        where = ", which only :evaluate takes" if region is None else ""
        raise UnsuitedMetric(
            f"metric {lacking[0]!r} needs `region`, the box or mask where the heat should be{where}"
        )


async def scored(
    replicas: ModelBackend,
    seen: ModelInput,
    questions: Sequence[Question],
    answer: ServedAnswer,
    metrics: Sequence[str],
    timings: Timings,
    *,
    options: MetricOptions = USUAL,
    progress: Listener | None = None,
    judged: NDArray[np.float32] | None = None,
    prompts: tuple[str, ...] = (),
) -> tuple[Scores, ...]:
    """Return the scores of each of the answer's maps, in their order.

    Args:
        judged: a map to score in place of the answer's only map.
        prompts: texts that are the classes, if the request has prompts.
    """
    scores: list[Scores] = []
    for question in questions:
        mine = [
            explanation
            for explanation in answer.explanations
            if explanation.method == question.method
        ]
        if not mine:
            continue
        # The class is fixed here: at another precision, the model could predict another one.
        named = {explanation.turn: _same(question, explanation) for explanation in mine}
        question = replace(question, targets=tuple(named[turn] for turn in sorted(named)))
        candidates = candidates_of(mine)
        if judged is not None:
            candidates = [Candidate(judged, mine[0].turn)]
        told = progress
        if progress and len(questions) > 1:
            told = naming(question.method, progress)
        work = Evaluate(seen.pixels, question, candidates, metrics, options, prompts)
        outcome = await replicas.ask(work, progress=told)
        timings.note("evaluate", outcome.run_seconds)
        scores += outcome.value
    return tuple(scores)


def _same(question: Question, explanation: Explanation) -> Target:
    """Return an explanation's target for scoring: its class, and the mask that the question has."""
    target, turn = explanation.target, explanation.turn
    asked = question.targets[turn] if turn < len(question.targets) else None
    if isinstance(target, ClassTarget) and isinstance(asked, ClassTarget) and target.box is None:
        return replace(asked, index=target.index)
    return target


def describe_scores(
    scores: Scores, options: MetricOptions, audited: Audited | None = None, fit: Fit | None = None
) -> dict[str, schemas.Score]:
    """Return the JSON schema objects of a map's scores.

    Args:
        audited: what an audit of the model found, if there was one.
        fit: how the photo was fitted to the model's input; needed where there was an audit.
    """
    return {name: _describe(name, score, options, audited, fit) for name, score in scores.items()}


def _describe(
    name: str, score: Score, options: MetricOptions, audited: Audited | None, fit: Fit | None
) -> schemas.Score:
    metric = METRICS[name]
    value, warning = _finite(score.value), score.warning
    if value is None and warning is None:
        warning = "the value is not finite"
    among = percentile(name, score) if value is not None else None
    return schemas.Score(
        value=value,
        better=metric.better,
        convention=metric.convention(options),
        baselines={name: _finite(other) for name, other in score.baselines.items()},
        verdict=_verdict(name, score, options, audited, fit) if value is not None else None,
        percentile=None if among is None else round(100 * among, 1),
        random_maps=len(score.chance),
        details={
            name: list(other) if isinstance(other, tuple) else _finite(other)
            for name, other in score.details.items()
        },
        warning=warning,
    )


def _verdict(
    name: str, score: Score, options: MetricOptions, audited: Audited | None, fit: Fit | None
) -> str | None:
    words = verdict(name, score)
    if audited is None or score.value is None:
        return words
    rank = audited.percentile(name, score.value, METRICS[name].convention(options), fit)
    if rank is None:
        return words
    told = f"{_ordinal(rank)} percentile of the audit"
    return f"{words}; {told}" if words else told


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def score_lines(scores: Mapping[str, schemas.Score] | None) -> list[str]:
    """Return a line for each score, for pictures: the value, and that of a map that is chance."""
    lines = []
    for name, score in (scores or {}).items():
        if score.value is None:
            continue
        compared = [
            f"{words} {value:.3g}"
            for name, words in (("random", "chance"), ("edges", "edges"))
            if (value := score.baselines.get(name)) is not None
        ]
        beside = f" ({', '.join(compared)})" if compared else ""
        lines.append(f"{name} {score.value:.3g}{beside}")
    return lines
