"""How long a request is worked on: until its deadline, or until its caller leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request

from service.core.errors import DeadlineExceeded


@asynccontextmanager
async def deadline(seconds: float, *, of: float | None = None) -> AsyncIterator[None]:
    """
    Args:
        of: how many there were in all, if the block has what is left of them.

    Raises:
        DeadlineExceeded: if the block takes longer.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise DeadlineExceeded(
            f"the answer was not ready after {of or seconds:g} s; "
            "send fewer or smaller images, or a smaller budget"
        ) from None


@asynccontextmanager
async def while_connected(request: Request) -> AsyncIterator[None]:
    """Work for a caller who waits; the body must have been read.

    Raises:
        ClientDisconnect: as soon as the connection is closed, in the midst of the block: what it
            waits for is withdrawn.
    """
    worker = asyncio.current_task()
    assert worker
    left = False

    async def watch() -> None:
        nonlocal left
        while (await request.receive())["type"] != "http.disconnect":
            pass
        left = True
        worker.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if left and not worker.uncancel():
            raise ClientDisconnect from None
        raise
    finally:
        watcher.cancel()
