"""A cache of answers that also shares computations in progress.

    answer, how = await response_cache.get(key, work)

A caller whose key is being computed waits for that computation. A later caller gets the cached
answer, while it is among the most recently used. The module is generic: it depends on neither torch
nor HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from cachetools import LRUCache

Value = TypeVar("Value")
Report = TypeVar("Report")
How = Literal["made", "joined", "remembered"]


@dataclass(eq=False)
class _Flight(Generic[Value, Report]):
    task: asyncio.Future[Value]
    listeners: list[Callable[[Report], None]] = field(default_factory=list)
    waiting: int = 0


class ResponseCache(Generic[Value, Report]):
    """A bounded cache of answers and of computations in progress.

    Args:
        max_bytes: largest total size of the cached answers; 0 disables the cache.
        size: returns the size of an answer in bytes, or infinity if it must not be cached.
    """

    def __init__(self, max_bytes: int, size: Callable[[Value], float]) -> None:
        self._known: LRUCache[Hashable, Value] = LRUCache(max_bytes, getsizeof=size)
        self._flights: dict[Hashable, _Flight[Value, Report]] = {}

    async def get(
        self,
        key: Hashable,
        work: Callable[[Callable[[Report], None]], Awaitable[Value]],
        listener: Callable[[Report], None] | None = None,
    ) -> tuple[Value, How]:
        """Return the answer for `key`, from the cache or from `work`, and how it was obtained.
        Concurrent callers with the same key share one run of `work`. Its reports go to every
        listener. If all callers are cancelled, the work is cancelled.

        Raises:
            Exception: the exception of `work`, in every caller that waits for it. It is not cached.
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
            del flight  # which refers to an exception that refers to this frame

    def _start(
        self, key: Hashable, work: Callable[[Callable[[Report], None]], Awaitable[Value]]
    ) -> _Flight[Value, Report]:
        def report(value: Report) -> None:
            for listener in list(flight.listeners):
                listener(value)

        def landed(task: asyncio.Future[Value]) -> None:
            self._forget(key, flight)
            if task.cancelled() or task.exception():
                return
            with suppress(ValueError):  # it is larger than the cache
                self._known[key] = task.result()

        flight: _Flight[Value, Report] = _Flight(asyncio.ensure_future(work(report)))
        flight.task.add_done_callback(landed)
        return flight

    def _forget(self, key: Hashable, flight: _Flight[Value, Report]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
