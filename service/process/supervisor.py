"""The supervisor: the process that holds the port and replaces the serving process when it dies.

    code = supervise(listening, settings, entries)

The serving process may be killed, run out of memory or stop answering; the port stays open. While
no process serves, the supervisor answers each request at once with a 503, but `/healthz` with 200.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader, StreamWriter
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from time import monotonic
from typing import Final

from service.core.errors import Unavailable
from service.core.logs import logging_set_up
from service.core.settings import Settings
from service.models.catalog import ModelEntry
from service.process.heartbeat import END, LISTENING, READY, Heartbeat
from service.process.listener import accept_no_more

BEAT_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 30.0
"""Time without a message after which the serving process is taken for stuck and killed."""
FIRST_WORD_SECONDS: Final = 120.0
"""Time without a first message after which a new process is taken for stuck and killed."""
MOST_FAILED_STARTS: Final = 3
DECIDED: Final = (0, 2)
"""Exit codes that end the supervisor: a clean stop, and a mistake in the configuration."""
AT_ONCE: Final = 1
"""Exit code of a stop that a second signal forced. It counts as one only if a signal came, because
Python also exits so after an uncaught exception."""
STAND_IN_SECONDS: Final = 5.0
LINGER_SECONDS: Final = 0.1
CHUNK: Final = 65_536
log = logging.getLogger(__name__)


def supervise(listening: socket.socket, settings: Settings, entries: tuple[ModelEntry, ...]) -> int:
    """Run `service.process.server` in a process of its own, and start another one whenever it dies,
    until it ends with a code of `DECIDED` or a signal stops it.

    Returns:
        The exit code: 0 after a stop, 1 after a forced stop or if `MOST_FAILED_STARTS` processes in
        a row ended before they were ready, 2 after a mistake in the configuration.
    """
    with logging_set_up(settings):
        return asyncio.run(_Supervisor(listening, settings, entries).run())


class _Supervisor:
    def __init__(
        self, listening: socket.socket, settings: Settings, entries: tuple[ModelEntry, ...]
    ) -> None:
        self._listening = listening
        self._what = (settings, entries, listening)
        # The forkserver has imported torch already, so a new process starts at once.
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(["service.process.server", "timm"])
        self._process: BaseProcess | None = None
        self._stand_in: asyncio.Server | None = None
        self._stopping = False
        self._told: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        failed_starts = 0
        while True:
            code, was_ready = await self._one_life()
            if self._stopping or code in DECIDED:
                await self._close()
                return code if code in (*DECIDED, AT_ONCE) else 0
            failed_starts = 0 if was_ready else failed_starts + 1
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            log.error("the serving process ended %s; another one starts", how)
            if failed_starts == MOST_FAILED_STARTS:
                log.error("%d processes in a row ended before they were ready", failed_starts)
                return 1

    def _stop(self) -> None:
        # Two equal signals in a row might be merged into one, so the second one is another.
        number = signal.SIGINT if self._stopping else signal.SIGTERM
        if not self._stopping:
            self._stopping = True
            self._answering = asyncio.create_task(self._answer())
        self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        if self._process and self._process.pid and self._process.is_alive():
            os.kill(self._process.pid, number)

    async def _one_life(self) -> tuple[int, bool]:
        """Run one serving process; return its exit code, and whether it was ever ready."""
        loop = asyncio.get_running_loop()
        receiving, sending = self._context.Pipe(duplex=False)
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        await self._answer()
        self._process = self._context.Process(target=_live, args=(*self._what, sending))
        await asyncio.to_thread(self._process.start)
        sending.close()
        if self._stopping:
            self._pass_on(signal.SIGTERM)
        sentinel = self._process.sentinel
        loop.add_reader(receiving.fileno(), _hear, receiving, heard, loop)
        # A process that a model has forked keeps the pipe open; the sentinel still reports the end.
        loop.add_reader(sentinel, _note_end, sentinel, heard, loop)
        try:
            ready = await self._listen_to(heard)
        finally:
            loop.remove_reader(sentinel)
            loop.remove_reader(receiving.fileno())
            receiving.close()
        await self._answer()
        await asyncio.to_thread(self._process.join)
        assert self._process.exitcode is not None
        return self._process.exitcode, ready

    async def _listen_to(self, heard: asyncio.Queue[bytes]) -> bool:
        """Handle the messages of the serving process until it ends, and kill it if it is silent for
        too long. Return whether it was ever ready."""
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
                latest = monotonic()
            if word == LISTENING and not self._stopping and self._stand_in:
                stand_in, self._stand_in = self._stand_in, None
                await accept_no_more(stand_in.sockets)
                stand_in.close()
            ready = ready or word == READY
            if latest and monotonic() - latest > SILENT_SECONDS:
                log.error("the serving process is silent for %.0f s", SILENT_SECONDS)
                self._process.kill()
            elif not latest and monotonic() - begun > FIRST_WORD_SECONDS:
                log.error("the serving process has not begun within %.0f s", FIRST_WORD_SECONDS)
                self._process.kill()

    async def _answer(self) -> None:
        """Start to answer requests in place of a serving process, unless that has been done."""
        if self._stand_in is None:
            self._stand_in = await asyncio.start_server(self._tell, sock=self._listening.dup())

    async def _close(self) -> None:
        """Close the port, after every connection that it has accepted is answered."""
        if self._stand_in:
            await accept_no_more(self._stand_in.sockets)
            self._stand_in.close()
        while True:
            try:
                accepted, _ = self._listening.accept()
            except OSError:  # no connection is waiting
                break
            reader, writer = await asyncio.open_connection(sock=accepted)
            self._told.add(asyncio.create_task(self._say_unavailable(reader, writer)))
        self._listening.close()
        await asyncio.sleep(LINGER_SECONDS)  # for connections accepted a moment ago
        if self._told:
            await asyncio.wait(self._told, timeout=STAND_IN_SECONDS)

    async def _tell(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._told.add(task)
        try:
            await self._say_unavailable(reader, writer)
        finally:
            self._told.discard(task)

    async def _say_unavailable(self, reader: StreamReader, writer: StreamWriter) -> None:
        what = "shutting down" if self._stopping else "starting"
        problem = Unavailable(f"the service is {what}; try again", retry_after=1)
        status, (headers, body) = "503 Service Unavailable", problem.written()
        with suppress(OSError, TimeoutError, IncompleteReadError, LimitOverrunError):
            async with asyncio.timeout(STAND_IN_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                if head.split(b" ")[1:2] == [b"/healthz"]:
                    status, body = "200 OK", b'{"status": "ok"}'
                    headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
                lines = (f"{name}: {value}\r\n" for name, value in headers.items())
                writer.write(
                    f"HTTP/1.1 {status}\r\n{''.join(lines)}Connection: close\r\n\r\n".encode()
                )
                if not head.startswith(b"HEAD"):
                    writer.write(body)
                writer.write_eof()
                while await reader.read(CHUNK):  # an unread body would reset the connection
                    pass
        writer.close()


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
    loop.call_later(LINGER_SECONDS, heard.put_nowait, END)  # its last messages may be unread


def _live(
    settings: Settings,
    entries: tuple[ModelEntry, ...],
    listening: socket.socket,
    sending: Connection,
) -> None:
    """Run a serving process."""
    from service.process.server import run  # imports torch, which the supervisor does not need

    os.setsid()  # a terminal's Ctrl-C reaches the supervisor alone, which passes it on
    raise SystemExit(run(settings, entries, listening, Heartbeat(sending)))
