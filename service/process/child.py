"""A process that the supervisor runs, and that reports to the supervisor that it is alive."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from time import monotonic
from typing import Any, Final

from service.process.heartbeat import END, LISTENING, MISTAKE, READY, STATE, Readiness

BEAT_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 30.0
"""A process that has sent no message for this time counts as stuck, and is killed."""
FIRST_WORD_SECONDS: Final = 120.0
"""A new process that has not sent its first message in this time counts as stuck, and is killed."""
LINGER_SECONDS: Final = 0.1
log = logging.getLogger(__name__)


class Child:
    """A process of one kind, which may be started again after it has ended.

    Args:
        name: name of the process in the log.
        context: how the process is started.
        target: the function that runs in the process. Its arguments are `arguments`, whether the
            process replaces another one, and the connection for its messages.
        listening: called when the process accepts connections.
        ended: called with the process's id when it has ended.
    """

    def __init__(
        self,
        name: str,
        context: BaseContext,
        target: Callable[..., None],
        arguments: tuple[Any, ...],
        *,
        listening: Callable[[Child], Awaitable[None]] | None = None,
        ended: Callable[[Child, int], Awaitable[None]],
    ) -> None:
        self.name = name
        self._context = context
        self._target = target
        self._arguments = arguments
        self._listening = listening
        self._ended = ended
        self._process: BaseProcess | None = None
        self._again = False
        self._signal: int | None = None
        self.readiness: Readiness | None = None
        """The readiness that the process reported last; None if it has reported none or has
        ended."""
        self.is_ready = False
        """Whether the process has reported that it is ready, and has not ended."""
        self._heard_at = 0.0
        self.mistake: str | None = None
        """The mistake in the configuration that ended the process."""

    def signal(self, number: int) -> None:
        """Send a signal to the process now, or as soon as the process has started."""
        self._signal = number
        if self._process and self._process.pid and self._process.is_alive():
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Kill the process, if there is one."""
        if self._process and self._process.pid and self._process.is_alive():
            self._process.kill()

    @property
    def silent_seconds(self) -> float:
        """Seconds since the last message of the process. A process that has begun sends one every
        quarter of a second."""
        return monotonic() - self._heard_at

    async def live(self) -> tuple[int, bool]:
        """Run one process until it ends. Return its exit code, and whether it was ever ready.

        Raises:
            OSError: if the process cannot be started.
        """
        loop = asyncio.get_running_loop()
        receiving, sending = self._context.Pipe(duplex=False)
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        # In mypy's stubs, the base class has no `Process`.
        process = self._context.Process(  # type: ignore[attr-defined]
            target=self._target, args=(*self._arguments, self._again, sending), name=self.name
        )
        await asyncio.to_thread(process.start)
        self._again = True
        self._process = process
        sending.close()
        if self._signal is not None:
            self.signal(self._signal)
        sentinel = process.sentinel
        loop.add_reader(receiving.fileno(), _hear, receiving, heard, loop)
        # If the model has forked a process, that one keeps the pipe open. The sentinel still
        # reports the end.
        loop.add_reader(sentinel, _note_end, sentinel, heard, loop)
        try:
            ready = await self._listen_to(heard)
        finally:
            self.readiness, self.is_ready = None, False
            loop.remove_reader(sentinel)
            loop.remove_reader(receiving.fileno())
            receiving.close()
        await self._ended(self, process.pid or 0)
        await asyncio.to_thread(process.join)
        assert process.exitcode is not None
        return process.exitcode, ready

    async def _listen_to(self, heard: asyncio.Queue[bytes]) -> bool:
        """Handle the messages of the process until it ends. Kill it if it sends none for too long.
        Return whether it was ever ready."""
        assert self._process
        ready, begun = False, monotonic()
        latest: float | None = None
        while True:
            word = b""
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_SECONDS):
                    word = await heard.get()
            if word == END:
                return ready
            if word:
                latest = self._heard_at = monotonic()
            if word.startswith(STATE):
                state = json.loads(word.removeprefix(STATE))
                self.readiness = Readiness(state["why_not"], tuple(state["models"]))
            if word == LISTENING and self._listening:
                await self._listening(self)
            if word == READY and not ready:
                ready = self.is_ready = True
                log.info("%s is ready", self.name)
            if word.startswith(MISTAKE):
                self.mistake = word.removeprefix(MISTAKE).decode()
            if latest and monotonic() - latest > SILENT_SECONDS:
                log.error("%s has been silent for %.0f s", self.name, SILENT_SECONDS)
                self._process.kill()
            elif not latest and monotonic() - begun > FIRST_WORD_SECONDS:
                log.error("%s did not begin within %.0f s", self.name, FIRST_WORD_SECONDS)
                self._process.kill()


def _hear(
    receiving: Connection, heard: asyncio.Queue[bytes], loop: asyncio.AbstractEventLoop
) -> None:
    try:
        heard.put_nowait(receiving.recv_bytes())
    except (EOFError, OSError):
        loop.remove_reader(receiving.fileno())
        heard.put_nowait(END)


def _note_end(sentinel: int, heard: asyncio.Queue[bytes], loop: asyncio.AbstractEventLoop) -> None:
    loop.remove_reader(sentinel)
    # The end is reported later, because the last messages may still be unread.
    loop.call_later(LINGER_SECONDS, heard.put_nowait, END)
