"""What a score says, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cam.evaluation.baselines import reflections
from cam.evaluation.metrics import METRICS, Score

NAMED: Final = {
    "random": "chance",
    "uniform": "a uniform map",
    "gaussian": "a centred Gaussian",
    "edges": "an edge detector",
}
"""Name of a baseline → its name in a sentence."""
COMPARED: Final = ("random", "gaussian", "edges")
"""Baselines that a verdict compares with. The uniform map is not one of them: its pixels go one by
one in random order, so its score tells how fast that destroys the image. A map of regions cannot do
the same, however right it is."""


SURE: Final = 0.05
"""Share of misplaced maps that a map may be called better than, or worse than, by chance."""
RANKED: Final = 19
"""Least number of misplaced maps among which the map's rank can tell that: first of 20."""
ROUNDING: Final = 1e-5
"""Largest difference of two values that rounding in float32 may cause."""


def verdict(metric: str, score: Score) -> str | None:
    """Return how a score compares with those of the baselines, as half a sentence; None if there is
    no value or no baseline.

    It is better than chance above the 95th percentile of misplaced maps (see
    `cam.evaluation.baselines.misplaced`) if it is better than each of the
    `cam.evaluation.baselines.reflections`, too, and worse below the 5th if it is worse than each of
    them. Where the heat is compared with a region, it must be better, or worse, than all misplaced
    maps: objects are at like places in many photos, so the map of another photo is among the best
    5 % in 11.5 % of photos, and the best in 8 %.
    """
    if score.value is None:
        return None
    told: dict[str, int] = {}
    among = percentile(metric, score)
    if among is not None:
        told["random"] = _beside_chance(metric, among, _ahead(metric, score))
    sign = 1 if METRICS[metric].better == "higher" else -1
    for name in COMPARED[1:]:
        if (other := score.baselines.get(name)) is not None:
            told[name] = int(sign * (score.value - other) > ROUNDING)
    return in_words(told)


def in_words(told: Mapping[str, int]) -> str | None:
    """Return comparisons as half a sentence; None if there are none.

    Args:
        told: name of a baseline → 1 if the map is better than it, −1 if it is worse, 0 if neither.
    """
    said = [
        f"{words} {listed(names, last)}"
        for sign, words, last in (
            (1, "better than", "and"),
            (0, "no better than", "or"),
            (-1, "worse than", "and"),
        )
        if (names := [NAMED[name] for name, outcome in told.items() if outcome == sign])
    ]
    return "; ".join(said) or None


def percentile(metric: str, score: Score) -> float | None:
    """Return the share, 0 … 1, of misplaced maps that are worse than the map; None if there are
    fewer than two.

    Of `RANKED` or more, the map's rank among them and itself tells; a map with the same value
    counts against what the rank would say. Of fewer, Student's distribution of one more value tells
    (the prediction interval): t = (value − mean) / (s · √(1 + 1 / n)), n − 1 degrees of freedom.
    """
    if score.value is None or len(score.chance) < 2:
        return None
    return _rank(_ahead(metric, score))


def _ahead(metric: str, score: Score) -> NDArray[np.float64]:
    """Return how much better the map is than each misplaced one."""
    assert score.value is not None
    difference = score.value - np.array(score.chance)
    return difference if METRICS[metric].better == "higher" else -difference


def _beside_chance(metric: str, among: float, ahead: NDArray[np.float64]) -> int:
    """Return 1 if a map is better than chance, −1 if it is worse, 0 if neither."""
    beside = ahead
    if METRICS[metric].needs != "region":
        beside = ahead[[turn - 1 for turn in reflections(len(ahead))]]
    if among >= 1 - SURE - 1e-9 and (beside > ROUNDING).all():
        return 1
    return -int(among <= SURE + 1e-9 and bool((beside < -ROUNDING).all()))


def _rank(ahead: NDArray[np.float64]) -> float:
    """Return the share of misplaced maps that are worse, from how far the map is ahead of each."""
    count = len(ahead)
    if count >= RANKED:
        worse, better = int((ahead > ROUNDING).sum()), int((ahead < -ROUNDING).sum())
        # Of the map and the others, the share of those that are certainly behind it or before it.
        if worse >= better:
            return max(worse / (count + 1), 0.5)
        return min(1 - better / (count + 1), 0.5)
    spread = float(ahead.std(ddof=1))
    if abs(ahead.mean()) <= ROUNDING:
        return 0.5
    if spread <= ROUNDING:
        return 1.0 if ahead.mean() > 0 else 0.0
    from scipy.special import stdtr  # takes a while, and few scores need it

    return float(stdtr(count - 1, ahead.mean() / (spread * math.sqrt(1 + 1 / count))))


def listed(names: Sequence[str], last: str = "and") -> str:
    """Return names as a list in a sentence."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {last} {names[-1]}"
