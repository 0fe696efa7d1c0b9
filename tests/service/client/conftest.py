"""The clock of the clients, for tests of how long they wait."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from service.client import _async, _sync, retries, tasks, threads


class Clock:
    """Stands still but for the pauses that the clients make, which take no other time."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self._begun = time.monotonic()  # `Tries` reads the real clock when it begins

    @property
    def now(self) -> float:
        return self._begun + sum(self.pauses)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        assert len(self.pauses) < 1000, "it never ends"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()

    async def sleep(seconds: float) -> None:
        found.sleep(seconds)

    clocked = SimpleNamespace(monotonic=lambda: found.now, sleep=found.sleep)
    for module in (retries, threads, _sync.job, _async.job):
        monkeypatch.setattr(module, "time", clocked)
    monkeypatch.setattr(tasks, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    return found
