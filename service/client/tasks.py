"""asyncio helpers for the async client; threads.py has the counterparts for the blocking client."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
)
from functools import partial
from itertools import islice
from typing import Any, ParamSpec, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

Later = Callable[[], Awaitable[Result]]
"""A function that returns a result when it is called and awaited."""


async def sleep(seconds: float) -> None:
    """Pause the task. Cancelling the task ends the pause."""
    await asyncio.sleep(seconds)


async def call_blocking(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """Call a function that reads files or computes in another thread, so that it does not block the
    event loop."""
    return await asyncio.to_thread(function, *args, **kwargs)


async def iterate_blocking(items: Iterator[Item]) -> AsyncIterator[Item]:
    """Yield each of the items, none of which may be None. Another thread reads them."""
    while (item := await asyncio.to_thread(next, items, None)) is not None:
        yield item


def call_early(
    function: Callable[Arguments, Awaitable[Result]],
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> Later[Result]:
    """Return a function that calls `function`. The call is not made now, because this function is
    not a coroutine and cannot await it."""
    return partial(function, *args, **kwargs)


async def concurrent_map(
    work: Callable[[Item], Awaitable[Result]],
    items: Iterable[Item] | AsyncIterable[Item],
    in_flight: int,
    *,
    ordered: bool,
) -> AsyncGenerator[tuple[Item, Result]]:
    """Yield each item with its result. At most `in_flight` items are read ahead of the results that
    were taken. If reading an item fails, the results of the items before it are yielded first, and
    then the error is raised.

    Args:
        work: runs in a task of the running loop, which is cancelled if its result is no longer
            needed.
        in_flight: largest number of items in work.
        ordered: whether results are yielded in the order of the items; otherwise each result is
            yielded as soon as it is ready.
    """
    unread = aiter(items if isinstance(items, AsyncIterable) else _each(items))
    pending: dict[asyncio.Future[Result], Item] = {}  # in the items' order
    reading: set[asyncio.Future[tuple[Item] | None]] = set()  # the next item, or none
    broken: list[Exception] = []  # the source's error
    more = True
    try:
        while True:
            if more and not reading and len(pending) < in_flight:
                reading.add(asyncio.ensure_future(_next(unread)))
            wanted = list(islice(pending, 1 if ordered else None))
            awaited: list[asyncio.Future[Any]] = [*wanted, *reading]
            if not awaited:
                break
            # Waiting for both lets results through while the next item is slow to arrive.
            done, _ = await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            while reading & done:
                try:
                    read = reading.pop().result()
                except Exception as error:
                    read = None
                    broken.append(error)
                more = read is not None
                if read is not None:
                    pending[asyncio.ensure_future(work(*read))] = read[0]
            for future in wanted:
                if future in done:
                    result = future.result()
                    yield pending.pop(future), result
        if broken:
            raise broken.pop()
    finally:
        left: list[asyncio.Future[Any]] = [*pending, *reading]
        for unfinished in left:
            unfinished.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def _next(unread: AsyncIterator[Item]) -> tuple[Item] | None:
    try:
        return (await anext(unread),)
    except StopAsyncIteration:
        return None


async def _each(items: Iterable[Item]) -> AsyncIterator[Item]:
    for item in items:
        yield item
