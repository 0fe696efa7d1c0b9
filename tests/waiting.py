"""Waiting for what comes about in another task, thread or process, and for what does not.

What fails says which condition it was, in the words of the test."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
EVERY_SECONDS = 0.02


def until(condition: Callable[[], T], seconds: float = 30) -> T:
    """The first true value of a condition, which is asked again and again for so many seconds."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, _never(condition, seconds, value)
        time.sleep(EVERY_SECONDS)
    return value


async def until_async(condition: Callable[[], T], seconds: float = 10) -> T:
    """As `until`, while the other tasks of the loop go on."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, _never(condition, seconds, value)
        await asyncio.sleep(EVERY_SECONDS / 4)
    return value


def stays(condition: Callable[[], object], seconds: float) -> None:
    """A condition is true for so many seconds, whenever it is asked, and when they are over."""
    end = time.monotonic() + seconds
    while True:
        over = time.monotonic() >= end
        assert (value := condition()), _ended(condition, seconds, value)
        if over:
            return
        time.sleep(EVERY_SECONDS)


async def stays_async(condition: Callable[[], object], seconds: float) -> None:
    """As `stays`, while the other tasks of the loop go on."""
    end = time.monotonic() + seconds
    while True:
        over = time.monotonic() >= end
        assert (value := condition()), _ended(condition, seconds, value)
        if over:
            return
        await asyncio.sleep(EVERY_SECONDS / 4)


async def settled(turns: int = 20) -> None:
    """Let the other tasks of the loop go on, as far as they can without anything from outside."""
    for _ in range(turns):
        await asyncio.sleep(0)


def at_rest(value: Callable[[], T], unchanged_seconds: float, seconds: float = 60) -> T:
    """A value that has not changed for so many seconds, which comes about within `seconds`."""
    last, since = value(), time.monotonic()

    def rests() -> bool:
        nonlocal last, since
        if (now := value()) != last:
            last, since = now, time.monotonic()
        return time.monotonic() - since >= unchanged_seconds

    until(rests, seconds)
    return last


def hang() -> None:
    """Stay here until somebody ends the process, which a test that failed does not."""
    time.sleep(600)


def _never(condition: Callable[[], object], seconds: float, value: object) -> str:
    return f"it did not come about within {seconds} s: {_said(condition)}; it is {value!r}"


def _ended(condition: Callable[[], object], seconds: float, value: object) -> str:
    return f"it did not stay so for {seconds} s: {_said(condition)}; it is {value!r}"


def _said(condition: Callable[[], object]) -> str:
    name = getattr(condition, "__qualname__", repr(condition))
    try:
        return " ".join(inspect.getsource(condition).split()) if "<lambda>" in name else name
    except OSError:  # it comes from no file
        return name
