"""Which statistics of which classes have moved since the reference was made."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cam.drift.distances import (
    Numbers,
    effective,
    holm,
    independent,
    kolmogorov_probability,
    kolmogorov_smirnov,
    population_stability,
    quantiles,
)
from cam.drift.map_statistics import STATISTICS
from cam.drift.reference import NEWER, Reference
from cam.drift.shift import FLAT, LEAST, Comparison, Quartiles, Shift, TooFew
from cam.drift.window import Rows, Snapshot, distinct, evenly

ALPHA: Final = 1e-6
"""Greatest probability of a small p in one comparison where nothing has changed. The comparison is
repeated: a million requests a day fill 2,000 windows of 500 requests, which is 0.7 false alarms a
year, and comparing windows that overlap adds a few times as many. The second condition, `GREAT`,
makes them rarer still."""
GREAT: Final = 0.25
"""Least population stability index of a statistic that has moved."""
PER_MAP: Final = 20
"""Largest number of photos of a class in the reference that are compared with each live map of the
class, of all classes together. More tell next to nothing: 20 photos for each map make a distance
2.5 % more uncertain than any number does."""
TELLING: Final = STATISTICS.index("sharpness") + 1
"""Number of columns that tell which photos follow each other."""
QUARTILES: Final = np.array([0.25, 0.5, 0.75])


@dataclass(frozen=True, eq=False)
class _Series:
    """What is compared: the maps of a class, or of all classes."""

    index: int | None
    reference: Rows
    weights: Numbers
    live: Rows


def compare(reference: Reference, snapshot: Snapshot) -> Comparison:
    """Compare the maps in a window with those of the reference, for each class in the window and
    for all classes together.

    - A map of the same photo counts once, if it repeats: see `window.distinct`.
    - Of all classes together the reference is weighted to the live mix of classes, so that a
      change of the mix moves nothing: each photo of a class counts as often as the class has live
      maps for each of its photos. Live maps of classes that the reference lacks are left out. If
      few photos bear most of the weight, they count for few, and there may be too few of them.
    - Photos that follow each other, such as frames of a video or of several that take turns, count
      for fewer: see `distances.independent`. Those of a few scenes in no order do not.
    - A statistic has moved if two conditions hold: the probability of its D, corrected by Holm for
      all tests of this comparison, is below `ALPHA`, and its population stability index, less what
      chance gives it, is above `GREAT`. The first is about chance, the second about importance.
      If only the first holds, it has changed, and whether that matters is not known (`unsure`).

    The reference and the window must be of the same `Origin`, which is not checked here.
    """
    too_few: list[TooFew] = []
    compared: list[Shift] = []
    known, unknown = _known(reference, snapshot)
    classes = [_series_of(reference, index, rows) for index, rows in snapshot.by_class.items()]
    for series in [known, *classes]:
        counts = _counted(series.weights), len(series.live)
        if min(counts) < LEAST:
            too_few.append(TooFew(series.index, None, *counts))
            continue
        for test in _tests(series):
            if isinstance(test, Shift):
                compared.append(test)
            else:
                too_few.append(test)
    corrected = holm(np.array([shift.p for shift in compared]))
    shifts = [
        replace(
            shift,
            p=float(p),
            moved=bool(p < ALPHA and shift.psi > GREAT),
            unsure=bool(p < ALPHA and shift.psi <= GREAT),
        )
        for shift, p in zip(compared, corrected, strict=True)
    ]
    shifts.sort(key=lambda shift: -shift.psi)
    return Comparison(tuple(shifts), tuple(too_few), unknown)


def expected_worth(counts: NDArray[np.integer], live: int = 500) -> float:
    """Return how many photos a reference is worth on average in a comparison of all classes
    together with live maps of its own mix of classes: R ÷ (1 + C/R + C/n) for R photos of C classes
    and n live maps.

    It is `effective` of the weights k ÷ r of the r photos of each class with k live maps. A class
    whose share of the photos is only known from these r, as r ± √r, has n·r/R ± √(n·r/R) live maps
    if its share is right: the mean of Σ k²/r is n²/R² · (R + C) + n·C/R.

    Args:
        counts: the number of photos of each class, 1 or more: (C).
        live: the number n of live maps.
    """
    photos, classes = int(counts.sum()), len(counts)
    return photos / (1 + classes / photos + classes / live)


def needed_photos(classes: int, live: int = 500) -> int:
    """Return how many photos of so many classes have an `expected_worth` of `LEAST`."""
    half = LEAST * (1 + classes / live) / 2
    return math.ceil(half + math.sqrt(half**2 + LEAST * classes))


def _series_of(reference: Reference, index: int, live: Rows) -> _Series:
    """Return the series of one class."""
    rows = reference.rows[reference.classes == index]
    return _Series(index, rows, np.ones(len(rows)), live[distinct(live)])


def _known(reference: Reference, snapshot: Snapshot) -> tuple[_Series, float | None]:
    """Return the series of all classes that the reference has, whose reference has the live mix of
    classes; and the share of live maps that it leaves out, None of no maps."""
    kept = distinct(snapshot.latest)
    live, classes = snapshot.latest[kept], snapshot.classes[kept]
    known = np.isin(classes, reference.classes)
    indices, counts = np.unique(classes[known], return_counts=True)
    used = np.flatnonzero(np.isin(reference.classes, indices))
    # Where in `indices` the class of each photo is.
    places = np.searchsorted(indices, reference.classes[used])
    if counts.sum() >= LEAST:  # else nothing is compared, and all photos are told
        few = evenly(places, counts * PER_MAP)
        used, places = used[few], places[few]
    weights = (counts / np.bincount(places, minlength=len(indices)))[places]
    unknown = float(1 - known.mean()) if len(live) else None
    return _Series(None, reference.rows[used], weights, live[known]), unknown


def _counted(weights: Numbers) -> int:
    """Return the number of photos that weighted ones are worth."""
    return round(effective(weights)) if weights.size else 0


def _tests(series: _Series) -> Iterator[Shift | TooFew]:
    """Compare each statistic of a series; p is not yet corrected."""
    flat = [np.isnan(rows[:, 0]).astype(np.float64) for rows in (series.reference, series.live)]
    share = independent(_columns(series.live)) / len(series.live)
    yield _test(series.index, FLAT, flat[0], series.weights, flat[1], share)
    for number, name in enumerate(STATISTICS):
        before, after = series.reference[:, number], series.live[:, number]
        defined = ~np.isnan(before)
        weights = series.weights[defined]
        live = after[~np.isnan(after)].astype(np.float64)
        counts = _counted(weights), len(live)
        if min(counts) < LEAST:
            # A reference that is older than the statistic lacks it in every class.
            if series.index is None or defined.any() or name not in NEWER:
                yield TooFew(series.index, name, *counts)
        else:
            values = before[defined].astype(np.float64)
            yield _test(series.index, name, values, weights, live, share)


def _columns(rows: Rows) -> Numbers:
    """Return the columns that tell which photos follow each other, and one that says which maps are
    flat; what is missing is a column's mean, which correlates with nothing.

    They are those of the maps, and the sharpness. A change of the light moves a column of the photo
    so far that the rows before it and behind it would seem to be of two scenes, and nothing would
    be found until the window has forgotten the first.
    """
    values = rows[:, :TELLING].astype(np.float64)
    missing = np.isnan(values)
    counts = np.maximum((~missing).sum(axis=0), 1)
    means = np.where(missing, 0, values).sum(axis=0) / counts
    return np.column_stack([np.where(missing, means, values), missing[:, 0]])


def _test(
    index: int | None,
    name: str,
    reference: Numbers,
    weights: Numbers,
    live: Numbers,
    share: float,
) -> Shift:
    """Compare one statistic.

    Args:
        share: how many independent photos each live one is worth.
    """
    count, live_count = effective(weights), max(share * len(live), 1.0)
    distance = kolmogorov_smirnov(reference, weights, live)
    return Shift(
        index,
        name,
        psi=population_stability(reference, weights, live, live_count),
        distance=distance,
        p=kolmogorov_probability(distance, count, live_count),
        before=_quartiles(name, reference, weights),
        after=_quartiles(name, live, np.ones(len(live))),
        reference=len(reference),
        live=len(live),
        moved=False,
    )


def _quartiles(name: str, values: Numbers, weights: Numbers) -> Quartiles:
    if name == FLAT:
        share = float(weights @ values / weights.sum())
        return share, share, share
    low, middle, high = quantiles(values, weights, QUARTILES).tolist()
    return low, middle, high
