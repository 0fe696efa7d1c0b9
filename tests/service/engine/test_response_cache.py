"""Answers made once: while they are made, and after."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import pytest

from service.engine.response_cache import ResponseCache
from tests.waiting import settled

pytestmark = pytest.mark.anyio


class Work:
    """Work that waits to be let go, and counts how often it began and was cancelled."""

    def __init__(self) -> None:
        self.begun = self.cancelled = 0
        self.go = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self, report: Callable[[int], None]) -> bytes:
        self.begun += 1
        try:
            report(1)
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        report(2)
        if self.error:
            raise self.error
        return b"answer"


def response_cache(max_bytes: int = 100) -> ResponseCache[bytes, int]:
    return ResponseCache(max_bytes, len)


async def test_asked_thrice_at_once_and_once_later_it_is_made_once() -> None:
    known, work = response_cache(), Work()
    heard: list[int] = []
    asking = [asyncio.create_task(known.get("a", work, heard.append)) for _ in range(3)]
    await settled()
    work.go.set()
    found = await asyncio.gather(*asking)
    assert [value for value, _ in found] == [b"answer"] * 3
    assert [how for _, how in found] == ["made", "joined", "joined"]
    assert await known.get("a", work) == (b"answer", "remembered")
    assert work.begun == 1
    assert heard.count(2) == 3


async def test_other_questions_are_other_answers() -> None:
    known, work = response_cache(), Work()
    work.go.set()
    assert (await known.get("a", work))[1] == "made"
    assert (await known.get("b", work))[1] == "made"
    assert work.begun == 2


async def test_one_who_leaves_does_not_take_it_from_the_others() -> None:
    known, work = response_cache(), Work()
    first, second = (asyncio.create_task(known.get("a", work)) for _ in range(2))
    await settled()
    first.cancel()
    await settled()
    assert not work.cancelled
    work.go.set()
    assert await second == (b"answer", "joined")


async def test_when_the_last_has_left_the_work_ends_and_begins_anew_for_the_next() -> None:
    known, work = response_cache(), Work()
    asking = [asyncio.create_task(known.get("a", work)) for _ in range(2)]
    await settled()
    for task in asking:
        task.cancel()
    await settled()
    assert work.cancelled == 1
    work.go.set()
    assert await known.get("a", work) == (b"answer", "made")
    assert work.begun == 2


async def test_an_error_is_everybodys_and_not_remembered() -> None:
    known, work = response_cache(), Work()
    work.error = ValueError("no")
    work.go.set()
    asking = [asyncio.create_task(known.get("a", work)) for _ in range(2)]
    results = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(result) for result in results] == [ValueError] * 2
    work.error = None
    assert await known.get("a", work) == (b"answer", "made")


@pytest.mark.parametrize(("max_bytes", "expected"), [(0, "made"), (5, "made"), (6, "remembered")])
async def test_what_does_not_fit_is_not_remembered(max_bytes: int, expected: str) -> None:
    known, work = response_cache(max_bytes), Work()
    work.go.set()
    await known.get("a", work)
    assert (await known.get("a", work))[1] == expected


async def test_the_longest_unasked_is_forgotten_first() -> None:
    known, work = response_cache(12), Work()
    work.go.set()
    for key in ("a", "b", "a", "c"):
        await known.get(key, work)
    assert [(await known.get(key, work))[1] for key in ("a", "b")] == ["remembered", "made"]


async def test_what_is_not_small_is_kept_out() -> None:
    known: ResponseCache[bytes, int] = ResponseCache(100, lambda value: math.inf)
    work = Work()
    work.go.set()
    await known.get("a", work)
    assert (await known.get("a", work))[1] == "made"
