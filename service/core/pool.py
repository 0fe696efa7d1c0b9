"""Thread pools for blocking work."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Literal, Self, TypeVar, get_args

Result = TypeVar("Result")
Priority = Literal["interactive", "background"]
"""Whether a caller waits for the answer. Background work runs at lower priority than interactive
work."""
PRIORITIES: Final[tuple[Priority, ...]] = get_args(Priority)
NICENESS: Final[Mapping[Priority, int]] = {"interactive": 5, "background": 15}
"""Added to the niceness of a pool's threads. The event loop comes before both: under overload, its
probes and refusals would otherwise wait for the cores behind the photos."""


class Pool:
    """A pool of threads. Use it with `with`: leaving it ends the threads when their current work is
    done.

    Args:
        priority: the priority of the threads. All yield the cores to the event loop, and background
            threads to interactive ones, if the system supports priorities of single threads.
    """

    def __init__(self, name: str, threads: int, *, priority: Priority = "interactive") -> None:
        self._name = name
        self._threads = threads
        self._priority = priority

    def __enter__(self) -> Self:
        self._executor = ThreadPoolExecutor(
            self._threads,
            thread_name_prefix=self._name,
            initializer=partial(_be_nice, NICENESS[self._priority]),
        )
        return self

    def __exit__(self, *raised: object) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run `work` in one of the threads and return its result. A cancelled call ends only when
        the thread is done, because the thread still uses what it works on."""
        running = self._executor.submit(work)
        result = asyncio.wrap_future(running)
        try:
            return await asyncio.shield(result)
        except asyncio.CancelledError:
            if not running.cancel():
                await asyncio.wait([result])
                if not result.cancelled():
                    result.exception()  # or else the event loop logs it
            raise
        finally:
            # An exception refers to this frame: with the futures in it, which refer to the
            # exception, the photo that it is about would stay until the next garbage collection.
            del running, result


async def in_own_thread(name: str, work: Callable[[], Result]) -> Result:
    """Run `work` in a thread that ends with it, whether or not the caller still waits; return its
    result.

    The thread must end: OpenMP keeps the threads that it has started for a thread of ours, and
    while they and those of a worker are more than the cores, each of them sleeps after every
    operation, and a small model takes three times as long.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix=name)
    try:
        return await asyncio.get_running_loop().run_in_executor(thread, work)
    finally:
        thread.shutdown(wait=False)


def _be_nice(more: int) -> None:
    if sys.platform == "linux":  # elsewhere niceness applies to the whole process
        os.nice(more)
