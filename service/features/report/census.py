"""Counting a manifest's images, maps, classes and failures, and finding its extreme maps."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from service.features.tables.rows import Row

BINS: Final = 20
"""Number of bins in the histogram of probabilities."""
EXTREMES: Final = 12
"""Largest number of maps in each list of extreme maps."""
CONFUSIONS: Final = 30
"""Largest number of confused pairs of classes that are listed."""
LISTED: Final = 200
"""Largest number of failures of one kind that are listed; the others are only counted."""


@dataclass(frozen=True, slots=True)
class ClassKey:
    """The class that a map explains. A label alone does not identify it: two classes may be called
    crane."""

    index: int | None
    label: str | None

    @property
    def name(self) -> str:
        if self.label:
            return self.label
        return "no class" if self.index is None else f"class {self.index}"


class GridSize(NamedTuple):
    height: int
    width: int


@dataclass(slots=True)
class Mean:
    """A mean of numbers; missing and non-finite ones are ignored."""

    count: int = 0
    total: float = 0.0

    def add(self, value: float | None) -> None:
        if value is not None and math.isfinite(value):
            self.count += 1
            self.total += value

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count else None


@dataclass(slots=True)
class ClassCount:
    key: ClassKey
    maps: int = 0
    images: int = 0
    """Number of images that have maps of the class. An image's maps come one after the other."""
    latest: str | None = None
    """Id of the image of the latest map."""
    probability: Mean = field(default_factory=Mean)
    concentration: Mean = field(default_factory=Mean)
    grids: Counter[GridSize] = field(default_factory=Counter)

    @property
    def grid(self) -> GridSize | None:
        """The most frequent grid of the class's maps, and the finest of equally frequent ones; None
        if no map has a grid."""
        return max(self.grids, key=lambda grid: (self.grids[grid], grid), default=None)


@dataclass(slots=True)
class FailureKind:
    problem: str | None
    count: int = 0
    first: list[tuple[str, str]] = field(default_factory=list)
    """Ids and error messages of the first failures, at most LISTED."""

    @property
    def name(self) -> str:
        """The last part of the problem's URN, in words."""
        words = (self.problem or "").rpartition(":")[2].replace("-", " ").strip()
        return words[:1].upper() + words[1:] if words else "Of no kind"


@dataclass
class Census:
    """The counts of a manifest. Row numbers count from 0 in the manifest's order."""

    images: int = 0
    maps: int = 0
    failures: int = 0
    warnings: int = 0
    methods: Counter[str] = field(default_factory=Counter)
    layers: Counter[str] = field(default_factory=Counter)
    histogram: list[int] = field(default_factory=lambda: [0] * BINS)
    """Histogram of all maps' probabilities, with equal bins in 0 … 1."""
    classes: list[ClassCount] = field(default_factory=list)
    """Classes, those with the most maps first."""
    kinds: list[FailureKind] = field(default_factory=list)
    """Kinds of failure, the most frequent first."""
    least: list[int] = field(default_factory=list)
    """Row numbers of the maps with the lowest concentration, the lowest first."""
    most: list[int] = field(default_factory=list)
    """Row numbers of the maps with the highest concentration, the highest first."""
    named: int = 0
    """Number of maps whose target names a class, so that the prediction is right or wrong."""
    correct: int = 0
    confusions: list[tuple[ClassKey, ClassKey, int]] = field(default_factory=list)
    """Named class, predicted class and number of maps; the most frequent pairs first, at most
    CONFUSIONS."""
    confusion_kinds: int = 0
    """Number of all confused pairs of classes."""
    beside: list[int] = field(default_factory=list)
    """Row numbers of maps with wrong predictions, the one with the most heat at the border
    first."""
    scores: dict[str, dict[str, Mean]] = field(default_factory=dict)
    """Method → metric → mean score of the method's maps; empty if the batch has no scores."""
    disputed: list[int] = field(default_factory=list)
    """Row numbers of the maps that agree least with those of the other methods, at most one for
    each image, the lowest agreement first."""


def class_of(row: Row) -> ClassKey:
    return ClassKey(row.target_index, row.target)


def predicted_class_of(row: Row) -> ClassKey:
    return ClassKey(row.predicted_index, row.predicted_label)


def take_census(rows: Iterable[Row]) -> Census:
    """Count the rows of a manifest. Memory grows with the classes, not with the rows."""
    census = Census()
    classes: dict[ClassKey, ClassCount] = {}
    kinds: dict[str | None, FailureKind] = {}
    # Heaps of (goodness, −row number). The first entry is the worst one, which a better one
    # replaces.
    least: list[tuple[float, int]] = []
    most: list[tuple[float, int]] = []
    beside: list[tuple[float, int]] = []
    disputed: list[tuple[float, int]] = []
    apart: tuple[float, int] | None = None
    confused: Counter[tuple[ClassKey, ClassKey]] = Counter()
    for number, row in enumerate(rows):
        # Each image has exactly one row with the number 0, so ids need not be stored.
        census.images += row.number == 0
        if row.error is not None:
            _count_failure(census, kinds, row)
            continue
        census.maps += 1
        census.warnings += row.warning is not None
        _count_map(census, classes, row)
        if row.concentration is not None and math.isfinite(row.concentration):
            _offer(least, -row.concentration, number)
            _offer(most, row.concentration, number)
        if row.number == 0 and apart:  # a new image begins, so the previous one is complete
            _offer(disputed, *apart)
            apart = None
        if row.agreement_mean is not None and math.isfinite(row.agreement_mean):
            apart = max(apart or (-math.inf, 0), (-row.agreement_mean, number))
        for metric, value in row.scores or ():
            means = census.scores.setdefault(row.method or "", {})
            means.setdefault(metric, Mean()).add(value)
        if row.correct is not None:
            census.named += 1
            census.correct += row.correct
        if row.correct is False:
            confused[class_of(row), predicted_class_of(row)] += 1
            if row.border is not None and math.isfinite(row.border):
                _offer(beside, row.border, number)
    if apart:
        _offer(disputed, *apart)
    census.classes = sorted(classes.values(), key=lambda class_: (-class_.maps, class_.key.name))
    census.kinds = sorted(kinds.values(), key=lambda kind: (-kind.count, kind.name))
    for kind in census.kinds:
        kind.first.sort()
    pairs = sorted(confused.items(), key=lambda pair: (-pair[1], pair[0][0].name, pair[0][1].name))
    census.confusions = [(*pair, count) for pair, count in pairs[:CONFUSIONS]]
    census.confusion_kinds = len(pairs)
    census.beside = [-number for _, number in sorted(beside, reverse=True)]
    census.disputed = [-number for _, number in sorted(disputed, reverse=True)]
    # If there are few maps, no map is in both lists.
    half = census.maps // 2
    census.least = [-number for _, number in sorted(least, reverse=True)][:half]
    census.most = [-number for _, number in sorted(most, reverse=True)][:half]
    return census


def _count_failure(census: Census, kinds: dict[str | None, FailureKind], row: Row) -> None:
    census.failures += 1
    kind = kinds.setdefault(row.problem, FailureKind(row.problem))
    kind.count += 1
    if len(kind.first) < LISTED:
        kind.first.append((row.id, row.error or ""))


def _count_map(census: Census, classes: dict[ClassKey, ClassCount], row: Row) -> None:
    if row.method is not None:
        census.methods[row.method] += 1
    if row.layer is not None:
        census.layers[row.layer] += 1
    key = class_of(row)
    counted = classes.get(key)
    if counted is None:
        counted = classes[key] = ClassCount(key)
    counted.maps += 1
    counted.images += row.id != counted.latest
    counted.latest = row.id
    counted.probability.add(row.target_probability)
    counted.concentration.add(row.concentration)
    if row.map_height and row.map_width:
        counted.grids[GridSize(row.map_height, row.map_width)] += 1
    if row.target_probability is not None and 0 <= row.target_probability <= 1:
        census.histogram[min(int(row.target_probability * BINS), BINS - 1)] += 1


def _offer(heap: list[tuple[float, int]], goodness: float, number: int) -> None:
    push = heapq.heappush if len(heap) < EXTREMES else heapq.heappushpop
    push(heap, (goodness, -number))


def quotas(counts: Mapping[ClassKey, int], most: int) -> dict[ClassKey, int]:
    """Return how many maps of each class to show. All classes have the same share; what a small
    class does not use goes to the larger ones.

    Args:
        counts: number of maps of each class.
        most: number of maps to show in total. If there are more classes than that, only the
            largest ones get a map.

    Returns:
        Class → number of maps, at most its count. The sum is `most`, or the number of all maps if
        that is smaller.
    """
    left = max(most, 0)
    shown = {}
    ascending = sorted(counts, key=lambda key: counts[key])
    for done, key in enumerate(ascending):
        shown[key] = min(counts[key], left // (len(ascending) - done))
        left -= shown[key]
    return shown


class Sample:
    """Selects `quotas` of the maps that pass one by one, evenly spaced within each class."""

    def __init__(self, counts: Mapping[ClassKey, int], most: int) -> None:
        self._counts = counts
        self._quotas = quotas(counts, most)
        self._passed: Counter[ClassKey] = Counter()

    @property
    def size(self) -> int:
        return sum(self._quotas.values())

    def takes(self, key: ClassKey) -> bool:
        """Return whether the next map of this class is shown."""
        rank, count, quota = self._passed[key], self._counts[key], self._quotas[key]
        self._passed[key] += 1
        # A map is taken where the line from (0, ½) to (count, quota + ½) passes an integer. This
        # happens `quota` times, each time in the middle of an equal stretch.
        half = count // 2
        return ((rank + 1) * quota + half) // count > (rank * quota + half) // count
