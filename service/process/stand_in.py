"""Answers for the service while no process serves: each request gets a 503, `/healthz` a 200."""

from __future__ import annotations

import asyncio
import socket
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader, StreamWriter
from contextlib import suppress
from typing import Final

from service.core.errors import Unavailable
from service.process.listener import accept_no_more

SECONDS: Final = 5.0
"""Longest time that a request may take."""
LINGER_SECONDS: Final = 0.1
CHUNK: Final = 65_536


class StandIn:
    """Accepts connections at the port in place of a process that serves.

    Args:
        listening: the port's socket.
    """

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._server: asyncio.Server | None = None
        self._told: set[asyncio.Task[None]] = set()
        self.stopping = False
        """Whether the answers say that the service shuts down, instead of that it starts."""

    async def begin(self) -> None:
        """Start to answer, unless that has been done."""
        if self._server is None:
            self._server = await asyncio.start_server(self._tell, sock=self._listening.dup())

    async def end(self) -> None:
        """Leave all further connections to others."""
        if self._server is not None:
            server, self._server = self._server, None
            await accept_no_more(server.sockets)
            server.close()

    async def close(self) -> None:
        """Close the port, after every connection that it has accepted is answered."""
        await self.end()
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
            await asyncio.wait(self._told, timeout=SECONDS)

    async def _tell(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._told.add(task)
        try:
            await self._say_unavailable(reader, writer)
        finally:
            self._told.discard(task)

    async def _say_unavailable(self, reader: StreamReader, writer: StreamWriter) -> None:
        what = "shutting down" if self.stopping else "starting"
        problem = Unavailable(f"the service is {what}; try again")
        status, (headers, body) = "503 Service Unavailable", problem.written()
        with suppress(OSError, TimeoutError, IncompleteReadError, LimitOverrunError):
            async with asyncio.timeout(SECONDS):
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
