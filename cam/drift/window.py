"""The statistics of the latest maps that a model has served, in memory that does not grow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cam.drift.map_statistics import STATISTICS, MapStatistics, row_of

Rows = NDArray[np.float32]
"""Statistics of maps: float32 (n, s), in the order of `STATISTICS`; NaN where there is none."""
Classes = NDArray[np.int32]
"""Explained classes: int32 (n)."""
NO_CLASS: Final = -1
"""Stands for the class of a target that is not a class."""
DIGITS: Final = 3
"""Maps whose statistics are equal to this number of decimals are maps of the same photo."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A copy of a window. Rows are in the order in which they were recorded."""

    latest: Rows
    """The latest maps of all classes."""
    classes: Classes
    """Their classes, `NO_CLASS` for none."""
    by_class: Mapping[int, Rows]
    """The latest maps of each of the most frequent classes, the most frequent one first."""


class Window:
    """The statistics of the last `size` · `classes` maps.

    One ring of all maps takes the place of a ring for each class: which classes are the most
    frequent ones needs no bookkeeping, classes that are no longer asked for make room, and the
    memory is fixed, 76 bytes for each map. A class with 1 of `classes` parts of the traffic or more
    has about `size` values; a rarer one has fewer, of the same period.

    It is for one model, method and layer. One thread may use it at a time; a snapshot is a copy.
    """

    def __init__(self, size: int = 500, classes: int = 20) -> None:
        """Reserve the memory.

        Args:
            size: the largest number of maps of one series, 1 or more.
            classes: the largest number of classes that have a series, 1 or more.
        """
        if size < 1 or classes < 1:
            raise ValueError(f"size is {size} and classes is {classes}; each must be 1 or more")
        self.size = size
        self.classes = classes
        self.recorded = 0
        """Number of maps recorded so far."""
        self._rows = np.zeros((size * classes, len(STATISTICS)), np.float32)
        self._classes = np.zeros(size * classes, np.int32)

    def record(self, index: int | None, statistics: MapStatistics | None) -> None:
        """Add a map, in constant time.

        Args:
            index: the explained class; None for a target that is not a class.
            statistics: None for a map that has none, because it is constant. Such maps are counted:
                a model that is broken may make no other ones.
        """
        place = self.recorded % len(self._rows)
        self._rows[place] = row_of(statistics)
        self._classes[place] = NO_CLASS if index is None else index
        self.recorded += 1

    def snapshot(self) -> Snapshot:
        """Return a copy of what the window holds."""
        filled = min(self.recorded, len(self._rows))
        order = np.arange(self.recorded - filled, self.recorded) % len(self._rows)
        rows, classes = self._rows[order], self._classes[order]
        indices, counts = np.unique(classes[classes != NO_CLASS], return_counts=True)
        frequent = indices[np.argsort(-counts, kind="stable")[: self.classes]]
        return Snapshot(
            latest=rows[-self.size :].copy(),
            classes=classes[-self.size :].copy(),
            by_class={int(class_): rows[classes == class_][-self.size :] for class_ in frequent},
        )


def evenly(groups: NDArray[np.integer], most: NDArray[np.integer]) -> NDArray[np.intp]:
    """Return the numbers of evenly spaced members of each group, in their order.

    Args:
        groups: the group of each member, 0 … g − 1.
        most: the largest number of members of each group to keep, 1 or more: (g).
    """
    order = np.argsort(groups, kind="stable")
    counts = np.bincount(groups, minlength=len(most))
    group = groups[order]
    place = np.arange(len(groups)) - (np.cumsum(counts) - counts)[group]
    kept = np.minimum(counts, most)[group]
    # A member is kept where place · kept ÷ count reaches the next whole number.
    chosen = place * kept % counts[group] < kept
    return np.sort(order[chosen])


def distinct(rows: Rows) -> NDArray[np.intp]:
    """Return the numbers of the rows of different photos, in their order: of equal rows the last.

    Maps without statistics are all equal and are kept, for nothing tells their photos apart.
    """
    flat = np.isnan(rows[:, 0])
    # A confidence may be missing; NaN equals nothing, not even itself.
    rounded = np.nan_to_num(rows.astype(np.float64), nan=-1).round(DIGITS)
    _, last = np.unique(rounded[::-1], axis=0, return_index=True)
    chosen = np.zeros(len(rows), bool)
    chosen[len(rows) - 1 - last] = True
    return np.flatnonzero(chosen | flat)
