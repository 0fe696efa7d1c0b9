"""The items that a runner is processing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from service.core.errors import Problem
from service.jobs.records import Kind, Leased

AT_ONCE: Final = 32
"""Largest number of items of each model at once: enough for full batches while other items are
decoded and drawn. The limit is per model, so that no model waits for a slow one."""

MEASURED_AT_ONCE: Final = 4
"""Largest number of photos of audits at once, of all models. Each takes thousands of passes, and a
photo that is not finished starts anew after a restart."""


@dataclass
class Item:
    model: str
    kind: Kind
    task: asyncio.Task[bytes | Problem] | None = None
    """The task that computes the answer, once it is started."""


class InFlight:
    def __init__(self) -> None:
        self._items: dict[tuple[str, int], Item] = {}
        self._none = asyncio.Event()
        self._none.set()

    def begin(self, item: Leased) -> None:
        self._items[item.job, item.number] = Item(item.model, item.kind)
        self._none.clear()

    def answer(self, item: Leased, task: asyncio.Task[bytes | Problem]) -> None:
        """Set the task that computes an item's answer. `cancel` cancels this task."""
        self._items[item.job, item.number].task = task

    def end(self, item: Leased) -> None:
        del self._items[item.job, item.number]
        if not self._items:
            self._none.set()

    def clear(self) -> None:
        self._items.clear()
        self._none.set()

    def has(self, item: Leased) -> bool:
        return (item.job, item.number) in self._items

    def room(self, model: str) -> int:
        """Return how many more images of a model may be explained at once. Photos of audits do not
        count, so that a long audit leaves other jobs their room."""
        explained = [each for each in self._items.values() if each.kind == "explain"]
        return AT_ONCE - sum(each.model == model for each in explained)

    @property
    def room_for_audits(self) -> int:
        """How many more photos of audits may be measured at once."""
        return MEASURED_AT_ONCE - sum(each.kind == "audit" for each in self._items.values())

    def held(self) -> list[tuple[str, int]]:
        """Return the job and the number of each item."""
        return list(self._items)

    def cancel(self, job: str) -> None:
        """Cancel the tasks of a job's items."""
        for (of, _), each in self._items.items():
            if of == job and each.task is not None:
                each.task.cancel()

    async def until_none(self) -> None:
        await self._none.wait()
