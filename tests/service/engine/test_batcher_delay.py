"""The order of items when they wait too long, on a clock that only batches move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from service.core.pool import Priority
from service.engine import batcher as module
from service.engine.batcher import COURTESY_SECONDS, Batcher
from tests.waiting import until_async

pytestmark = pytest.mark.anyio

LATER = 100
"""From this number on items are of background priority."""


class Line:
    """A worker whose batches, of one item, take a given time on the clock."""

    def __init__(self, seconds: float) -> None:
        self.now = 1000.0
        self._seconds = seconds
        self.order: list[int] = []
        self.meanwhile: dict[int, Callable[[], object]] = {}
        """Item → what happens while it is processed."""
        self._loop = asyncio.get_running_loop()

    def __call__(self, items: list[int]) -> list[int | Exception]:
        self.order += items
        self.now += self._seconds
        for each in items:
            if each in self.meanwhile:
                self._loop.call_soon_threadsafe(self.meanwhile[each])
        return list(items)

    async def process(
        self, items: list[int], priority: Callable[[int], Priority], patience: float = 0.0
    ) -> None:
        """Process items that come at the same time, and one more for each of `meanwhile`."""
        count = len(items) + len(self.meanwhile)
        async with Batcher(
            self, max_batch=1, max_queue=99, priority=priority, patience=patience
        ) as batcher:
            self.batcher = batcher
            for item in items:
                batcher.submit(item)
            await until_async(lambda: len(self.order) >= count)  # a closed batcher takes none


@pytest.fixture
async def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    line = Line(1.0)
    monkeypatch.setattr(module, "perf_counter", lambda: line.now)
    return line


async def test_where_all_wait_too_long_the_newest_are_taken_first(line: Line) -> None:
    """After the second item all have waited for more than two batches, for one batch's time."""
    await line.process(list(range(20)), lambda item: "interactive")
    assert line.order == [0, 1, *range(19, 1, -1)]


async def test_items_keep_their_order_as_long_as_they_may_wait(line: Line) -> None:
    await line.process(list(range(20)), lambda item: "interactive", patience=20)
    assert line.order == list(range(20))


async def test_as_soon_as_one_has_not_waited_long_the_oldest_has_its_turn(line: Line) -> None:
    line.meanwhile[19] = lambda: line.batcher.submit(50)
    await line.process(list(range(20)), lambda item: "interactive")
    assert line.order[:5] == [0, 1, 19, 50, 2]


async def test_a_short_queue_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each comes when the one before the last is done, and so waits for one batch."""
    line = Line(COURTESY_SECONDS)  # what a batcher takes an item to need at first
    monkeypatch.setattr(module, "perf_counter", lambda: line.now)
    for item in range(8, 20):
        line.meanwhile[item] = lambda item=item: line.batcher.submit(item + 2)  # type: ignore[misc]
    await line.process([8, 9], lambda item: "interactive")
    assert line.order == list(range(8, 22))


async def test_background_items_get_a_batch_in_a_second_though_others_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = Line(0.4)
    monkeypatch.setattr(module, "perf_counter", lambda: line.now)
    items = [*range(12), LATER, LATER + 1, LATER + 2]
    await line.process(items, lambda item: "background" if item >= LATER else "interactive")
    assert [turn for turn, item in enumerate(line.order) if item >= LATER] == [3, 6, 9]
    assert sorted(line.order) == items
