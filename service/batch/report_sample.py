"""Sampling of the maps that the report shows: the same share for each class, evenly spaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from service.batch.report_census import ClassKey


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
