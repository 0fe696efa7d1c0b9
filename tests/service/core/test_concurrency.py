"""Many items, some at a time: nothing but coroutines."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from service.core.concurrency import explain_many
from service.core.errors import InternalError, Problem, UndecodableImage
from tests.waiting import settled

pytestmark = pytest.mark.anyio
Results = AsyncIterator[tuple[int, int | Problem]]


class Work:
    """Squares numbers, each when it is let go."""

    def __init__(self, *, free: bool = False) -> None:
        self.begun: list[int] = []
        self.withdrawn: list[int] = []
        self.now: set[int] = set()
        self.most = 0
        self.free = free
        self.go: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)

    async def __call__(self, item: int) -> int:
        self.begun.append(item)
        self.now.add(item)
        self.most = max(self.most, len(self.now))
        try:
            if not self.free:
                await self.go[item].wait()
        except asyncio.CancelledError:
            await settled()  # who withdraws it waits for this
            self.withdrawn.append(item)
            raise
        finally:
            self.now.discard(item)
        return item**2


class Source:
    """Whole numbers without end; tells how many were taken."""

    def __init__(self) -> None:
        self.taken = 0

    def __iter__(self) -> Iterator[int]:
        for item in itertools.count():
            self.taken += 1
            yield item


@pytest.fixture
async def complaints() -> AsyncIterator[list[str]]:
    """What the loop says of tasks whose exceptions nobody has looked at; and no task is left."""
    loop = asyncio.get_running_loop()
    said: list[str] = []
    former = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: said.append(context["message"]))
    gc.freeze()  # only what the test has made is collected
    try:
        yield said
        await settled()
        gc.collect()
        # Those of pytest's plugin come from elsewhere.
        assert [task for task in asyncio.all_tasks() if "concurrency.py" in repr(task)] == []
        assert said == []
    finally:
        loop.set_exception_handler(former)


async def test_each_item_has_its_result_and_no_more_are_under_way_than_may() -> None:
    work = Work(free=True)
    async with explain_many(range(50), work, at_once=7) as results:
        found = {item: result async for item, result in results}
    assert found == {item: item**2 for item in range(50)}
    assert work.begun == list(range(50))
    assert work.most <= 7


async def test_all_the_room_there_is_is_used() -> None:
    work = Work()
    async with explain_many(range(9), work, at_once=4) as results:
        waiting = asyncio.ensure_future(anext(results))
        await settled()
        assert work.now == {0, 1, 2, 3}
        work.go[1].set()
        assert await waiting == (1, 1)
        waiting = asyncio.ensure_future(anext(results))
        await settled()
        assert work.now == {0, 2, 3, 4}
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_results_come_as_they_are_ready() -> None:
    work, found = Work(), []
    async with explain_many(range(4), work, at_once=4) as results:
        work.go[2].set()
        async for item, _ in results:
            found.append(item)
            for following in {2: [3], 3: [0], 0: [1], 1: []}[item]:
                work.go[following].set()
    assert found == [2, 3, 0, 1]


async def test_an_items_problem_and_its_defect_are_results(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work(item: int) -> int:
        if item == 1:
            raise UndecodableImage("it is a song")
        if item == 2:
            raise ZeroDivisionError("by nothing")
        return item

    with caplog.at_level(logging.WARNING):
        async with explain_many(range(4), work, at_once=2) as results:
            found = {item: result async for item, result in results}
    assert (found[0], found[3]) == (0, 3)
    assert isinstance(found[1], UndecodableImage)
    assert found[1].detail == "it is a song"
    assert isinstance(found[2], InternalError)
    assert "nothing" not in found[2].detail  # the log has it, and it alone
    (record,) = caplog.records
    assert record.exc_info
    assert isinstance(record.exc_info[1], ZeroDivisionError)


async def test_work_that_something_else_cancelled_is_a_defect_and_ends_nothing_else() -> None:
    async def work(item: int) -> int:
        if item == 1:
            raise asyncio.CancelledError
        return item

    async with explain_many(range(4), work, at_once=2) as results:
        found = {item: result async for item, result in results}
    assert isinstance(found.pop(1), InternalError)
    assert found == {0: 0, 2: 2, 3: 3}


async def test_a_source_without_end_is_read_as_far_as_there_is_room() -> None:
    work, source = Work(), Source()
    async with explain_many(source, work, at_once=3) as results:
        for expected in range(20):
            waiting = asyncio.ensure_future(anext(results))
            await settled()
            assert work.begun == list(range(expected + 3))
            assert source.taken <= expected + 4  # the one that is next may be at hand
            work.go[expected].set()
            assert await waiting == (expected, expected**2)
    assert source.taken <= 24


async def test_nothing_begins_while_nobody_takes_the_results() -> None:
    work = Work(free=True)
    source = Source()
    async with explain_many(source, work, at_once=3) as results:
        await anext(results)
        await settled()
        assert len(work.begun) <= 3
        assert source.taken <= 4


async def test_a_source_that_raises_withdraws_what_is_under_way(complaints: list[str]) -> None:
    def source() -> Iterator[int]:
        yield from range(2)
        raise FileNotFoundError("the folder is gone")

    work = Work()
    with pytest.raises(FileNotFoundError, match="the folder is gone"):
        async with explain_many(source(), work, at_once=5) as results:
            await anext(results)
    assert work.withdrawn == [0, 1]
    assert not work.now


async def test_failures_that_nobody_took_are_not_complained_about(complaints: list[str]) -> None:
    def source() -> Iterator[int]:
        yield from range(3)
        raise FileNotFoundError

    gate = asyncio.Event()

    async def work(item: int) -> int:
        await gate.wait()
        raise UndecodableImage("no")

    with pytest.raises(FileNotFoundError):
        async with explain_many(source(), work, at_once=9) as results:
            await anext(results)
    async with explain_many(range(3), work, at_once=3) as results:
        waiting = asyncio.ensure_future(anext(results))
        await settled()
        gate.set()
        assert isinstance((await waiting)[1], UndecodableImage)


async def test_an_asynchronous_source(complaints: list[str]) -> None:
    arrived = asyncio.Event()

    async def source() -> AsyncIterator[int]:
        yield 0
        await arrived.wait()
        yield 1

    work = Work(free=True)
    async with explain_many(source(), work, at_once=2) as results:
        assert await anext(results) == (0, 0)  # while the source has nothing more
        arrived.set()
        assert await anext(results) == (1, 1)
        with pytest.raises(StopAsyncIteration):
            await anext(results)


async def test_an_asynchronous_source_that_never_tells_is_left_alone(
    complaints: list[str],
) -> None:
    ended = []

    async def source() -> AsyncIterator[int]:
        try:
            yield 0
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async with explain_many(source(), Work(free=True), at_once=2) as results:
        assert await anext(results) == (0, 0)
    assert ended


@pytest.mark.parametrize("raising", [False, True])
async def test_leaving_early_withdraws_what_is_under_way(
    raising: bool, complaints: list[str]
) -> None:
    work = Work()
    work.go[1].set()

    async def leave() -> None:
        async with explain_many(Source(), work, at_once=4) as results:
            async for _ in results:
                await settled()
                if raising:
                    raise KeyError("the host's own")
                break

    if raising:
        with pytest.raises(KeyError, match="the host's own"):
            await leave()
    else:
        await leave()
    assert sorted([*work.withdrawn, 1]) == work.begun
    assert len(work.begun) >= 3
    assert not work.now


async def test_leaving_before_the_first_result(complaints: list[str]) -> None:
    work = Work()
    async with explain_many(range(3), work, at_once=2):
        pass
    async with explain_many(range(3), work, at_once=2):
        await settled()
    assert sorted(work.withdrawn) == sorted(work.begun)


async def test_being_cancelled_withdraws_what_is_under_way(complaints: list[str]) -> None:
    work, found = Work(), []
    work.go[0].set()

    async def host() -> None:
        async with explain_many(range(9), work, at_once=3) as results:
            async for item, _ in results:
                found.append(item)

    task = asyncio.create_task(host())
    await settled()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert found == [0]
    assert sorted(work.withdrawn) == [1, 2, 3]
    assert not work.now


async def test_a_withdrawal_that_fails_does_not_keep_the_others(complaints: list[str]) -> None:
    async def work(item: int) -> int:
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("while it was withdrawn")

    async with explain_many(range(3), work, at_once=3) as results:
        waiting = asyncio.ensure_future(anext(results))
        await settled()
        waiting.cancel()
        await asyncio.wait([waiting])


@pytest.mark.parametrize("items", [[], (), iter(())])
async def test_nothing_to_do(items: Any, complaints: list[str]) -> None:
    async with explain_many(items, Work(), at_once=3) as results:
        assert [each async for each in results] == []


async def test_nothing_to_do_asynchronously(complaints: list[str]) -> None:
    async def source() -> AsyncIterator[int]:
        nothing: list[int] = []
        for item in nothing:
            yield item

    async with explain_many(source(), Work(), at_once=3) as results:
        assert [each async for each in results] == []


class Alarm(BaseException):
    """No Exception: nobody may take it for a result."""


async def test_what_is_no_exception_comes_out(complaints: list[str]) -> None:
    quiet = Work()

    async def work(item: int) -> int:
        if item == 2:
            raise Alarm("fire")
        return await quiet(item)

    with pytest.raises(Alarm, match="fire"):
        async with explain_many(range(9), work, at_once=3) as results:
            await anext(results)
    assert sorted(quiet.withdrawn) == sorted(quiet.begun)


@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt])
def test_what_ends_the_process_ends_what_is_under_way(ending: type[BaseException]) -> None:
    work = Work()

    async def fatal(item: int) -> int:
        if item == 2:
            raise ending
        return await work(item)

    async def host() -> None:
        async with explain_many(range(9), fatal, at_once=3) as results:
            async for _ in results:
                pass

    with pytest.raises(ending):
        asyncio.run(host())
    assert work.begun == [0, 1]
    assert not work.now
