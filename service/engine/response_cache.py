"""Answers that are known or on their way, by what was asked.

    answer, how = await response_cache.get(key, work)

The same question asked while it is being answered waits for that answer; asked later it is
answered from memory, while it is among the latest. Generic: it knows neither torch nor HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from cachetools import LRUCache

Value = TypeVar("Value")
Report = TypeVar("Report")
How = Literal["made", "joined", "remembered"]


@dataclass(eq=False)
class _Flight(Generic[Value, Report]):
    task: asyncio.Task[Value]
    listeners: list[Callable[[Report], None]] = field(default_factory=list)
    waiting: int = 0


class ResponseCache(Generic[Value, Report]):
    """A bounded memory of answers, and those under way.

    Args:
        max_bytes: of all that is remembered; 0 remembers nothing.
        size: an answer's, in bytes; None keeps it out of memory.
    """

    def __init__(self, max_bytes: int, size: Callable[[Value], int | None]) -> None:
        self._size = size
        self._known: LRUCache[Hashable, Value] = LRUCache(max_bytes, getsizeof=self._weigh)
        self._max_bytes = max_bytes
        self._flights: dict[Hashable, _Flight[Value, Report]] = {}

    async def get(
        self,
        key: Hashable,
        work: Callable[[Callable[[Report], None]], Awaitable[Value]],
        listener: Callable[[Report], None] | None = None,
    ) -> tuple[Value, How]:
        """The answer to `key`: remembered, or what `work` makes of it, once for all who ask
        meanwhile. What the work reports goes to every listener. When the last who waits has gone,
        the work is cancelled.

        Raises:
            Exception: what the work raises, to all who wait for it; it is not remembered.
        """
        if key in self._known:
            return self._known[key], "remembered"
        flight = self._flights.get(key)
        how: How = "joined" if flight else "made"
        if not flight:
            flight = self._flights[key] = self._start(key, work)
        if listener:
            flight.listeners.append(listener)
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task), how
        finally:
            flight.waiting -= 1
            if listener:
                flight.listeners.remove(listener)
            if not flight.waiting and not flight.task.done():
                self._forget(key, flight)
                flight.task.cancel()

    def _start(
        self, key: Hashable, work: Callable[[Callable[[Report], None]], Awaitable[Value]]
    ) -> _Flight[Value, Report]:
        def report(value: Report) -> None:
            for listener in list(flight.listeners):
                listener(value)

        async def run() -> Value:
            return await work(report)

        def landed(task: asyncio.Task[Value]) -> None:
            self._forget(key, flight)
            if task.cancelled() or task.exception():
                return
            size = self._size(task.result())
            if size is not None and size <= self._max_bytes:
                self._known[key] = task.result()

        flight: _Flight[Value, Report] = _Flight(asyncio.create_task(run()))
        flight.task.add_done_callback(landed)
        return flight

    def _forget(self, key: Hashable, flight: _Flight[Value, Report]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    def _weigh(self, value: Value) -> int:
        return self._size(value) or 0
