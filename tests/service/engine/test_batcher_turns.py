"""Lanes that take turns, and a worker that is given up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from time import perf_counter

import pytest

from service.engine.batcher import Batcher, BatcherClosed
from tests.service.engine.test_batcher import Doubler, hold, no_thread
from tests.waiting import settled

pytestmark = pytest.mark.anyio

SOON = 5
"""Seconds within which what waits for nothing is done, on a busy machine."""
DEAR = 100
"""From this number on."""


def cost(item: int) -> int:
    return item // DEAR


async def batches(items: Sequence[int], *, max_batch: int = 2) -> list[list[int]]:
    """Of numbers that gathered while the worker was held by a cheap one."""
    run = Doubler()
    async with Batcher(run, cost=cost, key=cost, max_batch=max_batch, max_queue=99) as batcher:
        first = await hold(batcher, run)
        futures = [batcher.submit(item) for item in items]
        run.gate.set()
        assert [(await each).value for each in futures] == [2 * item for item in items]
        await first
    assert run.batches[0] == [0]
    return run.batches[1:]


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([101, 102, 103, 104, 105, 1], [[101, 102], [1], [103, 104], [105]]),
        ([1, 2, 3, 101], [[101], [1, 2], [3]]),
        ([101, 1, 102, 2, 103, 3], [[101, 102], [1, 2], [103], [3]]),
        ([101, 102, 103, 201, 1], [[101, 102], [201], [1], [103]]),
        ([1, 2, 3], [[1, 2], [3]]),
    ],
    ids=["dear first", "cheap first", "mixed", "three classes", "one class"],
)
async def test_classes_of_cost_take_turns_and_each_of_them_keeps_its_order(
    items: list[int], expected: list[list[int]]
) -> None:
    assert await batches(items) == expected


async def test_a_cheap_one_waits_for_one_batch_of_dear_ones_whatever_their_number() -> None:
    order = await batches([*range(101, 151), 1], max_batch=1)
    assert order.index([1]) <= 1


async def test_a_class_that_was_never_seen_before_gets_no_more_than_its_turn() -> None:
    run = Doubler()
    async with Batcher(run, cost=cost, key=cost, max_batch=1, max_queue=99) as batcher:
        for item in range(5):
            await batcher.submit(item)
        run.batches.clear()
        first = await hold(batcher, run)
        futures = [batcher.submit(item) for item in (101, 102, 103, 1, 2, 3)]
        run.gate.set()
        await asyncio.gather(first, *futures)
    assert run.batches == [[0], [101], [1], [102], [2], [103], [3]]


async def test_items_of_one_key_share_a_batch_though_their_classes_differ() -> None:
    run = Doubler()
    async with Batcher(run, cost=cost, max_batch=8, max_queue=8) as batcher:
        await hold(batcher, run)
        futures = [batcher.submit(item) for item in (101, 1, 102, 2)]
        run.gate.set()
        await asyncio.gather(*futures)
    assert run.batches == [[0], [101, 1, 102, 2]]


async def test_one_who_has_left_takes_no_turn_of_its_class() -> None:
    run = Doubler()
    async with Batcher(run, cost=cost, key=cost, max_batch=1, max_queue=8) as batcher:
        await hold(batcher, run)
        gone, *others = [batcher.submit(item) for item in (101, 1, 102)]
        gone.cancel()
        run.gate.set()
        await asyncio.gather(*others)
    assert run.batches == [[0], [102], [1]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the batcher's clock shows, in seconds: the last number."""
    shown = [100.0]
    monkeypatch.setattr("service.engine.batcher.perf_counter", lambda: shown[-1])
    return shown


async def test_running_seconds_are_those_of_the_batch_in_the_thread(clock: list[float]) -> None:
    run = Doubler()
    async with Batcher(run, max_batch=1, max_queue=8) as batcher:
        assert batcher.running_seconds == 0
        first = await hold(batcher, run)
        clock.append(107.0)
        assert batcher.running_seconds == 7
        run.gate.set()
        await first
        assert batcher.running_seconds == 0
        with pytest.raises(ValueError, match="poisoned"):
            await batcher.submit(-1)
        assert batcher.running_seconds == 0
    assert batcher.running_seconds == 0


async def test_a_batch_that_waited_behind_another_counts_from_its_own_start(
    clock: list[float],
) -> None:
    gates, begun = [[threading.Event(), threading.Event()] for _ in range(2)]

    def run(items: list[int]) -> list[int | Exception]:
        begun[items[0]].set()
        gates[items[0]].wait(SOON)
        return list(items)

    async with Batcher(run, max_batch=1, max_queue=8) as batcher:
        futures = [batcher.submit(item) for item in (0, 1)]
        await asyncio.to_thread(begun[0].wait, SOON)
        clock.append(107.0)
        assert batcher.running_seconds == 7
        gates[0].set()
        await futures[0]
        await asyncio.to_thread(begun[1].wait, SOON)
        clock.append(109.0)
        assert batcher.running_seconds == 2
        gates[1].set()
        await asyncio.gather(*futures)


async def test_abandoning_tells_all_who_wait_at_once_while_the_thread_still_hangs() -> None:
    run = Doubler()
    async with asyncio.timeout(SOON):
        async with Batcher(run, max_batch=2, max_queue=8, name="hangs") as batcher:
            running = await hold(batcher, run)
            waiting = [batcher.submit(item) for item in (1, 2, 3)]
            gone = batcher.submit(4)
            gone.cancel()
            await batcher.abandon()
            assert running.done()
            assert all(future.done() for future in waiting)
            results = await asyncio.gather(running, *waiting, return_exceptions=True)
            assert [type(each) for each in results] == [BatcherClosed] * 4
            assert not batcher.alive
            assert (len(batcher), batcher.load) == (0, 0)
            with pytest.raises(BatcherClosed):
                batcher.submit(5)
    assert hanging("hangs")
    assert run.batches == []
    run.gate.set()
    await no_thread("hangs")
    assert run.batches == [[0]]


async def test_abandoning_one_who_has_nothing_to_do_ends_its_thread() -> None:
    run = Doubler()
    async with Batcher(run, max_batch=2, max_queue=8, name="idle") as batcher:
        await batcher.submit(1)
        await batcher.abandon()
        await batcher.abandon()
        await no_thread("idle")
        assert not batcher.alive


async def test_one_who_is_leaving_is_let_go_by_abandoning() -> None:
    """As where a server drains, and the batch that it waits for hangs."""
    run = Doubler()
    batcher = await Batcher(run, max_batch=1, max_queue=8, name="drains").__aenter__()
    running = await hold(batcher, run)
    leaving = asyncio.create_task(batcher.__aexit__(None, None, None))
    await settled()
    assert not leaving.done()
    await batcher.abandon()
    await asyncio.wait([leaving], timeout=SOON)
    with pytest.raises(BatcherClosed):
        await running
    run.gate.set()
    await no_thread("drains")
    assert not leaving.cancelled(), "nobody cancelled the one who was leaving"
    assert leaving.exception() is None


async def test_a_thread_that_hangs_is_seen_after_patience_with_leaving_has_ended() -> None:
    """`ModelLifecycle.leave` asks then, and counts the threads that keep the process alive."""
    run = Doubler()
    batcher = await Batcher(run, max_batch=1, max_queue=8, name="stays").__aenter__()
    running = await hold(batcher, run)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await batcher.__aexit__(None, None, None)
    seconds = batcher.running_seconds
    await batcher.abandon()
    with pytest.raises(BatcherClosed):
        await running
    assert hanging("stays")
    run.gate.set()
    await no_thread("stays")
    assert seconds > 0


def hanging(name: str) -> bool:
    return any(thread.name.startswith(name) for thread in threading.enumerate())


async def test_background_work_of_many_steps_ends_one_after_the_other() -> None:
    """What is half done when a process is killed is lost."""
    run = Doubler()
    ended: list[int] = []

    async def work(item: int) -> None:
        begun = perf_counter()
        await batcher.submit(item)
        for _ in range(3):
            await batcher.submit(item, begun=begun)
        ended.append(item)

    async with Batcher(
        run, key=lambda item: item, priority=lambda item: "background", max_batch=1, max_queue=8
    ) as batcher:
        await asyncio.gather(work(1), work(2), work(3))
    assert run.batches == [[1]] * 4 + [[2]] * 4 + [[3]] * 4
    assert ended == [1, 2, 3]


async def test_interactive_work_of_many_steps_takes_turns() -> None:
    run = Doubler()

    async def work(item: int) -> None:
        begun = perf_counter()
        await batcher.submit(item)
        await batcher.submit(item, begun=begun)

    async with Batcher(run, key=lambda item: item, max_batch=1, max_queue=8) as batcher:
        await asyncio.gather(work(1), work(2), work(3))
    assert run.batches == [[1], [2], [3]] * 2
