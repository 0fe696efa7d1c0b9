"""What the blocking client needs of threads: tasks.py has the same for the awaited client."""

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
"""It gives a result when it is called."""


class _Worker(threading.local):
    """What a thread knows of the work that it does.

    Attributes:
        cancelled: is set when nobody waits for the result any more; None in a thread that is not
            one of `concurrent_map`.
    """

    cancelled: threading.Event | None = None


_worker = _Worker()


def sleep(seconds: float) -> None:
    """Pauses the thread.

    Raises:
        CancelledError: in a thread of `concurrent_map`, as soon as nobody waits for its result.
    """
    if _worker.cancelled is None:
        time.sleep(seconds)
    elif _worker.cancelled.wait(seconds):
        raise CancelledError


def call_blocking(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """Calls the function here: this thread waits anyway."""
    return function(*args, **kwargs)


def iterate_blocking(items: Iterator[Item]) -> Iterator[Item]:
    """Gives the items as they are: this thread reads them."""
    return items


def call_early(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Later[Result]:
    """Calls the function now, so that its errors are raised now. Returns a function that gives the
    result."""
    result = function(*args, **kwargs)
    return lambda: result


def concurrent_map(
    work: Callable[[Item], Result], items: Iterable[Item], in_flight: int, *, ordered: bool
) -> Generator[tuple[Item, Result]]:
    """Gives each item with its result: in the items' order, or as each is ready. Items are read
    when there is room for them, at most `in_flight` ahead of what was taken, in the caller's
    thread: generators may expect no other one. Whatever is ready is given before the next item is
    read. Where reading fails, the results of what was read before come first, and then the error.

    Args:
        work: runs in a thread. Where nobody waits for the result any more, its `sleep` ends.
    """
    cancelled = threading.Event()

    def begin() -> None:
        _worker.cancelled = cancelled

    source = iter(items)
    pending: dict[Future[Result], Item] = {}  # in the items' order
    # A list never keeps anybody waiting: there, room is filled after each result.
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
    """Those that are done and have their turn; it waits for one only if there is no room."""
    wanted = list(islice(pending, 1 if ordered else None))
    done = wait(wanted, 0 if room else None, FIRST_COMPLETED).done
    return [future for future in wanted if future in done]
