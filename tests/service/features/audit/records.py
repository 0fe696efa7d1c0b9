"""Records of photos, as an audit would have measured them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cam.evaluation.similarity import Similarity
from service.features.audit.records import ArmRecord, PhotoRecord

MAP = [[0.0, 0.5], [0.5, 1.0]]


def arm(
    scores: Mapping[str, float | None] | None = None,
    *,
    grids: Mapping[str, float | None] | None = None,
    sanity: Sequence[float | None] | None = None,
    heat: list[list[float]] | None = MAP,
    milliseconds: float | None = None,
    forwards: int | None = 1,
    other_class: Mapping[str, float | None] | None = None,
) -> ArmRecord:
    """Return the record of one method.

    Args:
        sanity: rank correlation without sign of each stage; the other measures are twice as small.
    """
    stages = None
    if sanity is not None:
        stages = [
            Similarity(
                absolute=each,
                spearman=None if each is None else each / 2,
                ssim=None if each is None else each / 2,
                hog=None if each is None else each / 2,
            )
            for each in sanity
        ]
    return ArmRecord(
        map=heat,
        scores=dict(scores or {}),
        grids=dict(grids or {}),
        sanity=stages,
        milliseconds=milliseconds,
        forwards=forwards,
        other_class=dict(other_class or {}),
    )


def record(
    number: int,
    arms: Mapping[str, ArmRecord],
    *,
    confidence: float | None = None,
    predicted: int | None = None,
    logit: float | None = None,
    baselines: Mapping[str, Mapping[str, float | None]] | None = None,
    item: str | None = None,
    sanity_problem: str | None = None,
    measured: str | None = None,
    made_with: Mapping[str, str] | None = None,
    grid_problem: str | None = None,
    label: str | None = None,
    thumbnail: str | None = None,
) -> PhotoRecord:
    sure = 0.6 + 0.01 * number if confidence is None else confidence
    best = number % 3 if predicted is None else predicted
    return PhotoRecord(
        index=number,
        item=item or f"{number}.jpg",
        target=best,
        label=label,
        thumbnail=thumbnail,
        probability=sure,
        predicted=best,
        confidence=sure,
        logit=logit,
        arms=dict(arms),
        sanity_problem=sanity_problem,
        grid_problem=grid_problem,
        measured=measured,
        made_with=dict(made_with or {}),
        baselines={name: dict(each) for name, each in (baselines or {}).items()},
    )
