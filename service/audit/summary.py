"""The summary of an audit: means with intervals, findings, and the method to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from statistics import fmean, median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cam import METHODS
from cam.evaluation.metrics import METRICS, Options
from service.audit.bootstrap import interval, least_difference
from service.audit.findings import findings_of
from service.audit.grids import SURE
from service.audit.plan import LEAST_PHOTOS, SANITY_PHOTOS, SIDES, STAGES, Arm
from service.core.audit_schemas import (
    ArmRecord,
    ArmSummary,
    Audit,
    Interval,
    PhotoFailure,
    PhotoRecord,
    Recommendation,
)

SHOWS_THE_PHOTO: Final = 0.5
"""Rank correlation with the maps of randomised models, the mean over the stages, above which a map
shows the photo and not the model."""
BLIND: Final = 0.9
"""Rank correlation with the map of a model whose logits alone are random, above which a map hardly
depends on the class."""
AS_CHEAP: Final = 1.25
"""Largest ratio of two methods' costs at which they count as equally cheap. Times of equal work
differ by less on an idle machine."""
ROUNDING: Final = 1e-5
"""Largest difference of two values that rounding in float32 may cause."""
FAITHFULNESS: Final = (
    *("insertion", "deletion", "road", "road_morf", "road_lerf", "confidence_drop"),
    *("confidence_increase", "adcc", "infidelity"),
)
"""Metrics that tell whether the map shows what the model uses."""
SHARES: Final = ("confidence_increase", "confidence_drop")
"""Metrics whose values are shares, and can be 0 or 1 for all photos."""
PERCENTS: Final = tuple(range(101))
Points = NDArray[np.float64]


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
    ordered = sorted(records, key=lambda each: each.index)
    options = Options()
    known = dict.fromkeys(name for record in ordered for name in record.arms)
    arms = [_summarised(Arm.of(name), ordered, metrics) for name in known]
    showing = [each for each in arms if each.shows_the_model is not False and each.photos]
    names = {_name(each): each for each in showing}
    points, photos = _points(ordered, list(names), metrics)
    arms = [
        each.model_copy(update={"points": points[_name(each)]}) if _name(each) in points else each
        for each in arms
    ]
    why_none = _why_none(len(ordered), arms, list(names), points)
    chosen = (
        None if why_none else _recommended([each for each in arms if _name(each) in points], photos)
    )
    baselines = sorted({name for record in ordered for name in record.baselines})
    summary = Audit(
        model=model,
        fingerprint=weights,
        made=max((each.measured for each in ordered if each.measured), default=None)
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
                metric: interval([each.baselines.get(name, {}).get(metric) for each in ordered])
                for metric in metrics
            }
            for name in baselines
        },
        chance={str(side): 1 / side**2 for side in SIDES},
        findings=[],
        recommendation=chosen,
        why_none=why_none,
        quantiles=_quantiles(ordered, list(names), metrics),
    )
    return summary.model_copy(update={"findings": findings_of(summary, ordered)})


def _made_with(records: Sequence[PhotoRecord]) -> dict[str, str]:
    """Return what the photos were measured with. An audit that went on with another version has
    both."""
    names = dict.fromkeys(name for each in records for name in each.made_with)
    return {
        name: " and ".join(
            dict.fromkeys(each.made_with[name] for each in records if name in each.made_with)
        )
        for name in names
    }


def _name(arm: ArmSummary) -> str:
    return Arm(arm.method, arm.layer).name


def _summarised(arm: Arm, records: Sequence[PhotoRecord], metrics: Sequence[str]) -> ArmSummary:
    mine = [each.arms[arm.name] for each in records if arm.name in each.arms]
    with_map = [each for each in mine if each.map is not None]
    # Without a map of the model itself there is nothing to compare.
    checked = [each.sanity for each in with_map if each.sanity]
    stages = [
        {
            # A map that is gone, or the same everywhere, has changed.
            measure: interval([getattr(photo[stage], measure) or 0.0 for photo in checked])
            for measure in ("spearman", "absolute", "ssim", "hog")
        }
        for stage in range(max(map(len, checked), default=0))
    ]
    mean = interval([fmean(each.absolute or 0.0 for each in photo) for photo in checked])
    first = stages[0]["absolute"] if stages else None
    spent = [each.milliseconds for each in mine if each.milliseconds is not None]
    forwards = [each.forwards for each in mine if each.forwards is not None]
    return ArmSummary(
        method=arm.method,
        layer=arm.layer,
        photos=len(with_map),
        shows_the_model=None if mean is None else mean.low <= SHOWS_THE_PHOTO,
        sanity=stages,
        sanity_mean=mean,
        class_blind=first is not None and first.mean > BLIND,
        localisation={
            str(side): interval([each.grids.get(str(side)) for each in mine], proportion=True)
            for side in SIDES
        },
        scores={
            name: interval([each.scores.get(name) for each in mine], proportion=name in SHARES)
            for name in metrics
        },
        forwards=round(median(forwards)) if forwards else None,
        milliseconds=median(spent) if spent else None,
        points=None,
        mean_map=_mean_map(with_map),
    )


def _mean_map(arms: Sequence[ArmRecord]) -> list[list[float]] | None:
    """Return the mean of the maps of the commonest size."""
    maps = [np.array(each.map) for each in arms]
    if not maps:
        return None
    shapes = [each.shape for each in maps]
    shape = max(set(shapes), key=shapes.count)
    mean = np.mean([each for each in maps if each.shape == shape], 0)
    rows: list[list[float]] = mean.round(4).tolist()
    return rows


def _points(
    records: Sequence[PhotoRecord], names: list[str], metrics: Sequence[str]
) -> tuple[dict[str, Interval], dict[str, Points]]:
    """Return the points of each method, and its points for each photo.

    For one photo and one measure, a method has the share of the other methods that it beats, and
    half of those with the same value. The points of a photo are the mean over two groups:
    localisation and faithfulness. Stability gives no points: the most stable map is one that does
    not depend on the model.
    """
    if len(names) < 2 or not records:
        return {}, {}
    groups = [
        [f"grid {side}" for side in SIDES],
        [name for name in metrics if name in FAITHFULNESS],
    ]
    totals = np.full((len(groups), len(names), len(records)), np.nan)
    for turn, group in enumerate(groups):
        shares = [_beaten(records, names, measure) for measure in group]
        if shares:
            totals[turn] = _mean(np.stack(shares))
    each = _mean(totals)
    known = ~np.isnan(each).all(0)
    each = each[:, known]
    if not each.size:
        return {}, {}
    found = {}
    for name, values in zip(names, each, strict=True):
        mine = interval(values.tolist(), proportion=True)
        assert mine is not None
        found[name] = mine
    return found, dict(zip(names, each, strict=True))


def _beaten(records: Sequence[PhotoRecord], names: list[str], measure: str) -> Points:
    """Return the share of the other methods that each method beats, (methods, photos). A method
    without a value beats none; NaN where no method has a value."""
    sign = -1 if measure in METRICS and METRICS[measure].better == "lower" else 1
    values = np.array(
        [[_value(record.arms.get(name), measure) for record in records] for name in names]
    )
    worth = np.where(np.isnan(values), -np.inf, sign * values)
    other = worth[None]
    mine = worth[:, None]
    same = np.isclose(mine, other, rtol=0, atol=ROUNDING) | (mine == other)
    beaten = (mine > other) & ~same
    # A method is the same as itself, which does not count.
    share: Points = (beaten.sum(1) + 0.5 * (same.sum(1) - 1)) / (len(names) - 1)
    share[:, np.isnan(values).all(0)] = np.nan
    return share


def _value(arm: ArmRecord | None, measure: str) -> float:
    if arm is None:
        return float("nan")
    found = arm.grids.get(measure[5:]) if measure.startswith("grid ") else arm.scores.get(measure)
    return float("nan") if found is None else found


def _mean(stacked: Points) -> Points:
    """Return the mean over the first axis of the numbers that are not NaN; NaN without any."""
    counts = (~np.isnan(stacked)).sum(0)
    sums = np.nansum(stacked, 0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _why_none(
    measured: int, arms: Sequence[ArmSummary], showing: list[str], points: Mapping[str, Interval]
) -> str | None:
    """Return why no method can be recommended, as a clause; None if one can.

    Args:
        measured: number of photos that were measured.
        showing: names of the methods that have maps and do not show the photo.
    """
    needed = f"a recommendation needs {LEAST_PHOTOS} or more"
    if measured < LEAST_PHOTOS:
        photos = "1 photo was" if measured == 1 else f"{measured or 'no'} photos were"
        return f"{photos} measured, and {needed}"
    if len(arms) == 1:
        return f"only {_name(arms[0])} was measured, and there is nothing to compare it with"
    if not showing:
        return "no method has maps that show the model"
    if len(showing) == 1:
        return f"only {showing[0]} has maps that show the model"
    if not points:
        return "neither localisation nor a metric of faithfulness could be measured"
    compared = min(each.photos for each in points.values())
    if compared < LEAST_PHOTOS:
        return f"the methods could be compared on {compared} photos, and {needed}"
    return None


def _recommended(arms: Sequence[ArmSummary], points: Mapping[str, Points]) -> Recommendation:
    """Return the method to use: of those whose points do not differ from the best ones beyond
    chance, the cheapest one; of equally cheap ones, the one with the most points.

    Args:
        arms: the methods that are compared.
        points: the points of each method for each photo.
    """
    scored = [each for each in arms if each.points is not None]

    def worth(arm: ArmSummary) -> float:
        """Return the points, rounded so that methods with equal maps are equal, and the first
        one in the list of methods is taken."""
        return round(arm.points.mean, 6) if arm.points else 0

    best = max(scored, key=worth)
    least = least_difference(np.stack([points[_name(each)] for each in scored]))
    alike = [each for each in scored if worth(best) - worth(each) <= least]
    chosen = max(_cheapest(alike), key=worth)
    assert chosen.points is not None
    others = [_name(each) for each in alike if each is not chosen]
    reason = (
        f"it beats {chosen.points.mean:.0%} of the other methods on a photo "
        f"({chosen.points.low:.0%} to {chosen.points.high:.0%})"
    )
    if len(alike) == len(scored) and len(scored) > 1:
        reason = "no method differs from the others beyond chance, and no other is cheaper"
    elif chosen is not best:
        reason += f"; {_name(best)} does not differ from it beyond chance and takes longer"
    return Recommendation(
        method=chosen.method,
        layer=chosen.layer,
        reason=reason,
        alike=others,
        lines='audit = "audit.json"  # the path of this audit, from the folder of models.toml',
    )


def _cheapest(arms: Sequence[ArmSummary]) -> list[ArmSummary]:
    """Return the methods that cost the least: by their times if some are measured, else by their
    passes. A method whose cost is not known is none of them, unless that of none is."""
    times = [(each.milliseconds, each) for each in arms if each.milliseconds is not None]
    passes = [(_passes(each), each) for each in arms if each.forwards is not None]
    known = times or passes
    if not known:
        return list(arms)
    least = min(cost for cost, _ in known)
    return [each for cost, each in known if cost <= AS_CHEAP * least]


def _passes(arm: ArmSummary) -> float:
    """Return the cost of a map in forward passes; a pass backwards takes about two of them."""
    cost = METHODS[arm.method].cost if arm.method in METHODS else "one forward"
    each = {"one backward": 3, "N backwards": 3, "two backwards": 5}.get(cost, 1)
    return each * (arm.forwards or 1)


def _quantiles(
    records: Sequence[PhotoRecord], names: Sequence[str], metrics: Sequence[str]
) -> dict[str, list[float]]:
    found = {}
    for metric in metrics:
        values = [
            value
            for record in records
            for name in names
            if name in record.arms and (value := record.arms[name].scores.get(metric)) is not None
        ]
        if values:
            found[metric] = [float(each) for each in np.percentile(values, PERCENTS)]
    return found


def _conventions(records: Sequence[PhotoRecord]) -> dict[str, str]:
    enlarged = next((each.enlarged for each in records if each.enlarged is not None), None)
    size = {
        True: "the grid is n times as large as the model's input",
        False: "the model takes no larger images, so the grid is reduced to its input",
        None: "the grid is n times as large as the model's input, where the model takes that",
    }[enlarged]
    checked = [
        max(len(arm.sanity or ()) for arm in each.arms.values()) for each in records if each.arms
    ]
    sanity, stages = sum(map(bool, checked)), max(checked, default=0)
    count = "1 stage" if stages == 1 else f"{stages} stages"
    cost = sum(any(arm.milliseconds for arm in each.arms.values()) for each in records)
    return {
        "sanity": (
            "Adebayo et al., Sanity Checks for Saliency Maps, NeurIPS 2018: cascading "
            f"randomisation in {count}, from the layer of the logits alone to all layers "
            f"({STAGES} stages, if as many modules have weights); each weight tensor is drawn from "
            "the normal distribution with its own mean and standard deviation, and running "
            "statistics stay; similarity of the maps to those of the unchanged model: Spearman's "
            "rank correlation with and without the sign at the layer's size, structural similarity "
            "and correlation of histograms of oriented gradients at 64 × 64 pixels, and 0 for a "
            f"map that is gone; on {sanity} of the {len(records)} photos, evenly spaced, at most "
            f"{SANITY_PHOTOS}; a map whose rank correlation without sign is above "
            f"{SHOWS_THE_PHOTO:g}, as the mean over the stages and with the lower end of its "
            "interval, shows the photo, not the model"
        ),
        "localisation": (
            "Böhle et al., CVPR 2021, and Rao et al., CVPR 2022 (grid pointing game): share of the "
            "heat above 0 in the cell of the photo whose class is explained, among n × n photos of "
            f"different classes with a probability of {SURE:g} or more, where the class is among "
            f"the n² most probable ones of the grid; {size}; a map without knowledge has 1 / n²"
        ),
        "cost": (
            f"median time of a map alone, on {cost} photos, from "
            "preprocessed pixels to the small map, on the machine of the audit"
        ),
        "points": (
            "on each photo and for each measure, the share of the other methods with a worse "
            "value, and half of those with the same; the mean within localisation and within "
            f"faithfulness ({', '.join(FAITHFULNESS)}), then of the two; stability gives no "
            "points, because the most stable map is one that does not depend on the model"
        ),
        "interval": (
            "95 % of 2000 bootstrap samples of the photos (percentile interval); of shares that "
            "are 0 or 1 for all photos, Wilson's interval"
        ),
        "recommendation": (
            "a method differs from the best one beyond chance if its points are fewer by more than "
            "the difference that 95 % of the bootstrap samples have at most between any two "
            "methods; the comparison is simultaneous, so that of equally good methods one is "
            "called worse than the best in about 5 % of the audits, however many methods there "
            "are (Hsu, Multiple Comparisons, 1996); of the others, the cheapest is recommended: by "
            f"time, where up to {AS_CHEAP:g} times the least counts as equal; by passes, of which "
            "one backwards counts as two, if no time is known"
        ),
    }
