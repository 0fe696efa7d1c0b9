"""The batcher, with integers: no torch, no HTTP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from service.backend.outcome import Outcome
from service.engine.batcher import Batcher, BatcherClosed, BatcherFull
from tests.waiting import until_async

pytestmark = pytest.mark.anyio


class Doubler:
    """Doubles integers, remembers its batches, and can be held up."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.threads: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Event()

    def __call__(self, items: list[int]) -> Sequence[int | Exception]:
        self.started.set()
        assert self.gate.wait(10)
        self.batches.append(items)
        self.threads.add(threading.current_thread().name)
        if any(item < 0 for item in items):
            raise ValueError(f"poisoned: {items}")
        return [KeyError("odd one out") if item == 13 else 2 * item for item in items]


async def hold(batcher: Batcher[int, int], run: Doubler) -> asyncio.Future[object]:
    """Occupy the worker until the gate opens, so that what follows gathers behind it."""
    run.gate.clear()
    first = batcher.submit(0)
    await asyncio.to_thread(run.started.wait)
    return first  # type: ignore[return-value]


async def test_a_lone_item_runs_at_once_and_alone() -> None:
    run = Doubler()
    async with Batcher(run, max_batch=8, max_queue=8) as batcher:
        outcome = await batcher.submit(21)
    assert (outcome.value, outcome.batch_size) == (42, 1)
    assert outcome.queued_seconds >= 0
    assert outcome.run_seconds > 0


async def test_a_batch_gathers_while_another_runs() -> None:
    run = Doubler()
    async with Batcher(run, max_batch=3, max_queue=8) as batcher:
        await hold(batcher, run)
        futures = [batcher.submit(item) for item in (1, 2, 3, 4)]
        run.gate.set()
        outcomes = await asyncio.gather(*futures)
    assert run.batches == [[0], [1, 2, 3], [4]]
    assert [outcome.value for outcome in outcomes] == [2, 4, 6, 8]
    assert [outcome.batch_size for outcome in outcomes] == [3, 3, 3, 1]
    assert len(run.threads) == 1


async def test_only_items_of_equal_key_share_a_batch_and_the_oldest_goes_first() -> None:
    run = Doubler()
    async with Batcher(run, key=lambda item: item % 2, max_batch=8, max_queue=8) as batcher:
        await hold(batcher, run)
        futures = [batcher.submit(item) for item in (1, 2, 3, 4, 5)]
        run.gate.set()
        await asyncio.gather(*futures)
    assert run.batches == [[0], [1, 3, 5], [2, 4]]


async def test_an_exception_returned_fails_its_item_only() -> None:
    run = Doubler()
    async with Batcher(run, max_batch=8, max_queue=8) as batcher:
        await hold(batcher, run)
        futures = [batcher.submit(item) for item in (1, 13, 3)]
        run.gate.set()
        results = await asyncio.gather(*futures, return_exceptions=True)
    assert isinstance(results[1], KeyError)
    assert [r.value for r in (results[0], results[2])] == [2, 6]  # type: ignore[union-attr]
    assert run.batches == [[0], [1, 13, 3]]


async def test_an_exception_raised_halves_the_batch_down_to_the_one_to_blame() -> None:
    run = Doubler()
    async with Batcher(run, max_batch=8, max_queue=8) as batcher:
        await hold(batcher, run)
        futures = [batcher.submit(item) for item in (1, 2, -3, 4)]
        run.gate.set()
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert (await batcher.submit(5)).value == 10
    assert isinstance(results[2], ValueError)
    good = [r.value for r in results if not isinstance(r, BaseException)]
    assert good == [2, 4, 8]
    assert run.batches == [[0], [1, 2, -3, 4], [1, 2], [-3, 4], [-3], [4], [5]]


async def test_a_wrong_number_of_results_is_an_error_not_a_mix_up() -> None:
    batcher: Batcher[int, int] = Batcher(lambda items: items[1:], max_batch=8, max_queue=8)
    async with batcher:
        with pytest.raises(RuntimeError, match="0 results for a batch of 1"):
            await batcher.submit(1)


async def test_an_item_whose_caller_left_is_dropped_before_the_batch() -> None:
    run = Doubler()
    async with Batcher(run, max_batch=8, max_queue=8) as batcher:
        await hold(batcher, run)
        gone, stays = batcher.submit(1), batcher.submit(2)
        gone.cancel()
        assert len(batcher) == 1
        run.gate.set()
        await stays
    assert run.batches == [[0], [2]]


async def test_a_full_queue_refuses_at_once_and_takes_again_when_a_caller_leaves() -> None:
    run = Doubler()
    async with Batcher(run, max_batch=8, max_queue=2) as batcher:
        await hold(batcher, run)
        gone = batcher.submit(1)
        batcher.submit(2)
        with pytest.raises(BatcherFull, match="2 items are waiting"):
            batcher.submit(3)
        gone.cancel()
        last = batcher.submit(4)
        run.gate.set()
        assert (await last).value == 8


async def test_leaving_finishes_what_is_queued_and_ends_the_thread() -> None:
    run = Doubler()
    async with Batcher(run, max_batch=1, max_queue=8, name="doubling") as batcher:
        first = await hold(batcher, run)
        rest = [batcher.submit(item) for item in (1, 2)]
        run.gate.set()
    assert first.done()
    assert [future.result().value for future in rest] == [2, 4]
    with pytest.raises(BatcherClosed):
        batcher.submit(3)
    await no_thread("doubling")


async def test_leaving_with_an_exception_ends_the_thread_too() -> None:
    run = Doubler()
    batcher: Batcher[int, int] = Batcher(run, max_batch=1, max_queue=8, name="failing")

    async def fail() -> None:
        async with batcher:
            await batcher.submit(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert not batcher.alive
    await no_thread("failing")


async def test_nobody_waits_for_a_worker_that_is_gone() -> None:
    run = Doubler()
    batcher = await Batcher(run, max_batch=1, max_queue=8, name="cancelled").__aenter__()
    running = await hold(batcher, run)
    queued = batcher.submit(1)
    assert batcher._worker
    batcher._worker.cancel()
    for future in (running, queued):
        with pytest.raises(BatcherClosed):
            await future
    assert not batcher.alive
    with pytest.raises(BatcherClosed):
        batcher.submit(2)
    run.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await batcher.__aexit__(None, None, None)
    await no_thread("cancelled")


async def no_thread(name: str) -> None:
    await until_async(
        lambda: not any(thread.name.startswith(name) for thread in threading.enumerate())
    )


@pytest.mark.parametrize("error", [StopIteration("no more"), SystemExit(3), KeyboardInterrupt()])
async def test_no_exception_of_the_work_ends_the_worker(error: BaseException) -> None:
    def run(items: list[int]) -> list[int | Exception]:
        if 13 in items:
            raise error
        return [2 * item for item in items]

    async with Batcher(run, max_batch=4, max_queue=8) as batcher:
        futures = [batcher.submit(item) for item in (1, 13, 3)]
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert isinstance(results[1], RuntimeError)
        assert type(error).__name__ in str(results[1])
        assert [isinstance(each, Outcome) for each in results] == [True, False, True]
        assert (await batcher.submit(4)).value == 8


async def test_a_worker_cancelled_between_the_halves_of_a_batch_leaves_nobody_waiting() -> None:
    gate, inside = threading.Event(), threading.Event()

    def run(items: list[int]) -> list[int | Exception]:
        if len(items) > 1:
            raise ValueError("too many")
        inside.set()
        gate.wait(5)
        return list(items)

    batcher = await Batcher(run, max_batch=4, max_queue=8, name="halves").__aenter__()
    futures = [batcher.submit(item) for item in range(4)]
    await asyncio.to_thread(inside.wait, 5)
    assert batcher._worker
    batcher._worker.cancel()
    results = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 5)
    assert [type(each) for each in results] == [BatcherClosed] * 4
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await batcher.__aexit__(None, None, None)


async def test_work_that_was_let_in_is_not_refused_half_way() -> None:
    run = Doubler()
    async with Batcher(run, max_batch=1, max_queue=1) as batcher:
        running = await hold(batcher, run)
        queued = batcher.submit(1)
        with pytest.raises(BatcherFull):
            batcher.submit(2)
        further = batcher.submit(3, begun=0.0)
        run.gate.set()
        assert [(await each).value for each in (queued, further)] == [2, 6]
        await running
