"""Threads and memory for photos, in separate pools for small and large ones.

A photo of 50 megapixels takes seconds and a gigabyte of memory to decode and draw. Large photos
have their own limit on pixels and their own threads, so that no small photo waits behind them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic_ns
from typing import Final

from service.core.pool import Pool, Priority
from service.limits.counters import LocalCounts, ServiceCounts

PHOTO_PIXELS: Final = 640 * 480
LOOK_SECONDS: Final = 0.002
"""Seconds after which a process looks again whether others have freed room."""


@dataclass(eq=False)
class PixelReservation:
    pixels: int
    whose: str
    turn: asyncio.Future[None]
    since: int
    """Time of `time.monotonic_ns`, the same clock in all processes."""


class PhotoPool(Pool):
    """Threads to work on photos, and room for a number of pixels at a time. The next photo to get
    room is of the model that holds the fewest pixels; among equals, it is the one that came first.
    Where several processes share the room, the next photo is one of the process whose oldest photo
    has waited longest.
    """

    def __init__(
        self,
        name: str,
        *,
        pixels: int,
        threads: int,
        priority: Priority = "interactive",
        counts: ServiceCounts | None = None,
    ) -> None:
        super().__init__(name, threads, priority=priority)
        self._room = pixels
        self._pixels = f"pixels of {priority} {name}"
        self._oldest = f"oldest of {priority} {name}"
        self._counts = counts or LocalCounts()
        self._looking: asyncio.TimerHandle | None = None
        self._waiting: list[PixelReservation] = []
        self._held: Counter[str] = Counter()

    def fit(self, pixels: int) -> None:
        """Make room for so many pixels at a time."""
        if pixels > self._room:
            self._room = pixels
            self._let_in()

    @asynccontextmanager
    async def hold(self, pixels: int, whose: str = "") -> AsyncIterator[None]:
        """Wait for room for `pixels`, and free it when the block is left."""
        turn = asyncio.get_running_loop().create_future()
        place = PixelReservation(min(pixels, self._room), whose, turn, monotonic_ns())
        self._waiting.append(place)
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it got room and was cancelled at once
                self._release(place)
            else:
                with suppress(ValueError):  # `_let_in` may have removed it already
                    self._waiting.remove(place)
                self._let_in()
            raise
        try:
            yield
        finally:
            self._release(place)

    def _release(self, place: PixelReservation) -> None:
        self._counts.add(self._pixels, -place.pixels)
        self._held[place.whose] -= place.pixels
        self._held += Counter()  # drops models that hold nothing
        if self._waiting:
            self._let_in()

    def _let_in(self) -> None:
        while self._waiting:
            oldest = self._waiting[0].since
            self._counts.publish(self._oldest, oldest)
            if self._counts.least(self._oldest) < oldest:
                self._look_again()
                return
            place = min(self._waiting, key=lambda waiting: self._held[waiting.whose])
            if not place.turn.done():
                if self._counts.add(self._pixels, place.pixels) > self._room:
                    self._counts.add(self._pixels, -place.pixels)
                    self._look_again()
                    return
                self._held[place.whose] += place.pixels
                place.turn.set_result(None)
            self._waiting.remove(place)
        self._counts.publish(self._oldest, 0)

    def _look_again(self) -> None:
        """Look again later, if other processes hold room: they free it without telling this one."""
        if self._counts.shared and self._looking is None:
            loop = asyncio.get_running_loop()
            self._looking = loop.call_later(LOOK_SECONDS, self._looked)

    def _looked(self) -> None:
        self._looking = None
        self._let_in()


class PixelBudget:
    """One pool for small photos and one for large ones. Use it with `with`: leaving it ends the
    threads when their current work is done.

    Args:
        pixels: number of pixels of all photos that are held at a time, in all processes.
        threads: number of threads for small photos; large photos have one fewer, but at least one.
        largest: number of pixels of the largest photo that is allowed.
        priority: priority of the threads.
        counts: the counts of the whole service; by default, this process is alone.
    """

    def __init__(
        self,
        *,
        pixels: int,
        threads: int,
        largest: int,
        priority: Priority = "interactive",
        counts: ServiceCounts | None = None,
    ) -> None:
        self._bound = pixels // 8
        pool = partial(PhotoPool, priority=priority, counts=counts)
        self.small = pool("small photos", pixels=pixels // 4, threads=threads)
        large = max(pixels - pixels // 4, largest)
        self.large = pool("large photos", pixels=large, threads=max(threads - 1, 1))

    def __enter__(self) -> PixelBudget:
        self._scope = ExitStack()
        for pool in (self.small, self.large):
            self._scope.enter_context(pool)
        return self

    def __exit__(self, *raised: object) -> None:
        self._scope.close()

    @asynccontextmanager
    async def hold(self, pixels: int, whose: str = "") -> AsyncIterator[PhotoPool]:
        """Wait for room for a photo, and hold it until the block is left. Yield the pool for photos
        of that size.

        Args:
            whose: name of the model, so that a slow model does not take all the room.
        """
        pool = self.large if pixels > self._bound else self.small
        async with pool.hold(pixels, whose):
            yield pool

    def fit(self, images: int) -> None:
        """Make room for so many ordinary photos at a time."""
        self.small.fit(images * PHOTO_PIXELS)
