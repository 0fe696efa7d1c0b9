"""Room for pixels, and threads of which the large photos never have all."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from service.limits.pixel_budget import PHOTO_PIXELS, PhotoPool, PixelBudget
from tests.waiting import settled, until_async

pytestmark = pytest.mark.anyio

SOON = 5
"""Seconds within which what is free is had, on a machine that is busy with other things."""


@pytest.fixture
def threads() -> Callable[[], Counter[str]]:
    """Tells the names of those that have begun since, without those of an app of other tests."""
    strangers = set(threading.enumerate())

    def names() -> Counter[str]:
        begun = [thread.name for thread in threading.enumerate() if thread not in strangers]
        return Counter(name.rpartition("_")[0] for name in begun if " photos_" in name)

    return names


class Holders:
    """Photos that want room in a pool, and leave when they are told to."""

    def __init__(self, pool: PhotoPool) -> None:
        self.pool = pool
        self.inside: list[int] = []
        self._leave: dict[int, asyncio.Event] = {}

    async def come(self, pixels: int) -> asyncio.Task[None]:
        """Who has room has come in at once."""
        task = asyncio.create_task(self._stay(pixels))
        await settled()
        return task

    async def leave(self, *pixels: int) -> None:
        for each in pixels:
            self._leave[each].set()
            await settled()

    async def _stay(self, pixels: int) -> None:
        async with self.pool.hold(pixels):
            self.inside.append(pixels)
            self._leave[pixels] = asyncio.Event()
            await self._leave[pixels].wait()
            self.inside.remove(pixels)


async def is_empty(pool: PhotoPool, pixels: int = 10) -> bool:
    """Whether all its room can be had."""
    async with asyncio.timeout(SOON), pool.hold(pixels):
        return True


@asynccontextmanager
async def opened(threads: int = 2) -> AsyncIterator[PixelBudget]:
    """The large pool has room for 60 pixels and takes photos of more than 10."""
    with PixelBudget(pixels=80, threads=threads, largest=60) as budget:
        yield budget


def pool_of(pixels: int) -> PhotoPool:
    return PhotoPool("a pool", pixels=pixels, threads=1)


async def test_no_more_pixels_are_held_at_once_than_there_is_room_for() -> None:
    holders = Holders(pool_of(10))
    tasks = [await holders.come(pixels) for pixels in (4, 6, 1, 9, 10)]
    assert holders.inside == [4, 6]
    await holders.leave(4)
    assert holders.inside == [6, 1]
    await holders.leave(6)
    assert holders.inside == [1, 9]
    await holders.leave(1)
    assert holders.inside == [9]
    await holders.leave(9)
    assert holders.inside == [10]
    await holders.leave(10)
    await asyncio.gather(*tasks)
    assert await is_empty(holders.pool)


async def test_who_comes_first_is_served_first_even_where_a_later_one_would_fit() -> None:
    holders = Holders(pool_of(10))
    tasks = [await holders.come(pixels) for pixels in (6, 8, 2, 3)]
    assert holders.inside == [6]
    await holders.leave(6)
    assert holders.inside == [8, 2]
    await holders.leave(2)
    assert holders.inside == [8]
    await holders.leave(8, 3)
    await asyncio.gather(*tasks)


async def test_who_holds_least_comes_next() -> None:
    pool, order = pool_of(4), []
    leaving = asyncio.Event()

    async def stay(whose: str) -> None:
        async with pool.hold(2, whose):
            order.append(whose)
            await leaving.wait()
            await settled(1)

    slow = [asyncio.create_task(stay("slow")) for _ in range(6)]
    await settled()
    quick = [asyncio.create_task(stay("quick")) for _ in range(2)]
    await settled()
    assert order == ["slow", "slow"]
    slow[0].cancel()
    await settled()
    assert order == ["slow", "slow", "quick"]  # before four that came earlier
    slow[1].cancel()
    await settled()
    assert order == ["slow", "slow", "quick", "slow"]  # each has one now
    leaving.set()
    await asyncio.gather(*slow, *quick, return_exceptions=True)
    assert sorted(order) == ["quick"] * 2 + ["slow"] * 6
    assert await is_empty(pool, 4)


async def test_room_is_given_back_after_an_exception_and_by_one_who_is_cancelled() -> None:
    holders = Holders(pool_of(10))
    with pytest.raises(ZeroDivisionError):
        async with holders.pool.hold(7):
            raise ZeroDivisionError
    assert await is_empty(holders.pool)
    task = await holders.come(7)
    task.cancel()
    await asyncio.wait([task])
    assert await is_empty(holders.pool)


async def test_one_who_gives_up_waiting_holds_up_nobody_behind() -> None:
    holders = Holders(pool_of(10))
    first, large, small = [await holders.come(pixels) for pixels in (6, 8, 3)]
    assert holders.inside == [6]
    large.cancel()
    await settled()
    assert large.cancelled()
    assert holders.inside == [6, 3]
    await holders.leave(6, 3)
    await asyncio.gather(first, small)
    assert await is_empty(holders.pool)


async def test_one_who_gives_up_in_the_middle_of_those_who_wait_takes_no_room() -> None:
    holders = Holders(pool_of(10))
    first, second, third = [await holders.come(pixels) for pixels in (10, 6, 5)]
    second.cancel()
    await settled()
    await holders.leave(10)
    assert holders.inside == [5]
    await holders.leave(5)
    await asyncio.gather(first, third)
    assert await is_empty(holders.pool)


async def test_one_who_gives_up_in_the_moment_that_its_turn_comes_gives_its_room_back() -> None:
    holders = Holders(pool_of(10))
    async with holders.pool.hold(10):
        gone, behind = [await holders.come(pixels) for pixels in (6, 7)]
        assert holders.inside == []
    # The room is the first one's by now, though it has not run since.
    gone.cancel()
    await settled()
    assert gone.cancelled()
    assert holders.inside == [7]
    await holders.leave(7)
    await behind
    assert await is_empty(holders.pool)


async def test_all_who_wait_may_give_up_together_as_room_comes() -> None:
    holders = Holders(pool_of(10))
    async with holders.pool.hold(10):
        tasks = [await holders.come(pixels) for pixels in (6, 7, 3, 4)]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert holders.inside == []
    assert await is_empty(holders.pool)


async def test_what_is_larger_than_the_pool_is_let_in_alone() -> None:
    holders = Holders(pool_of(10))
    tasks = [await holders.come(pixels) for pixels in (1, 99, 2)]
    assert holders.inside == [1]
    await holders.leave(1)
    assert holders.inside == [99]
    await holders.leave(99)
    assert holders.inside == [2]
    await holders.leave(2)
    await asyncio.gather(*tasks)
    assert await is_empty(holders.pool)


async def test_the_photos_of_full_batches_have_room() -> None:
    with PixelBudget(pixels=8 * PHOTO_PIXELS, threads=1, largest=1) as budget:
        budget.fit(1)  # as there is room for two, nothing changes
        holders = Holders(budget.small)
        sizes = [PHOTO_PIXELS - number for number in range(4)]
        tasks = [await holders.come(pixels) for pixels in sizes[:3]]
        assert len(holders.inside) == 2
        budget.fit(4)  # the one that waits need not wait for another to leave
        await settled()
        assert len(holders.inside) == 3
        tasks.append(await holders.come(sizes[3]))
        assert sorted(holders.inside, reverse=True) == sizes
        await holders.leave(*sizes)
        await asyncio.gather(*tasks)


@pytest.mark.parametrize(("pixels", "large"), [(1, False), (10, False), (11, True), (60, True)])
async def test_a_photo_has_the_pool_of_its_size(pixels: int, large: bool) -> None:
    async with opened() as budget, budget.hold(pixels) as pool:
        assert (pool is budget.large, pool is budget.small) == (large, not large)


async def test_the_largest_photo_has_room_where_the_budget_is_smaller() -> None:
    with PixelBudget(pixels=8, threads=1, largest=100) as budget:
        holders = Holders(budget.large)
        tasks = [await holders.come(pixels) for pixels in (60, 40, 2)]
        assert holders.inside == [60, 40]
        await holders.leave(60, 40, 2)
        await asyncio.gather(*tasks)


async def test_a_small_photo_waits_for_no_large_one() -> None:
    gate = threading.Event()

    async def explain(budget: PixelBudget, pixels: int) -> None:
        async with budget.hold(pixels) as pool:
            if pool is budget.large:
                await pool.run(gate.wait)
            else:
                assert await pool.run(threading.get_ident) != threading.get_ident()

    async with opened(threads=3) as budget:
        large = [asyncio.create_task(explain(budget, pixels)) for pixels in (20, 20, 20, 60)]
        await settled()
        try:
            async with asyncio.timeout(SOON):
                await asyncio.gather(*(explain(budget, 10) for _ in range(20)))
            assert not any(task.done() for task in large)
        finally:
            gate.set()
        await asyncio.gather(*large)


@pytest.mark.parametrize(("count", "large"), [(1, 1), (2, 1), (3, 2)])
async def test_the_large_pool_has_one_thread_fewer_and_at_least_one(
    threads: Callable[[], Counter[str]], count: int, large: int
) -> None:
    gate = threading.Event()
    async with opened(count) as budget:
        tasks = [
            asyncio.create_task(pool.run(gate.wait))
            for pool in (budget.small, budget.large)
            for _ in range(count + 1)
        ]
        await settled()
        assert threads() == {"small photos": count, "large photos": large}
        gate.set()
        await asyncio.gather(*tasks)


async def test_room_is_not_given_back_before_a_thread_is_done_with_a_photo_nobody_waits_for() -> (
    None
):
    gate, begun = threading.Event(), threading.Event()

    def decode() -> None:
        begun.set()
        gate.wait(SOON)

    async def explain(budget: PixelBudget) -> None:
        async with budget.hold(60) as pool:
            await pool.run(decode)

    async with opened() as budget:
        holders = Holders(budget.large)
        try:
            gone = asyncio.create_task(explain(budget))
            assert await asyncio.to_thread(begun.wait, SOON)
            gone.cancel()
            await settled()
            task = await holders.come(60)
            assert holders.inside == []
        finally:
            gate.set()
        await until_async(lambda: holders.inside == [60])
        await holders.leave(60)
        await task


@pytest.mark.parametrize("error", [None, ZeroDivisionError()])
async def test_leaving_waits_for_nothing_and_its_threads_end(
    threads: Callable[[], Counter[str]], error: Exception | None
) -> None:
    gate, begun = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        gate.wait(SOON)

    try:
        async with opened() as budget:
            await budget.small.run(int)
            running = asyncio.create_task(budget.large.run(work))
            assert await asyncio.to_thread(begun.wait, SOON)
            assert threads() == {"small photos": 1, "large photos": 1}
            if error:
                raise error
    except ZeroDivisionError:
        assert error
    assert not running.done()
    gate.set()
    await running
    await until_async(lambda: not threads())
