"""Reads from places that may never answer: stores of others, folders over a network."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from service.core.errors import UnfetchableImage

READ_SECONDS: Final = 60.0
"""That one may take, its turn included."""
AT_ONCE: Final = 16


class Reads:
    """Each has a thread of its own, for which nobody waits when its time is over, or its reader has
    gone: neither another job, nor the end of the process."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(AT_ONCE)

    async def run(self, work: Callable[[], bytes], what: str) -> bytes:
        """
        Args:
            what: is read, for a sentence.

        Raises:
            UnfetchableImage: if it takes too long.
        """
        try:
            async with asyncio.timeout(READ_SECONDS):
                await self._room.acquire()
                future = asyncio.get_running_loop().create_future()
                read = threading.Thread(
                    target=self._read, args=(work, future), name=f"read {what}", daemon=True
                )
                try:
                    read.start()
                except BaseException:
                    self._room.release()
                    raise
                data: bytes = await future
                return data
        except TimeoutError:
            raise UnfetchableImage(
                f"{what} cannot be read: it has not come within {READ_SECONDS:.0f} s"
            ) from None

    def _read(self, work: Callable[[], bytes], future: asyncio.Future[bytes]) -> None:
        settle: Callable[[], None]
        try:
            settle = partial(future.set_result, work())
        except BaseException as error:
            settle = partial(future.set_exception, error)

        def end() -> None:
            self._room.release()
            if not future.done():
                settle()

        with suppress(RuntimeError):  # the loop is closed
            future.get_loop().call_soon_threadsafe(end)
