"""The items that a runner works on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from service.core.errors import Problem
from service.jobs.records import Leased

AT_ONCE: Final = 32
"""Of each model: enough for full batches while others are decoded and drawn. Each has its own, so
that none waits for another that is slow."""


@dataclass
class Item:
    model: str
    task: asyncio.Task[bytes | Problem] | None = None
    """What answers it, as soon as something does."""


class InFlight:
    def __init__(self) -> None:
        self._items: dict[tuple[str, int], Item] = {}
        self._none = asyncio.Event()
        self._none.set()

    def begin(self, item: Leased) -> None:
        self._items[item.job, item.number] = Item(item.model)
        self._none.clear()

    def answer(self, item: Leased, task: asyncio.Task[bytes | Problem]) -> None:
        """It is this task that does it, which `cancel` withdraws."""
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
        """How many more of a model there may be."""
        return AT_ONCE - sum(each.model == model for each in self._items.values())

    def held(self) -> list[tuple[str, int]]:
        """Jobs and numbers."""
        return list(self._items)

    def cancel(self, job: str) -> None:
        """Withdraw what is at work of a job."""
        for (of, _), each in self._items.items():
            if of == job and each.task is not None:
                each.task.cancel()

    async def until_none(self) -> None:
        await self._none.wait()
