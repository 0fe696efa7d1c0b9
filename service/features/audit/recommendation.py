"""The recommendation of an audit: the points of the methods, and the method to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cam.counts import counted
from cam.evaluation.chance import FEWEST, Interval, interval, least_difference
from cam.evaluation.metrics import METRICS
from cam.evaluation.verdict import listed
from service.features.audit.plan import LEAST_PHOTOS, SIDES, name_of, passes_of
from service.features.audit.records import ArmRecord, PhotoRecord
from service.features.audit.schemas import ArmSummary, Recommendation

LOCALISATION: Final = 0.9
"""Weight of localisation; faithfulness has the rest. On models whose true evidence is known, the
order of methods by the grid pointing game has a rank correlation of 0.87 with the true order. The
order by insertion and deletion has about 0, so faithfulness only decides between methods that
localise equally well."""
AS_CHEAP: Final = 10
"""Two methods count as equally cheap up to this ratio of their passes. Methods of one pass differ
by a factor of five at most, and methods of many passes are above it."""
FEW: Final = 5
"""If there are fewer other methods than this, the reason names the methods that are beaten instead
of a percentage."""
ROUNDING: Final = 1e-5
"""Largest difference between two values that may come from rounding in float32."""
FAITHFULNESS: Final = tuple(name for name, metric in METRICS.items() if metric.faithfulness)
"""Metrics that tell whether the map shows what the model uses."""
Points = NDArray[np.float64]


def points_of(
    records: Sequence[PhotoRecord], names: list[str], metrics: Sequence[str]
) -> tuple[dict[str, Interval], dict[str, Points]]:
    """Return the mean points of each method, and its points for each photo.

    For one photo and one measure, a method's points are the share of the other methods that it
    beats; a method with the same value counts half. A photo's points are the mean over two groups
    of measures: localisation, with the weight `LOCALISATION`, and faithfulness. If enough photos
    were in grids, only these photos count; otherwise only faithfulness does. Stability gives no
    points, because the most stable map is one that does not depend on the model.
    """
    if len(names) < 2 or not records:
        return {}, {}
    faithfulness = [name for name in metrics if name in FAITHFULNESS]
    groups = [(1.0, faithfulness)]
    if localises(records):
        records = [record for record in records if in_grid(record)]
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
    sums_ = _mean(totals, weights)
    known = ~np.isnan(sums_).all(0)
    sums_ = sums_[:, known]
    if not sums_.size:
        return {}, {}
    points = {}
    for name, values in zip(names, sums_, strict=True):
        mine = interval(values.tolist(), proportion=True)
        assert mine is not None
        points[name] = mine
    return points, dict(zip(names, sums_, strict=True))


def _beaten(records: Sequence[PhotoRecord], names: list[str], measure: str) -> Points:
    """Return the share of the other methods that each method beats, (methods, photos). A method
    without a value beats none. The share is NaN if no method has a value."""
    sign = -1 if measure in METRICS and METRICS[measure].better == "lower" else 1
    values = np.array(
        [[_value(record.arms.get(name), measure) for record in records] for name in names]
    )
    worth = np.where(np.isnan(values), -np.inf, sign * values)
    other = worth[None]
    mine = worth[:, None]
    same = np.isclose(mine, other, rtol=0, atol=ROUNDING) | (mine == other)
    beaten = (mine > other) & ~same
    # Each method equals itself, which does not count.
    share: Points = (beaten.sum(1) + 0.5 * (same.sum(1) - 1)) / (len(names) - 1)
    share[:, np.isnan(values).all(0)] = np.nan
    return share


def _value(arm: ArmRecord | None, measure: str) -> float:
    if arm is None:
        return float("nan")
    interval_ = (
        arm.grids.get(measure[5:]) if measure.startswith("grid ") else arm.scores.get(measure)
    )
    return float("nan") if interval_ is None else interval_


def _mean(stacked: Points, weights: Points) -> Points:
    """Return the weighted mean over the first axis, without the numbers that are NaN; NaN if all
    are. The weights are broadcast to the shape of the numbers."""
    sums = np.where(np.isnan(stacked), 0, weights).sum(0)
    mean: Points = np.nansum(weights * stacked, 0) / np.where(sums > 0, sums, np.nan)
    return mean


def in_grid(record: PhotoRecord) -> bool:
    return any(arm.grids for arm in record.arms.values())


def localises(records: Sequence[PhotoRecord]) -> bool:
    """Return whether enough photos were in grids for localisation to decide."""
    return sum(map(in_grid, records)) >= LEAST_PHOTOS


def localise_worse(
    records: Sequence[PhotoRecord], names: Sequence[str]
) -> dict[str, tuple[float, float, int]]:
    """Return the methods that localise worse than the best one beyond chance: each with its mean
    share of the heat in the right cell, that of the best method, and the number of photos.

    Chance is judged by Student's interval of the differences on each photo, with Bonferroni's
    correction for the number of other methods. Too few grids give no points, but a method that is
    worse on them should still not be recommended.
    """
    shares = {
        name: {
            record.index: fmean(known)
            for record in records
            if name in record.arms
            and (
                known := [value for value in record.arms[name].grids.values() if value is not None]
            )
        }
        for name in names
    }
    shares = {name: mine for name, mine in shares.items() if len(mine) >= FEWEST}
    if len(shares) < 2:
        return {}
    best = max(shares, key=lambda name: fmean(shares[name].values()))
    worse = {}
    for name, mine in shares.items():
        both = sorted(mine.keys() & shares[best].keys())
        gaps = [shares[best][index] - mine[index] for index in both]
        found = interval(gaps, comparisons=len(shares) - 1)
        if found and found.low is not None and found.low > 0:
            own, most = (fmean(each[index] for index in both) for each in (mine, shares[best]))
            worse[name] = own, most, len(both)
    return worse


def why_none(
    measured: int,
    arms: Sequence[ArmSummary],
    showing: list[str],
    able: list[str],
    points: Mapping[str, Points],
) -> str | None:
    """Return why no method can be recommended, as a clause; None if one can be.

    Args:
        measured: number of photos that were measured.
        showing: names of the methods that have maps and do not merely show the photo.
        able: the methods among these whose maps depend on the class.
        points: the points of each method for each photo.
    """
    needed = f"a recommendation needs {LEAST_PHOTOS} or more"
    if measured < LEAST_PHOTOS:
        photos = counted(measured, "photo was", "photos were") if measured else "no photos were"
        return f"{photos} measured, and {needed}"
    if len(arms) == 1:
        return f"only {name_of(arms[0])} was measured, and there is nothing to compare it with"
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
        return f"the methods could be compared on {counted(compared, 'photo')}, and {needed}"
    kinds = len({_key(point) for point in points.values()})
    if kinds == 1:
        return f"{listed(list(points))} score the same on each photo"
    others = len({_key(points[name]) for name in _alike(points)}) - 1
    if 2 * others > kinds - 1:
        whole = "none of them differs" if others == kinds - 1 else f"{others} of them do not differ"
        return (
            f"of {kinds} methods whose scores are not the same, {whole} from the best one "
            f"beyond chance on {compared} photos; more photos may tell them apart"
        )
    return None


def _key(points: Points) -> bytes:
    """Return a key that is equal for methods with equal points on all photos. Behind a pooled
    linear head, for example, several methods make the same map."""
    return points.round(6).tobytes()


def _alike(points: Mapping[str, Points]) -> list[str]:
    """Return the methods whose points do not differ from the best ones beyond chance."""
    means = {name: float(values.mean()) for name, values in points.items()}
    least = least_difference(np.stack([*points.values()]))
    best = max(means.values())
    return [name for name, mean in means.items() if best - mean <= least]


def recommended(
    arms: Sequence[ArmSummary],
    points: Mapping[str, Points],
    *,
    by_grids: bool,
    worse_placed: Mapping[str, tuple[float, float, int]],
) -> Recommendation:
    """Return the method to use.

    The candidates are the methods whose points do not differ from the best ones beyond chance, and
    that take at most `AS_CHEAP` times as many passes as the cheapest of these. The candidate with
    the most points is chosen; among equal points, the one with the fewest passes; among these, the
    first in the list of methods.

    Measured times do not matter, so the same photos give the same recommendation.

    Args:
        arms: the methods that are compared.
        points: the points of each method for each photo.
        by_grids: whether localisation decides.
        worse_placed: the methods that are not recommended, as `localise_worse` returns them.
    """
    arms = [arm for arm in arms if name_of(arm) not in worse_placed]
    points = {name: mine for name, mine in points.items() if name not in worse_placed}
    names = _alike(points)
    alike = [arm for arm in arms if name_of(arm) in names]

    def worth(arm: ArmSummary) -> float:
        """Return the points, rounded, so methods with equal maps have equal points."""
        return round(float(points[name_of(arm)].mean()), 6)

    def cost(arm: ArmSummary) -> int:
        return passes_of(arm.method, arm.forwards)

    least = min(map(cost, alike))
    cheap = [arm for arm in alike if cost(arm) <= AS_CHEAP * least]
    chosen = max(cheap, key=lambda arm: (worth(arm), -cost(arm)))
    best = max(alike, key=worth)
    assert chosen.points is not None
    worse = [name_of(arm) for arm in arms if worth(arm) < worth(chosen)]
    reason = _lead(chosen, worse, len(arms) - 1)
    if worth(best) > worth(chosen):
        reason += (
            f"; {name_of(best)} does not differ from it beyond chance and takes "
            f"{cost(best) / cost(chosen):.0f} times as many passes"
        )
    if not by_grids:
        reason += (
            "; too few photos were in grids, so faithfulness alone decides, which does not tell "
            "whether a map finds its class"
        )
    for name, (mine, best_share, photos) in worse_placed.items():
        reason += (
            f"; {name} has {mine:.2f} of its heat on its class in {photos} grids, where another "
            f"method has {best_share:.2f}"
        )
    return Recommendation(
        method=chosen.method,
        layer=chosen.layer,
        reason=reason,
        alike=[name_of(arm) for arm in alike if arm is not chosen],
        lines='audit = "audit.json"  # the path of this audit, from the folder of models.toml',
    )


def _lead(arm: ArmSummary, worse: list[str], others: int) -> str:
    """Return how far a method is ahead of the others, as a clause.

    Args:
        worse: the methods with fewer points.
        others: number of all other methods.
    """
    assert arm.points is not None
    if others < FEW and worse:
        return f"it is better than {listed(worse)} on the mean of {arm.points.photos} photos"
    within = ""
    if arm.points.low is not None and arm.points.high is not None:
        within = f" ({arm.points.low:.0%} to {arm.points.high:.0%})"
    methods = counted(others, "other method")
    return f"it beats {arm.points.mean:.0%} of the {methods} on a photo{within}"
