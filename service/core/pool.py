"""Threads for what blocks."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Final, Literal, TypeVar, get_args

Result = TypeVar("Result")
Priority = Literal["interactive", "background"]
"""Whether somebody waits for the answer. Background work gives way to interactive work."""
PRIORITIES: Final[tuple[Priority, ...]] = get_args(Priority)
NICER: Final = 10


class Pool:
    """Use with `with`, or open and close it: closing ends the threads when what they do is done.

    Args:
        priority: of the threads. Those of background priority yield a core to all other threads
            that want it, where the system lets a single thread do so.
    """

    def __init__(self, name: str, threads: int, *, priority: Priority = "interactive") -> None:
        self._name = name
        self._threads = threads
        self._priority = priority

    def open(self) -> None:
        self._executor = ThreadPoolExecutor(
            self._threads,
            thread_name_prefix=self._name,
            initializer=_be_nice if self._priority == "background" else None,
        )

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Pool:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def run(self, work: Callable[[], Result]) -> Result:
        """In one of the threads. Who is cancelled goes when the thread is done: what it works on is
        held until then."""
        running = self._executor.submit(work)
        result = asyncio.wrap_future(running)
        try:
            return await asyncio.shield(result)
        except asyncio.CancelledError:
            if not running.cancel():
                await asyncio.wait([result])
                if not result.cancelled():
                    result.exception()  # nobody wants it any more
            raise


def _be_nice() -> None:
    if sys.platform == "linux":  # elsewhere niceness is the whole process's
        os.nice(NICER)
