"""Health, readiness and metrics at a port of their own, answered by the supervisor.

The supervisor neither decodes nor computes, so no load on the service delays its answers.
"""

from __future__ import annotations

import asyncio
import json
import socket
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader, StreamWriter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from service.core.errors import MethodNotAllowed, Overloaded, Problem, Unavailable, UnknownRoute
from service.core.metrics import CONTENT_TYPE, render_folder
from service.core.settings import CoreSettings
from service.features.probes.settings import ProbeSettings

if TYPE_CHECKING:
    from service.process.heartbeat import Readiness

SECONDS: Final = 5.0
"""Longest time that a request may take."""
MOST: Final = 64
"""Largest number of connections at a time."""
REASONS: Final = {
    200: "OK",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


def asked(settings: CoreSettings) -> tuple[int, type[Probes]] | None:
    """Return the port that the supervisor opens, and what answers there; None without a port."""
    assert isinstance(settings, ProbeSettings)
    return (settings.probe_port, Probes) if settings.probe_port else None


class Probes:
    """Answers `GET /healthz`, `/readyz` and `/metrics`. Use with `async with`.

    Args:
        listening: the port's socket. It stays open.
        look: returns the readiness of the service now.
        metrics: folder of the metrics of all processes; None if there is none.
    """

    def __init__(
        self, listening: socket.socket, look: Callable[[], Readiness], metrics: Path | None
    ) -> None:
        self._listening = listening
        self._look = look
        self._metrics = metrics
        self._connections = 0

    async def __aenter__(self) -> Probes:
        self._server = await asyncio.start_server(self._serve, sock=self._listening.dup())
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._server.close()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._connections += 1
        try:
            with suppress(OSError, TimeoutError, IncompleteReadError, LimitOverrunError):
                async with asyncio.timeout(SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(await self._answered(head))
                    await writer.drain()
        finally:
            self._connections -= 1
            writer.close()

    async def _answered(self, head: bytes) -> bytes:
        """Return the whole answer to a request with that head."""
        method, target = [*head.split(b" ", 2), b""][:2]
        try:
            if self._connections > MOST:
                raise Overloaded("there are too many probes at a time", retry_after=1)
            if method not in (b"GET", b"HEAD"):
                raise MethodNotAllowed(
                    "this port answers GET and HEAD only", allowed=("GET", "HEAD")
                )
            kind, body = await self._answer(target.partition(b"?")[0])
            status, headers = 200, {"content-type": kind, "content-length": str(len(body))}
        except Problem as problem:
            status = problem.status
            headers, body = problem.written()
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        start = f"HTTP/1.1 {status} {REASONS[status]}\r\n{lines}connection: close\r\n\r\n"
        return start.encode() + (b"" if method == b"HEAD" else body)

    async def _answer(self, path: bytes) -> tuple[str, bytes]:
        """Return the media type and the body of the answer at a path.

        Raises:
            Problem: if the service is not ready, or if nothing is there.
        """
        if path == b"/metrics" and self._metrics:
            models = self._look().models
            return CONTENT_TYPE, await asyncio.to_thread(render_folder, self._metrics, models)
        if path not in (b"/healthz", b"/readyz"):
            offered = "/healthz, /readyz and /metrics" if self._metrics else "/healthz and /readyz"
            raise UnknownRoute(f"this port answers {offered} only")
        if path == b"/readyz" and (why := self._look().why_not):
            raise Unavailable(why)
        return "application/json", json.dumps({"status": "ok"}).encode()
