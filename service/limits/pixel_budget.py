"""Threads and memory for photos: the large ones in a lane of their own.

A photo of 50 megapixels takes seconds to decode and draw, and a gigabyte meanwhile. Its lane has a
bounded number of pixels at a time and threads of its own, so that no small photo waits behind it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

from service.core.pool import Pool

Result = TypeVar("Result")


@dataclass(eq=False)
class Place:
    pixels: int
    whose: str
    turn: asyncio.Future[None]


class Lane:
    """Room for so many pixels at a time, and threads to work on them. Who holds least comes next;
    among equals, who came first."""

    def __init__(self, name: str, *, pixels: int, threads: int, patient: bool = False) -> None:
        self._free = self._room = pixels
        self._pool = Pool(name, threads, patient=patient)
        self._waiting: list[Place] = []
        self._held: Counter[str] = Counter()

    def open(self) -> None:
        self._pool.open()

    def close(self) -> None:
        self._pool.close()

    async def run(self, work: Callable[[], Result]) -> Result:
        """In one of the lane's threads; see `Pool.run`."""
        return await self._pool.run(work)

    @asynccontextmanager
    async def hold(self, pixels: int, whose: str = "") -> AsyncIterator[None]:
        """Wait for room; it is free again when the block is left."""
        turn = asyncio.get_running_loop().create_future()
        place = Place(min(pixels, self._room), whose, turn)
        self._waiting.append(place)
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # its turn came as it gave up
                self._release(place)
            else:
                with suppress(ValueError):  # it may have been passed over already
                    self._waiting.remove(place)
                self._let_in()
            raise
        try:
            yield
        finally:
            self._release(place)

    def _release(self, place: Place) -> None:
        self._free += place.pixels
        self._held[place.whose] -= place.pixels
        self._held += Counter()  # drops those that hold nothing
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting:
            place = min(self._waiting, key=lambda each: self._held[each.whose])
            if place.pixels > self._free:
                break
            self._waiting.remove(place)
            if not place.turn.done():
                self._free -= place.pixels
                self._held[place.whose] += place.pixels
                place.turn.set_result(None)


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
    async def room(self, pixels: int, whose: str = "") -> AsyncIterator[Lane]:
        """The lane for a photo of that size, which has its room while the block is open.

        Args:
            whose: a model's name, so that one which is slow does not keep the room to itself.
        """
        lane = self.large if pixels > self._bound else self.small
        async with lane.hold(pixels, whose):
            yield lane
