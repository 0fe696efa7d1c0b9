"""The summary of an audit: means with intervals, findings, and the method to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from statistics import fmean, median
from typing import Final

import numpy as np

from cam import METHODS
from cam.counts import counted
from cam.evaluation.chance import Interval, interval
from cam.evaluation.metrics import METRICS, MetricOptions
from cam.evaluation.similarity import Similarity
from service.features.audit.findings import findings_of
from service.features.audit.grids import SURE
from service.features.audit.plan import LEAST_PHOTOS, SANITY_PHOTOS, SIDES, STAGES, Arm, name_of
from service.features.audit.recommendation import (
    AS_CHEAP,
    FAITHFULNESS,
    LOCALISATION,
    localise_worse,
    localises,
    points_of,
    recommended,
    why_none,
)
from service.features.audit.records import ArmRecord, PhotoRecord
from service.features.audit.schemas import ArmSummary, Audit, PhotoFailure

UNCHANGED: Final = 1e-4
"""Largest difference of the rank correlation of a map with itself from 1."""
SHOWS_THE_PHOTO: Final = 0.5
"""Rank correlation with the maps of randomised models, the mean over the stages, above which a map
shows the photo and not the model."""
BLIND: Final = 0.9
"""Rank correlation of the maps of two classes of one image, above which the map hardly depends on
the class."""
SHARES: Final = ("confidence_increase", "confidence_drop")
"""Metrics whose values are shares, and can be 0 or 1 for all photos."""
PERCENTS: Final = tuple(range(101))


def summarise(
    records: Sequence[PhotoRecord],
    *,
    model: str,
    weights: str,
    metrics: Sequence[str],
    failed: Mapping[str, str] | None = None,
) -> Audit:
    """Return the summary of an audit.

    Args:
        records: the photos that were measured.
        model: the model's name.
        weights: digest of the model's weights and settings.
        metrics: the metrics by which maps were scored.
        failed: photo → reason why it could not be measured.
    """
    ordered = sorted(records, key=lambda record: record.index)
    options = MetricOptions()
    known = dict.fromkeys(name for record in ordered for name in record.arms)
    arms = [summarised(Arm.of(name), ordered, metrics) for name in known]
    showing = [name_of(arm) for arm in arms if arm.shows_the_model is not False and arm.photos]
    able = [
        name
        for arm in arms
        if (name := name_of(arm)) in showing and not arm.class_blind and _specific(arm.method)
    ]
    points, photos = points_of(ordered, able, metrics)
    arms = [arm.model_copy(update={"points": points.get(name_of(arm))}) for arm in arms]
    reason = why_none(len(ordered), arms, showing, able, photos)
    compared = [arm for arm in arms if arm.points]
    by_grids = localises(ordered)
    worse = {} if by_grids else localise_worse(ordered, list(points))
    chosen = None
    if not reason:
        chosen = recommended(compared, photos, by_grids=by_grids, worse_placed=worse)
    baselines = sorted({name for record in ordered for name in record.baselines})
    summary = Audit(
        model=model,
        fingerprint=weights,
        made=max((record.measured for record in ordered if record.measured), default=None)
        or datetime.now(UTC).isoformat(timespec="seconds"),
        made_with=_made_with(ordered),
        photos=len(ordered),
        failed=[
            PhotoFailure(item=item, reason=reason)
            for item, reason in sorted((failed or {}).items())
        ],
        metrics={name: METRICS[name].convention(options) for name in metrics},
        better={name: METRICS[name].better for name in metrics},
        conventions=_conventions(ordered),
        arms=arms,
        baselines={
            name: {
                metric: interval([record.baselines.get(name, {}).get(metric) for record in ordered])
                for metric in metrics
            }
            for name in baselines
        },
        chance={str(side): 1 / side**2 for side in SIDES},
        findings=[],
        recommendation=chosen,
        why_none=reason,
        quantiles=_quantiles(ordered, showing, metrics),
    )
    return summary.model_copy(update={"findings": findings_of(summary, ordered)})


def _made_with(records: Sequence[PhotoRecord]) -> dict[str, str]:
    """Return what the photos were measured with. An audit that went on with another version has
    both."""
    names = dict.fromkeys(name for record in records for name in record.made_with)
    return {
        name: " and ".join(
            dict.fromkeys(record.made_with[name] for record in records if name in record.made_with)
        )
        for name in names
    }


def summarised(arm: Arm, records: Sequence[PhotoRecord], metrics: Sequence[str]) -> ArmSummary:
    """Return what was measured of a method at a layer, over all photos."""
    mine = [record.arms[arm.name] for record in records if arm.name in record.arms]
    with_map = [record for record in mine if record.map is not None]
    # Without a map of the model itself there is nothing to compare.
    checked = [record.sanity for record in with_map if record.sanity]
    stages = [
        {
            # A map that is gone, or the same everywhere, has changed.
            measure: interval([getattr(photo[stage], measure) or 0.0 for photo in checked])
            for measure in ("spearman", "absolute", "ssim", "hog")
        }
        for stage in range(max(map(len, checked), default=0))
    ]
    mean = _over_stages(checked)
    depending = _over_stages([photo[_first_changed(checked) :] for photo in checked])
    other = {
        image: interval([record.other_class.get(image) for record in with_map])
        for image in ("photo", "grid")
    }
    alike = [interval_.mean for interval_ in other.values() if interval_]
    spent = [record.milliseconds for record in mine if record.milliseconds is not None]
    forwards = [record.forwards for record in mine if record.forwards is not None]
    return ArmSummary(
        method=arm.method,
        layer=arm.layer,
        photos=len(with_map),
        shows_the_model=None if depending is None else _changes(depending),
        sanity=stages,
        sanity_mean=mean,
        class_blind=min(alike) > BLIND if alike else not _specific(arm.method),
        other_class=other,
        localisation={
            str(side): interval([record.grids.get(str(side)) for record in mine], proportion=True)
            for side in SIDES
        },
        scores={
            name: interval([record.scores.get(name) for record in mine], proportion=name in SHARES)
            for name in metrics
        },
        forwards=round(median(forwards)) if forwards else None,
        milliseconds=median(spent) if spent else None,
        points=None,
        mean_map=_mean_map(with_map),
    )


def _over_stages(checked: Sequence[Sequence[Similarity]]) -> Interval | None:
    """Return the mean over the photos of the mean rank correlation without sign over stages."""
    return interval([fmean(stage.absolute or 0.0 for stage in photo) for photo in checked])


def _first_changed(checked: Sequence[Sequence[Similarity]]) -> int:
    """Return the number of the first stage at which the map changes, or else of the last one. A map
    that stays the same up to rounding is not made of the weights that are random so far, such as
    that of a method without a gradient at a layer below them, and stages at which it could not
    change say nothing of the model."""
    last = min(map(len, checked), default=1) - 1
    for stage in range(last):
        if fmean(photo[stage].absolute or 0.0 for photo in checked) < 1 - UNCHANGED:
            return stage
    return last


def _changes(similarity: Interval) -> bool:
    """Return whether a map is not surely above `SHOWS_THE_PHOTO`, by its interval; of fewer photos
    than have one, by its mean."""
    least = similarity.mean if similarity.low is None else similarity.low
    return least <= SHOWS_THE_PHOTO


def _specific(method: str) -> bool:
    """Return whether a method's formula depends on the class, or nothing is known of it."""
    return method not in METHODS or METHODS[method].class_specific


def _mean_map(arms: Sequence[ArmRecord]) -> list[list[float]] | None:
    """Return the mean of the maps of the commonest size."""
    maps = [np.array(arm.map) for arm in arms]
    if not maps:
        return None
    shapes = [map_.shape for map_ in maps]
    shape = max(set(shapes), key=shapes.count)
    mean = np.mean([map_ for map_ in maps if map_.shape == shape], 0)
    rows: list[list[float]] = mean.round(4).tolist()
    return rows


def _quantiles(
    records: Sequence[PhotoRecord], names: Sequence[str], metrics: Sequence[str]
) -> dict[str, list[float]]:
    quantiles = {}
    for metric in metrics:
        values = [
            value
            for record in records
            for name in names
            if name in record.arms and (value := record.arms[name].scores.get(metric)) is not None
        ]
        if values:
            quantiles[metric] = [float(value) for value in np.percentile(values, PERCENTS)]
    return quantiles


def _conventions(records: Sequence[PhotoRecord]) -> dict[str, str]:
    enlarged = next((record.enlarged for record in records if record.enlarged is not None), None)
    size = {
        True: "the grid is n times as large as the model's input",
        False: "the model takes no larger images, so the grid is reduced to its input",
        None: "the grid is n times as large as the model's input, where the model takes that",
    }[enlarged]
    checked = [
        max(len(arm.sanity or ()) for arm in record.arms.values())
        for record in records
        if record.arms
    ]
    sanity, stages = sum(map(bool, checked)), max(checked, default=0)
    count = counted(stages, "stage")
    cost = sum(any(arm.milliseconds for arm in record.arms.values()) for record in records)
    return {
        "sanity": (
            "Adebayo et al., Sanity Checks for Saliency Maps, NeurIPS 2018: cascading "
            f"randomisation in {count}, from the layer of the logits alone to all layers ({STAGES} "
            "stages, if as many modules have weights); each weight tensor is drawn from the "
            "normal distribution with its own mean and standard deviation, and running statistics "
            "stay; similarity of the maps to those of the unchanged model: Spearman's rank "
            "correlation with and without the sign at the layer's size, structural similarity and "
            "correlation of histograms of oriented gradients at 64 × 64 pixels, and 0 for a map "
            f"that is gone; on {sanity} of the {counted(len(records), 'photo')}, evenly spaced, at "
            f"most {SANITY_PHOTOS}; a map whose rank correlation without sign is above "
            f"{SHOWS_THE_PHOTO:g}, as the mean over the stages from the first one that changes it "
            "on, and with the lower end of its interval, shows the photo, not the model"
        ),
        "localisation": (
            "Böhle et al., CVPR 2021, and Rao et al., CVPR 2022 (grid pointing game): share of the "
            "heat above 0 in the cell of the photo whose class is explained, among n × n photos of "
            f"different classes with a probability of {SURE:g} or more (where there are fewer "
            "classes, the other cells repeat theirs), if the class is among "
            f"the n² most probable ones of the grid, or, of a model with no more classes, more "
            f"probable than without the photo; {size}; a map without knowledge has 1 / n²"
        ),
        "other_class": (
            "Spearman's rank correlation of the map with the map of another class: on the photo of "
            "a class that is drawn at random, and on the smallest grid of the class of another "
            "cell; a map of the other class that is the same everywhere counts as 0; a method "
            f"whose mean is above {BLIND:g} on each of the two hardly depends on the class, and is "
            "not compared with the others"
        ),
        "cost": (
            f"median time of a map alone, on {counted(cost, 'photo')}, from "
            "preprocessed pixels to the small map, on the machine of the audit"
        ),
        "points": (
            "on each photo and for each measure, the share of the other methods with a worse "
            "value, and half of those with the same; the mean within localisation and within "
            f"faithfulness ({', '.join(FAITHFULNESS)}), then of the two with the weights "
            f"{LOCALISATION:g} and {1 - LOCALISATION:g}, on the photos that were in a grid; with "
            f"fewer than {LEAST_PHOTOS} of these, faithfulness on all photos; stability gives no "
            "points, because the most stable map is one that does not depend on the model"
        ),
        "interval": (
            "95 %, by Student's distribution, from three photos on; of shares that are 0 or 1 for "
            "all photos, Wilson's interval"
        ),
        "recommendation": (
            "a method differs from the best one beyond chance if its points are fewer by more than "
            "the difference that 95 % of the bootstrap samples have at most between any two "
            "methods; the comparison is simultaneous, so that of equally good methods one is "
            "called worse than the best in about 5 % of the audits, however many methods there "
            "are (Hsu, Multiple Comparisons, 1996); if that leaves more than half of the others, "
            "none is recommended; of those that are left and take at most "
            f"{AS_CHEAP} times as many forward passes as the cheapest (one backwards counts as "
            "two), the one with the most points is recommended"
        ),
    }
