"""Scores of maps: whether metrics suit, and from scores to schemas and lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cam.evaluation.metrics import METRICS, MetricOptions, Score, Scores
from cam.evaluation.verdict import percentile, verdict
from service.core import schemas
from service.core.choices import Fit
from service.core.errors import UnsuitedMetric
from service.models.audited import Audited


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
