"""Waiting for what comes about in another task, thread or process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
EVERY_SECONDS = 0.02


def until(condition: Callable[[], T], seconds: float = 30) -> T:
    """The first true value of a condition, which is asked again and again for so many seconds."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"it did not come about within {seconds} s: {value!r}"
        time.sleep(EVERY_SECONDS)
    return value


async def settled(turns: int = 20) -> None:
    """Let the other tasks of the loop go on, as far as they can without anything from outside."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def until_async(condition: Callable[[], T], seconds: float = 10) -> T:
    """As `until`, while the other tasks of the loop go on."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"it did not come about within {seconds} s: {value!r}"
        await asyncio.sleep(EVERY_SECONDS / 4)
    return value
