"""Many images, some at a time, each with its own result or problem.

    async with explain_many(items, work, at_once=32) as results:
        async for item, result in results:
            ...

Free of any host: the folder command, jobs and Ray's actors are thin hosts around it. Items are
taken from their source only as there is room for them, so a source may be endless.
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
    """Work on `at_once` items at a time; inside the block, iterate over each item with its result
    as soon as it is there. Leaving the block withdraws what is under way and waits until it is.

    An item that fails has its problem as its result. What the source raises is raised.
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
        for each in left:
            each.cancel()
        if left:
            await asyncio.wait(left)
        for each in left:
            if not each.cancelled():
                each.exception()  # nobody wants it; unseen, the loop would tell of it


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
    except (Exception, asyncio.CancelledError):  # it was not this module that cancelled it
        return unexpected("an image")
