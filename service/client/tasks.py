"""What the awaited client needs of asyncio: threads.py has the same for the blocking client."""

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
"""It gives a result when it is called and awaited."""


async def sleep(seconds: float) -> None:
    """Pauses the task. A cancelled task does not sleep on."""
    await asyncio.sleep(seconds)


async def call_blocking(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """Calls a function that reads files or computes, in another thread: the loop goes on."""
    return await asyncio.to_thread(function, *args, **kwargs)


async def iterate_blocking(items: Iterator[Item]) -> AsyncIterator[Item]:
    """Gives each of the items, which may not be None. Another thread reads them."""
    while (item := await asyncio.to_thread(next, items, None)) is not None:
        yield item


def call_early(
    function: Callable[Arguments, Awaitable[Result]],
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> Later[Result]:
    """Returns a function that calls this one. The call is not made now, since only one who awaits
    can make it."""
    return partial(function, *args, **kwargs)


async def concurrent_map(
    work: Callable[[Item], Awaitable[Result]],
    items: Iterable[Item] | AsyncIterable[Item],
    in_flight: int,
    *,
    ordered: bool,
) -> AsyncGenerator[tuple[Item, Result]]:
    """Gives each item with its result: in the items' order, or as each is ready. Items are read
    when there is room for them, at most `in_flight` ahead of what was taken. Where reading fails,
    the results of what was read before come first, and then the error.

    Args:
        work: runs in a task of the running loop, which is cancelled where nobody waits for the
            result any more.
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
            # An item that is long in coming holds up no result.
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
