"""Work on many things, some of them at a time, however many there are."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
)
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from itertools import islice
from threading import Event
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Rest = Callable[[float], object]


def require_some(in_flight: int) -> None:
    if in_flight < 1:
        raise ValueError(f"in_flight is {in_flight}; it should be 1 or more")


def in_threads(
    work: Callable[[Item, Rest], Result], items: Iterable[Item], in_flight: int, *, ordered: bool
) -> Generator[tuple[Item, Result]]:
    """Each item with its result: in the items' order, or as each is ready. Items are read when
    there is room for them, at most `in_flight` ahead of what was taken, in the caller's thread:
    generators may expect no other one. Whatever is ready is given before the next item is read.
    Where that fails, the results of what was read before come first, and then the error.

    Args:
        work: gets an item, and how to sleep: it ends where nobody waits for the result any more.
    """
    left = Event()

    def rest(seconds: float) -> None:
        if left.wait(seconds):
            raise CancelledError

    source = iter(items)
    pending: dict[Future[Result], Item] = {}  # in the items' order
    # A list never keeps anybody waiting: there, room is filled after each result.
    at_hand = isinstance(items, (list, tuple))
    broken: list[Exception] = []  # the source's error
    more = True
    with ThreadPoolExecutor(in_flight, thread_name_prefix="gradcam-client") as pool:
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
                    pending[pool.submit(work, item, rest)] = item
                while ready := _ready(pending, ordered, more and len(pending) < in_flight):
                    for future in ready:
                        result = future.result()
                        yield pending.pop(future), result
                    if at_hand:
                        break
            if broken:
                raise broken.pop()
        finally:
            left.set()
            for future in pending:
                future.cancel()


def _ready(pending: Iterable[Future[Result]], ordered: bool, room: bool) -> list[Future[Result]]:
    """Those that are done and have their turn; it waits for one only if there is no room."""
    wanted = list(islice(pending, 1 if ordered else None))
    done = wait(wanted, 0 if room else None, FIRST_COMPLETED).done
    return [future for future in wanted if future in done]


async def in_tasks(
    work: Callable[[Item], Awaitable[Result]],
    items: Iterable[Item] | AsyncIterable[Item],
    in_flight: int,
    *,
    ordered: bool,
) -> AsyncGenerator[tuple[Item, Result]]:
    """As `in_threads`, in tasks of the running loop."""
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
