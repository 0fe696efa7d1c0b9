"""Means of scores over several images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from cam.evaluation.chance import interval, outcome
from cam.evaluation.metrics import METRICS, harmonic
from cam.evaluation.verdict import COMPARED, in_words
from service.core.schemas import Score
from service.features.evaluate.schemas import Evaluation, EvaluationSummary, MeanScore

PARTS: Final = ("coherency", "complexity", "confidence_drop")


def summarise(evaluations: Iterable[Evaluation]) -> list[EvaluationSummary]:
    """Return the means over several images, for each method and layer."""
    groups: dict[tuple[str | None, str | None], list[Evaluation]] = {}
    for evaluation in evaluations:
        groups.setdefault((evaluation.method, evaluation.layer), []).append(evaluation)
    sentences = []
    for (method, layer), members in groups.items():
        if len({member.instance for member in members}) < 2:
            continue
        scores = {
            name: mean
            for name in members[0].scores
            if (mean := _mean(name, [member.scores[name] for member in members])) is not None
        }
        of_means = None
        if all(name in scores for name in PARTS) or "adcc" in scores:
            of_means = _adcc_of_means(members)
        sentences.append(
            EvaluationSummary(method=method, layer=layer, scores=scores, adcc_of_means=of_means)
        )
    return sentences


def _mean(metric: str, scores: Sequence[Score]) -> MeanScore | None:
    mean = interval([score.value for score in scores])
    if mean is None:
        return None
    baselines = {}
    for name in scores[0].baselines:
        others = [value for score in scores if (value := score.baselines.get(name)) is not None]
        if others:
            baselines[name] = float(np.mean(others))
    return MeanScore(
        value=mean.mean,
        low=mean.low,
        high=mean.high,
        maps=mean.photos,
        baselines=baselines,
        verdict=_mean_verdict(metric, scores),
    )


def _mean_verdict(metric: str, scores: Sequence[Score]) -> str | None:
    """Return how maps of several images compare with the baselines, image by image."""
    better, told = METRICS[metric].better, {}
    for name in COMPARED:
        pairs = [(score.value, score.baselines.get(name)) for score in scores]
        if (found := outcome(pairs, better=better)) is not None:
            told[name] = found
    return in_words(told)


def _adcc_of_means(members: Sequence[Evaluation]) -> float | None:
    """Return the harmonic mean of the parts' means over the maps that have all three."""
    rows = []
    for member in members:
        parts = member.scores["adcc"].details if "adcc" in member.scores else {}
        row = [parts.get(name) for name in PARTS]
        if not parts:
            row = [member.scores[name].value for name in PARTS]
        numbers = [value for value in row if isinstance(value, float)]
        if len(numbers) == len(PARTS):
            rows.append(numbers)
    if not rows:
        return None
    coherency, complexity, drop = (float(value) for value in np.mean(rows, 0))
    return harmonic(coherency, 1 - complexity, 1 - drop)
