"""A stream of requests over gRPC: several in work at a time, each answered in its turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack
from typing import Any, Final

from service.core.errors import TooSlow, Unavailable

AT_ONCE: Final = 8
"""Number of requests of a stream that are in work at a time. The next one is read when an answer
has been written, so that a caller who does not read cannot send more."""


async def answer_in_order(
    read: Callable[[], Coroutine[Any, Any, object]],
    answer: Callable[[bytes, ExitStack], Coroutine[Any, Any, bytes]],
    write: Callable[[bytes], Awaitable[None]],
    *,
    stopping: asyncio.Event,
    idle_seconds: float,
) -> None:
    """Answer the messages of a stream in their order, until its caller or the service ends it.

    Args:
        read: returns the next message; what is not bytes is the end.
        answer: returns the answer to a message. The stack is closed when it has been written.
        write: writes an answer.
        stopping: set when the service shuts down: no further message is taken then.
        idle_seconds: longest time in which no message comes while no answer is due.

    Raises:
        TooSlow: if no message comes in that time.
        Unavailable: if the service shuts down before the caller has ended the stream; the answers
            that were due are written.
    """
    turns: deque[tuple[asyncio.Task[bytes], ExitStack]] = deque()
    reading: asyncio.Task[object] | None = None
    stop = asyncio.create_task(stopping.wait())
    ended = False
    try:
        while (takes_more := not (ended or stopping.is_set())) or turns:
            if takes_more and reading is None and len(turns) < AT_ONCE:
                reading = asyncio.create_task(read())
            first = turns[0][0] if turns else None
            await asyncio.wait(
                [task for task in ((first, reading, stop) if takes_more else (first,)) if task],
                timeout=None if first else idle_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if first and first.done():
                _, held = turns.popleft()
                with held:
                    await write(first.result())
            elif stopping.is_set():
                continue
            elif reading and reading.done():
                message, reading = reading.result(), None
                if isinstance(message, bytes):
                    held = ExitStack()
                    turns.append((asyncio.create_task(answer(message, held)), held))
                else:
                    ended = True
            else:
                raise TooSlow(f"no message of the stream has arrived for {idle_seconds:g} s")
        if not ended:
            raise Unavailable("the service is shutting down; open another stream")
    finally:
        left: list[asyncio.Task[Any]] = [stop, *(task for task, _ in turns)]
        if reading:
            left.append(reading)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for _, held in turns:
            held.close()
