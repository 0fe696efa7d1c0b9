"""The window: what it keeps, in which order, and that it does not grow."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from cam.drift.map_statistics import STATISTICS, MapStatistics
from cam.drift.window import NO_CLASS, Window, evenly


def numbered(number: float) -> MapStatistics:
    return MapStatistics(number, 0, 0, 0, 0, 0, 0, None)


def test_it_keeps_the_latest_in_their_order() -> None:
    window = Window(size=3, classes=2)
    for number in range(8):  # the ring holds six: 2 … 7
        window.record(number % 2, numbered(number))
    found = window.snapshot()
    assert found.latest[:, 0].tolist() == [5, 6, 7]
    assert found.classes.tolist() == [1, 0, 1]
    assert {index: rows[:, 0].tolist() for index, rows in found.by_class.items()} == {
        0: [2, 4, 6],
        1: [3, 5, 7],
    }
    assert window.recorded == 8


def test_a_class_has_at_most_size_rows() -> None:
    window = Window(size=3, classes=2)
    for number in range(5):
        window.record(9, numbered(number))
    assert window.snapshot().by_class[9][:, 0].tolist() == [2, 3, 4]


def test_the_most_frequent_classes_come_first_and_the_rare_ones_not_at_all() -> None:
    window = Window(size=10, classes=2)
    for index in [5, 7, 7, 3, 3, 3]:
        window.record(index, numbered(0))
    assert list(window.snapshot().by_class) == [3, 7]


def test_a_class_that_is_asked_for_no_longer_makes_room() -> None:
    window = Window(size=4, classes=1)
    for index in [1, 1, 1, 1, 2, 2, 2, 2]:
        window.record(index, numbered(index))
    assert list(window.snapshot().by_class) == [2]


def test_targets_without_class_and_maps_without_statistics() -> None:
    window = Window()
    window.record(None, numbered(0.5))
    window.record(4, None)
    found = window.snapshot()
    assert found.classes.tolist() == [NO_CLASS, 4]
    assert np.isnan(found.latest[0]).tolist() == [False] * 7 + [True] * (len(STATISTICS) - 7)
    assert np.isnan(found.latest[1]).all()
    assert list(found.by_class) == [4]


def test_an_empty_window() -> None:
    found = Window().snapshot()
    assert found.latest.shape == (0, len(STATISTICS))
    assert found.classes.shape == (0,)
    assert not found.by_class


def test_a_snapshot_is_a_copy() -> None:
    window = Window(size=2, classes=1)
    window.record(0, numbered(1))
    window.record(0, numbered(2))
    found = window.snapshot()
    window.record(0, numbered(3))
    assert found.latest[:, 0].tolist() == [1, 2]
    assert found.by_class[0][:, 0].tolist() == [1, 2]


def traced() -> int:
    """The bytes that the window's own code has allocated; other threads allocate, too."""
    own = tracemalloc.Filter(True, "*/cam/drift/*")
    return sum(each.size for each in tracemalloc.take_snapshot().filter_traces([own]).traces)


def test_memory_does_not_grow_with_classes_or_requests() -> None:
    window, statistics = Window(size=50, classes=4), numbered(0.5)
    tracemalloc.start()
    try:
        for number in range(6000):  # Python keeps some thousand freed tuples to use them again
            window.record(number % 1000, statistics)
        before = traced()
        for number in range(5000):
            window.record(number % 1000, statistics)
        grown = traced() - before
    finally:
        tracemalloc.stop()
    assert grown < 50_000  # 5,000 rows would be 180,000 bytes
    found = window.snapshot()
    assert len(found.latest) == 50
    assert len(found.by_class) == 4


@pytest.mark.parametrize(("size", "classes"), [(0, 1), (1, 0)])
def test_sizes_are_checked(size: int, classes: int) -> None:
    with pytest.raises(ValueError, match="must be 1 or more"):
        Window(size, classes)


def test_evenly_spaced_members_by_hand() -> None:
    groups = np.array([1, 0, 1, 1, 0, 1, 1, 1, 2])
    # Of group 1, at 0, 2, 3, 5, 6 and 7, every other one; of group 0 the first; of 2 all there are.
    assert evenly(groups, np.array([1, 3, 9])).tolist() == [0, 1, 3, 6, 8]
    for count in range(1, 40):
        for most in range(1, 40):
            found = evenly(np.zeros(count, int), np.array([most]))
            assert len(found) == min(count, most)
            assert np.ptp(np.diff(found)) <= 1 if len(found) > 1 else found.tolist() == [0]
