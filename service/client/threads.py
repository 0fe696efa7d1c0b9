"""Thread helpers for the blocking client; tasks.py has the counterparts for the async client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import ParamSpec, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

Later = Callable[[], Result]
"""A function that returns a result when it is called."""


class _Worker(threading.local):
    """Thread-local state of a worker thread.

    Attributes:
        cancelled: event that is set when the thread's result is no longer needed; None in threads
            that do not belong to `concurrent_map`.
    """

    cancelled: threading.Event | None = None


_worker = _Worker()


def sleep(seconds: float) -> None:
    """Pause the thread.

    Raises:
        CancelledError: in a thread of `concurrent_map`, as soon as its result is no longer needed.
    """
    if _worker.cancelled is None:
        time.sleep(seconds)
    elif _worker.cancelled.wait(seconds):
        raise CancelledError


def call_blocking(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """Call the function in this thread, which may block."""
    return function(*args, **kwargs)


def iterate_blocking(items: Iterator[Item]) -> Iterator[Item]:
    """Return the iterator unchanged: this thread may block while it reads the items."""
    return items


def call_early(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Later[Result]:
    """Call the function now, so that its errors are raised now, and return a function that returns
    the result."""
    result = function(*args, **kwargs)
    return lambda: result


def concurrent_map(
    work: Callable[[Item], Result], items: Iterable[Item], in_flight: int, *, ordered: bool
) -> Generator[tuple[Item, Result]]:
    """Yield each item with its result. Items are read in the caller's thread, because generators
    may not work in another one. At most `in_flight` items are read ahead of the results that were
    taken, and results that are ready are yielded before the next item is read. If reading an item
    fails, the results of the items before it are yielded first, and then the error is raised.

    Args:
        work: runs in a thread. If its result is no longer needed, its `sleep` raises.
        in_flight: largest number of items in work.
        ordered: whether results are yielded in the order of the items; otherwise each result is
            yielded as soon as it is ready.
    """
    cancelled = threading.Event()

    def begin() -> None:
        _worker.cancelled = cancelled

    source = iter(items)
    pending: dict[Future[Result], Item] = {}  # in the items' order
    # Reading the next item of a list never blocks, so the room is filled after each result.
    at_hand = isinstance(items, (list, tuple))
    broken: list[Exception] = []  # the source's error
    more = True
    with ThreadPoolExecutor(in_flight, "gradcam-client", begin) as pool:
        try:
            while more or pending:
                try:
                    item = next(source)
                except StopIteration:
                    more = False
                except Exception as error:
                    more = False
                    broken.append(error)
                else:
                    pending[pool.submit(work, item)] = item
                while ready := _ready(pending, ordered, more and len(pending) < in_flight):
                    for future in ready:
                        result = future.result()
                        yield pending.pop(future), result
                    if at_hand:
                        break
            if broken:
                raise broken.pop()
        finally:
            cancelled.set()
            for future in pending:
                future.cancel()


def _ready(pending: Iterable[Future[Result]], ordered: bool, room: bool) -> list[Future[Result]]:
    """Return the futures that are done and may be yielded now. If there is no room for another
    item, wait until there is one."""
    wanted = list(islice(pending, 1 if ordered else None))
    done = wait(wanted, 0 if room else None, FIRST_COMPLETED).done
    return [future for future in wanted if future in done]
