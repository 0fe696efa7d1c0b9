"""Which of too many maps are shown: evenly of each class, evenly spaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from service.batch.report_census import ClassKey


def quotas(counts: Mapping[ClassKey, int], most: int) -> dict[ClassKey, int]:
    """How many of each class to show: all have the same share, and what a small class leaves of
    its own goes to the larger ones.

    Args:
        counts: how many there are.
        most: how many to show in all. With more classes than that, only the largest have one.

    Returns:
        At most as many as there are; together `most`, or all.
    """
    left = max(most, 0)
    shown = {}
    ascending = sorted(counts, key=lambda key: counts[key])
    for done, key in enumerate(ascending):
        shown[key] = min(counts[key], left // (len(ascending) - done))
        left -= shown[key]
    return shown


class Sample:
    """Takes `quotas` of what passes, evenly spaced within each class, without looking ahead."""

    def __init__(self, counts: Mapping[ClassKey, int], most: int) -> None:
        self._counts = counts
        self._quotas = quotas(counts, most)
        self._passed: Counter[ClassKey] = Counter()

    @property
    def size(self) -> int:
        return sum(self._quotas.values())

    def takes(self, key: ClassKey) -> bool:
        """Whether the next one of this class is shown."""
        rank, count, quota = self._passed[key], self._counts[key], self._quotas[key]
        self._passed[key] += 1
        # A step of a line from (0, ½) to (count, quota + ½): `quota` of them, each in the middle of
        # its stretch.
        half = count // 2
        return ((rank + 1) * quota + half) // count > (rank * quota + half) // count
