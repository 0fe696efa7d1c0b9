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
from service.audit.findings import findings_of
from service.audit.grids import SURE
from service.audit.plan import LEAST_PHOTOS, SANITY_PHOTOS, SIDES, STAGES, Arm, passes_of
from service.core.audit_schemas import (
    ArmRecord,
    ArmSummary,
    Audit,
    Interval,
    PhotoFailure,
    PhotoRecord,
    Recommendation,
)
from service.core.bootstrap import interval, least_difference

SHOWS_THE_PHOTO: Final = 0.5
"""Rank correlation with the maps of randomised models, the mean over the stages, above which a map
shows the photo and not the model."""
BLIND: Final = 0.9
"""Rank correlation of the maps of two classes of one image, above which the map hardly depends on
the class."""
LOCALISATION: Final = 0.9
"""Weight of localisation beside faithfulness, which has the rest. On models whose truth is known,
the order of methods by the grid pointing game has a rank correlation of 0.87 with the truth, and
that by insertion and deletion about 0: faithfulness only decides between methods that localise
alike."""
AS_CHEAP: Final = 10
"""Ratio of the passes of two methods up to which they count as equally cheap. Methods of one pass
differ by a factor of five at most, and methods of many passes are above it."""
FEW: Final = 5
"""Number of other methods below which the share of them that a method beats is no percentage."""
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
    showing = [_name(each) for each in arms if each.shows_the_model is not False and each.photos]
    able = [
        name
        for each in arms
        if (name := _name(each)) in showing and not each.class_blind and _specific(each.method)
    ]
    points, photos = _points(ordered, able, metrics)
    arms = [each.model_copy(update={"points": points.get(_name(each))}) for each in arms]
    why_none = _why_none(len(ordered), arms, showing, able, photos)
    compared = [each for each in arms if each.points]
    chosen = None if why_none else _recommended(compared, photos, by_grids=_localises(ordered))
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
        quantiles=_quantiles(ordered, showing, metrics),
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
    other = {
        image: interval([each.other_class.get(image) for each in with_map])
        for image in ("photo", "grid")
    }
    alike = [each.mean for each in other.values() if each]
    spent = [each.milliseconds for each in mine if each.milliseconds is not None]
    forwards = [each.forwards for each in mine if each.forwards is not None]
    return ArmSummary(
        method=arm.method,
        layer=arm.layer,
        photos=len(with_map),
        shows_the_model=None if mean is None else mean.low <= SHOWS_THE_PHOTO,
        sanity=stages,
        sanity_mean=mean,
        class_blind=min(alike) > BLIND if alike else not _specific(arm.method),
        other_class=other,
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


def _specific(method: str) -> bool:
    """Return whether a method's formula depends on the class, or nothing is known of it."""
    return method not in METHODS or METHODS[method].class_specific


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
    localisation, with the weight `LOCALISATION`, and faithfulness. If too few photos were in grids,
    they are of faithfulness alone; if enough were, of these photos alone. Stability gives no
    points: the most stable map is one that does not depend on the model.
    """
    if len(names) < 2 or not records:
        return {}, {}
    faithfulness = [name for name in metrics if name in FAITHFULNESS]
    groups = [(1.0, faithfulness)]
    if _localises(records):
        records = [each for each in records if _in_grid(each)]
        groups = [
            (LOCALISATION, [f"grid {side}" for side in SIDES]),
            (1 - LOCALISATION, faithfulness),
        ]
    totals = np.full((len(groups), len(names), len(records)), np.nan)
    weights = np.array([weight for weight, _ in groups])[:, None, None]
    for turn, (_, group) in enumerate(groups):
        shares = [_beaten(records, names, measure) for measure in group]
        if shares:
            totals[turn] = _mean(np.stack(shares), np.ones(()))
    each = _mean(totals, weights)
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


def _mean(stacked: Points, weights: Points) -> Points:
    """Return the mean over the first axis of the numbers that are not NaN, with weights that the
    numbers' shape can be broadcast to; NaN without any."""
    sums = np.where(np.isnan(stacked), 0, weights).sum(0)
    found: Points = np.nansum(weights * stacked, 0) / np.where(sums > 0, sums, np.nan)
    return found


def _in_grid(record: PhotoRecord) -> bool:
    return any(arm.grids for arm in record.arms.values())


def _localises(records: Sequence[PhotoRecord]) -> bool:
    """Return whether enough photos were in grids for localisation to decide."""
    return sum(map(_in_grid, records)) >= LEAST_PHOTOS


def _why_none(
    measured: int,
    arms: Sequence[ArmSummary],
    showing: list[str],
    able: list[str],
    points: Mapping[str, Points],
) -> str | None:
    """Return why no method can be recommended, as a clause; None if one can.

    Args:
        measured: number of photos that were measured.
        showing: names of the methods that have maps and do not show the photo.
        able: those of them whose maps depend on the class.
        points: the points of each method for each photo.
    """
    needed = f"a recommendation needs {LEAST_PHOTOS} or more"
    if measured < LEAST_PHOTOS:
        photos = "1 photo was" if measured == 1 else f"{measured or 'no'} photos were"
        return f"{photos} measured, and {needed}"
    if len(arms) == 1:
        return f"only {_name(arms[0])} was measured, and there is nothing to compare it with"
    for left, told in (
        (showing, "has maps that show the model"),
        (able, "has maps that show the model and depend on the class"),
    ):
        if len(left) < 2:
            return f"{f'only {left[0]}' if left else 'no method'} {told}"
    if not points:
        return "neither localisation nor a metric of faithfulness could be measured"
    compared = min(map(len, points.values()))
    if compared < LEAST_PHOTOS:
        return f"the methods could be compared on {compared} photos, and {needed}"
    kinds = len({_key(each) for each in points.values()})
    if kinds == 1:
        return f"{_listed(list(points))} score the same on each photo"
    others = len({_key(points[name]) for name in _alike(points)}) - 1
    if 2 * others > kinds - 1:
        whole = "none of them differs" if others == kinds - 1 else f"{others} of them do not differ"
        return (
            f"of {kinds} methods whose scores are not the same, {whole} from the best one "
            f"beyond chance on {compared} photos; more photos may tell them apart"
        )
    return None


def _key(points: Points) -> bytes:
    """Return a key that is the same for methods with the same points on all photos, such as those
    that make the same map behind a pooled linear head."""
    return points.round(6).tobytes()


def _alike(points: Mapping[str, Points]) -> list[str]:
    """Return the methods whose points do not differ from the best ones beyond chance."""
    means = {name: float(each.mean()) for name, each in points.items()}
    least = least_difference(np.stack([*points.values()]))
    best = max(means.values())
    return [name for name, mean in means.items() if best - mean <= least]


def _recommended(
    arms: Sequence[ArmSummary], points: Mapping[str, Points], *, by_grids: bool
) -> Recommendation:
    """Return the method to use: of those whose points do not differ from the best ones beyond
    chance, and that take no more than `AS_CHEAP` times as many passes as the cheapest of them, the
    one with the most points; of several with the same points, the one with the fewest passes, and
    the first in the list of methods.

    Nothing depends on measured times, so the same photos give the same recommendation.

    Args:
        arms: the methods that are compared.
        points: the points of each method for each photo.
        by_grids: whether localisation decides.
    """
    names = _alike(points)
    alike = [each for each in arms if _name(each) in names]

    def worth(arm: ArmSummary) -> float:
        """Return the points, rounded so that methods with equal maps are equal."""
        return round(float(points[_name(arm)].mean()), 6)

    def cost(arm: ArmSummary) -> int:
        return passes_of(arm.method, arm.forwards)

    least = min(map(cost, alike))
    cheap = [each for each in alike if cost(each) <= AS_CHEAP * least]
    chosen = max(cheap, key=lambda each: (worth(each), -cost(each)))
    best = max(alike, key=worth)
    assert chosen.points is not None
    worse = [_name(each) for each in arms if worth(each) < worth(chosen)]
    reason = _lead(chosen, worse, len(arms) - 1)
    if worth(best) > worth(chosen):
        reason += (
            f"; {_name(best)} does not differ from it beyond chance and takes "
            f"{cost(best) / cost(chosen):.0f} times as many passes"
        )
    if not by_grids:
        reason += (
            "; too few photos were in grids, so faithfulness alone decides, which does not tell "
            "whether a map finds its class"
        )
    return Recommendation(
        method=chosen.method,
        layer=chosen.layer,
        reason=reason,
        alike=[_name(each) for each in alike if each is not chosen],
        lines='audit = "audit.json"  # the path of this audit, from the folder of models.toml',
    )


def _lead(arm: ArmSummary, worse: list[str], others: int) -> str:
    """Return by how much a method leads, as a clause.

    Args:
        worse: the methods with fewer points.
        others: number of all other methods.
    """
    assert arm.points is not None
    if others < FEW and worse:
        return f"it is better than {_listed(worse)} on the mean of {arm.points.photos} photos"
    return (
        f"it beats {arm.points.mean:.0%} of the {others} other methods on a photo "
        f"({arm.points.low:.0%} to {arm.points.high:.0%})"
    )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


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
            f"median time of a map alone, on {cost} photos, from "
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
            "95 % of 2000 bootstrap samples of the photos (percentile interval); of shares that "
            "are 0 or 1 for all photos, Wilson's interval"
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
