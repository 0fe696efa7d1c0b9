"""Clients that say what they like when they like, and a server of little patience."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send

from service.core.errors import QueueFull
from service.core.metrics import Metrics
from service.http.guard import RawHeaders
from service.limits.admission import Admission, AdmittedRequest
from service.limits.counters import LocalCounts
from service.process.connections import BoundedProtocol, ConnectionLimits
from tests.waiting import until_async

SHORT = 0.4
"""Seconds to receive, and to send."""
KEEP_ALIVE = 1
SOON = SHORT + KEEP_ALIVE + 1.5
"""By then whoever is cut off has been, on a machine that is busy with other things."""
LATER = 1.4
"""Seconds that the app takes to answer /later."""
VAST = 20_000_000
KERNEL_BYTES = 65_536
"""That the kernel takes on either side before anybody reads."""
HELLO = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = b"GET /large/%d HTTP/1.1\r\nHost: x\r\n\r\n"


def upload(length: int, path: bytes = b"/length") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path, length)


class Caller:
    """A client that says what it likes, when it likes."""

    def __init__(self, one: socket.socket) -> None:
        self._socket = one
        self._loop = asyncio.get_running_loop()
        self._rest = b""

    async def say(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._socket, data)

    async def drip(self, data: bytes, pieces: Iterable[bytes], pause: float) -> None:
        """Say some of it at once, and then piece by piece with a pause before each."""
        await self.say(data)
        for piece in pieces:
            await asyncio.sleep(pause)
            await self.say(piece)

    async def hear(self, size: int = 1 << 20) -> bytes:
        """What has come, b"" once the server has hung up."""
        try:
            return await asyncio.wait_for(self._loop.sock_recv(self._socket, size), SOON)
        except ConnectionResetError:
            return b""

    async def answer(self) -> tuple[bytes, bytes]:
        """The head and the body of the next answer."""
        head, body = self._rest, b""
        while b"\r\n\r\n" not in head:
            data = await self.hear()
            assert data, head
            head += data
        head, _, body = head.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        while len(body) < length and (data := await self.hear()):
            body += data
        self._rest = body[length:]
        return head, body[:length]

    async def takes_its_time_over(self, size: int) -> None:
        """Read steadily, a megabyte at a time, what is a second's work and more."""
        got = 0
        for mark in range(1_000_000, size + 1, 1_000_000):
            while got < mark:
                data = await self.hear()
                assert data, f"cut off after {got} bytes"
                got += len(data)
            await asyncio.sleep(SHORT / 8)

    async def is_hung_up_on(self) -> bool:
        """Whether it is, whatever comes before."""
        try:
            while await self.hear():
                pass
        except TimeoutError:
            return False
        return True

    async def hung_up_on(self) -> None:
        assert await self.hear() == b""

    async def refused(self) -> tuple[int, str]:
        """The status and the type of the problem with which the server hangs up."""
        head, body = await self.answer()
        assert b"content-type: application/problem+json" in head
        assert b"connection: close" in head
        await self.hung_up_on()
        problem = json.loads(body)
        assert int(head.split()[1]) == problem["status"]
        return problem["status"], problem["type"].rpartition(":")[2]


@dataclass
class House:
    """A server, and what happened in it."""

    address: tuple[str, int]
    server: uvicorn.Server
    refusals: list[str] = field(default_factory=list)
    order: list[str | float] = field(default_factory=list)
    """Of refusals, marks, and connections that the end of the server closes if they are idle."""
    refused: asyncio.Event = field(default_factory=asyncio.Event)
    unsent: int = 0
    """Bytes of answers that nobody had read at the last refusal."""
    heard: list[dict[str, Any]] = field(default_factory=list)
    """By the app."""
    asked: list[str] = field(default_factory=list)
    """Of the app: paths."""
    places: list[AdmittedRequest] = field(default_factory=list)
    """The statuses are those of requests for /length."""
    handed: list[object] = field(default_factory=list)
    """Places that the app has found with its requests."""
    admission: Admission = field(default_factory=lambda: Admission(99, metrics=Metrics()))
    full: bool = False
    """Whether there is room for /length no more."""
    callers: list[socket.socket] = field(default_factory=list)

    async def caller(self) -> Caller:
        one = socket.socket()
        for each in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            one.setsockopt(socket.SOL_SOCKET, each, KERNEL_BYTES)
        one.setblocking(False)
        self.callers.append(one)
        await asyncio.get_running_loop().sock_connect(one, self.address)
        return Caller(one)

    def refuse(self, reason: str) -> None:
        connections = self.server.server_state.connections
        self.unsent = max(each.transport.get_write_buffer_size() for each in connections)
        self.refusals.append(reason)
        self.order.append(reason)
        self.refused.set()

    def mark(self, *seconds: float) -> None:
        """Note in `order` when so many seconds have passed. The loop runs its timers in the order
        of their times, however late it is, so a refusal has its place between two marks."""
        for each in seconds:
            asyncio.get_running_loop().call_later(each, self.order.append, each)

    def listens(self) -> bool:
        return any(each.is_serving() for each in self.server.servers)

    def enter(self, path: bytes, headers: RawHeaders) -> dict[str, Any] | None:
        if self.full and path == b"/length":
            raise QueueFull("full", retry_after=1)
        if path != b"/length":
            return None
        place = self.admission.enter("m")
        self.places.append(place)
        return {"place": place}

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.append(scope["path"])
        self.handed.append(scope["state"].get("place"))
        _, what, *sizes = scope["path"].split("/")
        pieces = [bytes(int(size)) for size in sizes]
        if what == "later":
            await asyncio.sleep(LATER)
        if what in ("length", "later"):
            while not self.heard or self.heard[-1].get("more_body"):
                self.heard.append(dict(await receive()))
            if self.heard[-1]["type"] == "http.disconnect":
                return
            pieces = [str(sum(len(message["body"]) for message in self.heard)).encode()]
        length = str(sum(map(len, pieces))).encode()
        headers = [(b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def serving(
    receive_seconds: float = SHORT, keep_alive: int = KEEP_ALIVE
) -> AsyncIterator[House]:
    """At its end every connection is gone, and with it its timers."""
    made: list[BoundedProtocol] = []
    times = ConnectionLimits(receive_seconds, SHORT, 5, 100_000, lambda reason: None, LocalCounts())

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)

        class Remembered(BoundedProtocol):
            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                made.append(self)
                super().connection_made(transport)

            def _close_if_idle(self) -> None:
                house.order.append("closed if idle")
                super()._close_if_idle()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await house.app(scope, receive, send)

        config = uvicorn.Config(
            app,
            http=Remembered,
            ws="none",
            lifespan="off",
            log_config=None,
            timeout_keep_alive=keep_alive,
            timeout_graceful_shutdown=2,
        )
        house = House(listening.getsockname(), uvicorn.Server(config))
        Remembered.limits = replace(times, refused=house.refuse, enter=house.enter)
        task = asyncio.create_task(house.server.serve([listening]))
        await until_async(lambda: house.server.started)
        try:
            yield house
        finally:
            for one in house.callers:
                one.close()
            await until_async(lambda: not house.server.server_state.connections)
            for each in house.server.servers:
                each.close()
            task.cancel()
            await asyncio.wait([task])
        assert [(each._receiving, each._sending) for each in made] == [(None, None)] * len(made)
