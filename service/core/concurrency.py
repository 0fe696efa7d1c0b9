"""Concurrent work on many images, each with its own result or problem.

    async with explain_many(items, work, at_once=32) as results:
        async for item, result in results:
            ...

The module does not depend on where it runs: the folder command, jobs and Ray's actors use it. Items
are taken from their source only when there is room for them, so a source may be endless.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
)
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

from service.core.errors import Problem, unexpected

Item = TypeVar("Item")
Result = TypeVar("Result")


@asynccontextmanager
async def explain_many(
    items: Iterable[Item] | AsyncIterable[Item],
    work: Callable[[Item], Coroutine[Any, Any, Result]],
    *,
    at_once: int,
) -> AsyncIterator[AsyncIterator[tuple[Item, Result | Problem]]]:
    """Work on `at_once` items at a time, and yield an iterator of items and their results in the
    order in which they finish.

    The result of an item that fails is its problem. Exceptions of the source propagate. Leaving the
    block cancels the unfinished work and waits for its end.
    """
    async with aclosing(_explain_many(items, work, at_once)) as results:
        yield results


async def _explain_many(
    items: Iterable[Item] | AsyncIterable[Item],
    work: Callable[[Item], Coroutine[Any, Any, Result]],
    at_once: int,
) -> AsyncGenerator[tuple[Item, Result | Problem]]:
    source = aiter(items if isinstance(items, AsyncIterable) else _each(items))
    running: dict[asyncio.Task[Result], Item] = {}
    upcoming: asyncio.Task[Item] | None = asyncio.create_task(_next(source))
    try:
        while upcoming or running:
            waited: set[asyncio.Task[Result] | asyncio.Task[Item]] = {*running}
            if upcoming and len(running) < at_once:
                waited.add(upcoming)
            done, _ = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if upcoming in done:
                assert upcoming is not None
                try:
                    item = upcoming.result()
                except StopAsyncIteration:
                    upcoming = None
                else:
                    running[asyncio.create_task(work(item))] = item
                    upcoming = asyncio.create_task(_next(source))
            for task in [task for task in running if task in done]:
                yield running.pop(task), _settled(task)
    finally:
        left: list[asyncio.Task[Result] | asyncio.Task[Item]] = [*running]
        if upcoming:
            left.append(upcoming)
        for unfinished in left:
            unfinished.cancel()
        if left:
            await asyncio.wait(left)
        for ended in left:
            if not ended.cancelled():
                ended.exception()  # or else the event loop logs it as never retrieved


async def _each(items: Iterable[Item]) -> AsyncGenerator[Item]:
    for item in items:
        yield item


async def _next(source: AsyncIterator[Item]) -> Item:
    return await anext(source)


def _settled(task: asyncio.Task[Result]) -> Result | Problem:
    try:
        return task.result()
    except Problem as problem:
        return problem
    except (Exception, asyncio.CancelledError):  # cancelled, but not by this module
        return unexpected("an image")
