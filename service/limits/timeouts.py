"""Limits on the time of a request: its deadline, and the disconnection of its caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request

from service.core.errors import DeadlineExceeded


@asynccontextmanager
async def deadline(seconds: float, *, of: float | None = None) -> AsyncIterator[None]:
    """Limit the time of the block.

    Args:
        of: seconds of the whole request, for the error's message, if the block has only the rest.

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
    """Cancel the block when the caller disconnects. The request's body must have been read before.

    Raises:
        ClientDisconnect: as soon as the connection is closed; what the block awaits is cancelled.
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
