"""Threads and memory for photos: the large ones in a lane of their own.

A photo of 50 megapixels takes seconds to decode and draw, and a gigabyte meanwhile. Its lane has a
bounded number of pixels at a time and threads of its own, so that no small photo waits behind it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import TypeVar

from service.pool import Pool

Result = TypeVar("Result")


class Lane:
    """Room for so many pixels at a time, first come, first served, and threads to work on them."""

    def __init__(self, name: str, *, pixels: int, threads: int, patient: bool = False) -> None:
        self._free = self._room = pixels
        self._pool = Pool(name, threads, patient=patient)
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def open(self) -> None:
        self._pool.open()

    def close(self) -> None:
        self._pool.close()

    async def run(self, work: Callable[[], Result]) -> Result:
        """In one of the lane's threads; see `Pool.run`."""
        return await self._pool.run(work)

    @asynccontextmanager
    async def hold(self, pixels: int) -> AsyncIterator[None]:
        """Wait for room; it is free again when the block is left."""
        pixels = min(pixels, self._room)
        if self._waiting or pixels > self._free:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((pixels, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():  # its turn came as it gave up
                    self._release(pixels)
                else:
                    with suppress(ValueError):  # it may have been passed over already
                        self._waiting.remove((pixels, turn))
                    self._release(0)
                raise
        else:
            self._free -= pixels
        try:
            yield
        finally:
            self._release(pixels)

    def _release(self, pixels: int) -> None:
        self._free += pixels
        while self._waiting and self._waiting[0][0] <= self._free:
            needed, turn = self._waiting.popleft()
            if not turn.done():
                self._free -= needed
                turn.set_result(None)


class Lanes:
    """Use with `async with`: leaving it ends the threads when what they do is done.

    Args:
        pixels: of all photos held at a time.
        threads: for the small ones; the large ones have one fewer, at least one.
        largest: pixels of the largest photo that there may be.
        patient: the threads give way to all others.
    """

    def __init__(self, *, pixels: int, threads: int, largest: int, patient: bool = False) -> None:
        self._bound = pixels // 8
        self.small = Lane("small photos", pixels=pixels // 4, threads=threads, patient=patient)
        large = max(pixels - pixels // 4, largest)
        fewer = max(threads - 1, 1)
        self.large = Lane("large photos", pixels=large, threads=fewer, patient=patient)

    async def __aenter__(self) -> Lanes:
        for lane in (self.small, self.large):
            lane.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for lane in (self.small, self.large):
            lane.close()

    @asynccontextmanager
    async def room(self, pixels: int) -> AsyncIterator[Lane]:
        """The lane for a photo of that size, which has its room while the block is open."""
        lane = self.large if pixels > self._bound else self.small
        async with lane.hold(pixels):
            yield lane
