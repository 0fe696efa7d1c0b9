"""The batcher in front of a device that computes after its work was given, with integers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from service.engine.batcher import Batcher, BatcherClosed
from tests.waiting import stays_async, until_async

pytestmark = pytest.mark.anyio


class Device:
    """Doubles integers once it is let; remembers what was given to it and by which threads."""

    def __init__(self) -> None:
        self.given: list[list[int]] = []
        self.threads: set[str] = set()
        self.allowed = threading.Semaphore(0)

    def __call__(self, items: list[int]) -> Computing:
        self.given.append(items)
        self.threads.add(threading.current_thread().name)
        return Computing(self, items)


class Computing:
    def __init__(self, device: Device, items: list[int]) -> None:
        self._device, self._items = device, items

    def __call__(self) -> Sequence[int | Exception]:
        assert self._device.allowed.acquire(timeout=10)
        if any(item < 0 for item in self._items):
            raise ValueError(f"poisoned: {self._items}")
        return [2 * item for item in self._items]


async def test_the_next_batch_is_given_while_the_device_computes() -> None:
    device = Device()
    async with Batcher(device, max_batch=2, max_queue=8) as batcher:
        futures = [batcher.submit(item) for item in range(6)]
        await until_async(lambda: len(device.given) == 2)
        # One is computed, one waits for the device.
        await stays_async(lambda: device.given == [[0, 1], [2, 3]], 0.05)
        assert batcher.load == 6
        device.allowed.release(1)
        assert [(await future).value for future in futures[:2]] == [0, 2]
        await until_async(lambda: len(device.given) == 3)
        device.allowed.release(2)
        assert [(await future).value for future in futures[2:]] == [4, 6, 8, 10]
    assert len(device.threads) == 1
    assert batcher.load == 0


async def test_a_smaller_batch_waits_and_grows() -> None:
    device = Device()
    async with Batcher(device, max_batch=4, max_queue=8) as batcher:
        first = [batcher.submit(item) for item in range(3)]
        await until_async(lambda: bool(device.given))
        second = [batcher.submit(item) for item in (3, 4)]
        await stays_async(lambda: device.given == [[0, 1, 2]], 0.05)
        second.append(batcher.submit(5))
        await until_async(lambda: len(device.given) == 2)
        third = batcher.submit(6)
        device.allowed.release(2)
        await asyncio.gather(*first, *second)
        device.allowed.release(1)
        await third
    assert device.given == [[0, 1, 2], [3, 4, 5], [6]]


async def test_a_batch_that_fails_on_the_device_is_halved() -> None:
    device = Device()
    device.allowed.release(20)
    async with Batcher(device, max_batch=4, max_queue=8) as batcher:
        futures = [batcher.submit(item) for item in (1, 2, -3, 4)]
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert (await batcher.submit(5)).value == 10
    assert isinstance(results[2], ValueError)
    assert [r.value for r in results if not isinstance(r, BaseException)] == [2, 4, 8]


async def test_leaving_waits_for_the_device() -> None:
    device = Device()
    async with Batcher(device, max_batch=2, max_queue=8) as batcher:
        futures = [batcher.submit(item) for item in range(4)]
        await until_async(lambda: len(device.given) == 2)
        device.allowed.release(2)
    assert [future.result().value for future in futures] == [0, 2, 4, 6]


async def test_a_device_that_never_answers_leaves_nobody_waiting() -> None:
    device = Device()
    async with Batcher(device, max_batch=2, max_queue=8) as batcher:
        futures = [batcher.submit(item) for item in range(6)]
        await until_async(lambda: len(device.given) == 2)
        assert batcher.running_seconds > 0
        await batcher.abandon()
        results = await asyncio.gather(*futures, return_exceptions=True)
    assert all(isinstance(result, BatcherClosed) for result in results)
    assert [getattr(result, "blamed", None) for result in results] == [True] * 4 + [False] * 2
    device.allowed.release(2)
