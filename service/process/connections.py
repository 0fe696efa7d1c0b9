"""uvicorn's HTTP/1.1 protocol with deadlines for slow clients and limits on connections.

These limits are beneath the app, because a client that sends one byte a second, or reads none,
holds a connection that no middleware sees.
"""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from collections.abc import Callable
from dataclasses import dataclass
from random import getrandbits
from time import monotonic
from typing import Any, Final
from uuid import UUID

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.utils import get_local_addr, get_remote_addr

from service.core.errors import HeadTooLarge, MalformedRequest, Overloaded, Problem, TooSlow
from service.http.guard import RawHeaders
from service.limits.admission import AdmittedRequest
from service.limits.counters import CONNECTIONS, ServiceCounts

LEAST_RATE: Final = 64_000
"""Minimum speed of a body in bytes a second; a faster body may take any time."""
LINGER_SECONDS: Final = 0.5
MAX_HEAD: Final = 32_768
MAX_HEADERS: Final = 100
MOST_PIPELINED: Final = 8
"""Maximum number of requests of a connection that wait for the answer to an earlier one."""
FRAMING: Final = 16
"""Bytes of framing that are allowed for each byte of a chunked body."""


@dataclass(frozen=True)
class ConnectionLimits:
    """The limits of a connection.

    Args:
        receive_seconds: seconds in which a request's head and body have to arrive; the body has, in
            addition, the time that it takes at `LEAST_RATE`.
        send_seconds: seconds in which a client has to read some of an answer.
        max_connections: maximum number of connections at a time.
        max_body_bytes: maximum bytes of a body whose request has been answered already; a larger
            body ends the connection.
        refused: is called with the reason of each refusal.
        counts: counts the connections of the whole service.
        enter: `service.http.guard.Guard.let_in_early`. It is called with each POST before any other
            work, so that a refusal under overload costs little.
    """

    receive_seconds: float
    send_seconds: float
    max_connections: int
    max_body_bytes: int
    refused: Callable[[str], None]
    counts: ServiceCounts
    enter: Callable[[bytes, RawHeaders], dict[str, Any] | None] = lambda path, headers: None


class BoundedProtocol(HttpToolsProtocol):
    """One connection. A subclass sets `limits`, because uvicorn makes the instances."""

    limits: ConnectionLimits

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._receiving: TimerHandle | None = None
        self._sending: TimerHandle | None = None
        self._begun = 0.0
        self._head_bytes = 0
        self._body_bytes = 0
        self._framing_bytes = 0
        self._message = 0
        self._in_body = False
        self._refusal: Problem | None = None
        self._ending = False
        self._turned_away = False
        self._place: AdmittedRequest | None = None
        """Place of the request whose body is arriving."""
        self._lingering = False
        """Whether the last answer has been sent; what still arrives is read and dropped."""
        self._begun_message = 0
        """Number of the latest message that was passed on as a request."""
        self._last_word: Problem | None = None
        """The problem to send when all earlier requests have been answered."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # As uvicorn's, without the addresses: a refusal does without them. Each system call gives
        # the interpreter to a thread that decodes photos, and waits until it comes back.
        self.connections.add(self)
        self.transport = transport
        self.scheme = "http"
        self.flow = self._flow = Flow(transport)
        transport.set_write_buffer_limits(0)  # writing resumes only when the buffer is empty
        if self.limits.counts.add(CONNECTIONS, 1) > self.limits.max_connections:
            self._refuse(Overloaded("there are too many connections; try again", retry_after=1))
            return
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self.limits.counts.add(CONNECTIONS, -1)
        self._cancel_receiving()
        self._cancel_sending()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._last_word:
            return
        if not self._in_body:
            self._head_bytes += len(data)
            if self._receiving is None and self._idle:  # blank lines do not begin a message
                self._expect()
        message, before = self._message if self._in_body else None, self._body_bytes
        super().data_received(data)
        if message == self._message:  # all bytes belong to one body or to its chunks' framing
            self._framing_bytes += len(data) - (self._body_bytes - before)
            if self._framing_bytes > MAX_HEAD + FRAMING * self._body_bytes:
                self._refuse(_large_head(f"{self._framing_bytes} bytes behind it and more"))
        if not self._in_body and self._head_bytes > MAX_HEAD and not self.transport.is_closing():
            self._refuse(_large_head(f"{self._head_bytes} bytes and more"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unset_keepalive_if_required()
        self._body_bytes = self._framing_bytes = 0
        self._message += 1
        self._head_bytes = max(self._head_bytes, 1)
        if self._receiving is None:  # a deadline that runs already is not restarted
            self._expect()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MAX_HEAD or len(self.headers) > MAX_HEADERS:
            self._refusal = _large_head(f"{size} bytes in {len(self.headers)} headers")
            raise ValueError("the head is too large")  # uvicorn then calls send_400_response
        if len(self.pipeline) >= MOST_PIPELINED:
            self._refusal = Overloaded(
                f"more than {MOST_PIPELINED} requests of the connection wait for an earlier one",
                retry_after=1,
            )
            raise ValueError("too many requests wait")
        self._in_body = True
        room = not self.flow.write_paused and self.parser.get_method() == b"POST"
        self._place = None
        if self._idle and room:
            try:
                let_in = self.limits.enter(self.url, self.headers)
            except Problem as problem:
                self._turned_away = True
                alive = bool(self.parser.should_keep_alive()) and not self._ending
                self.transport.write(_response(problem, keep_alive=alive))
                if not alive:
                    self.linger()
                return
            if let_in:
                self._place = let_in["place"]  # the app frees it
                self.scope["state"].update(let_in)
        if self.client is None:
            self.client = self.scope["client"] = get_remote_addr(self.transport)
            self.server = self.scope["server"] = get_local_addr(self.transport)
        self.scope["state"]["abort"] = self._abort
        super().on_headers_complete()
        self.cycle.transport = _Lingering(self)  # type: ignore[assignment]
        self._begun_message = self._message
        if self._ending:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._answered and self._body_bytes > self.limits.max_body_bytes:
            self._abort()  # the client was answered, and still sends
        elif not self._turned_away:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._place:
            self._place.arrive()
            self._place = None
        if self._turned_away:
            self._turned_away = False
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        else:
            super().on_message_complete()
            if self.cycle.response_complete and not self.timeout_keep_alive_task:
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
        self._in_body = False
        self._head_bytes = 0
        self._cancel_receiving()
        if self._lingering:
            self.transport.close()

    def linger(self) -> None:
        """Close the connection when the request's body has arrived. If it were closed before, a
        client that writes before it reads would find the connection reset and never see its answer
        (RFC 9112, section 9.6)."""
        if not self._in_body or self.transport.is_closing():
            self.transport.close()
            return
        self._lingering = True
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def on_response_complete(self) -> None:
        was_last = not self.pipeline
        super().on_response_complete()
        if self._last_word and was_last and not self.transport.is_closing():
            self.transport.write(_response(self._last_word))
            self.transport.close()

    def shutdown(self) -> None:
        """Close an idle connection only after `LINGER_SECONDS`, so that a request on its way gets
        an answer."""
        self._ending = True
        if self._idle:
            self.loop.call_later(LINGER_SECONDS, self._close_if_idle)
        else:
            super().shutdown()

    @property
    def _answered(self) -> bool:
        """Whether the request whose body is arriving has been answered."""
        return self._turned_away or bool(self.cycle.response_complete)

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _close_if_idle(self) -> None:
        if self._idle and not self.transport.is_closing():
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_sending()

    def resume_writing(self) -> None:
        self._cancel_sending()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal or MalformedRequest("the request is not HTTP/1.1"))

    def _expect(self) -> None:
        """Start the deadline of the next request."""
        self._cancel_receiving()
        self._begun = self.loop.time() - self._flow.paused_seconds
        self._receiving = self.loop.call_later(self.limits.receive_seconds, self._check_receiving)

    def _check_receiving(self) -> None:
        # The time in which the server itself did not read does not count.
        allowed = self.limits.receive_seconds + self._flow.paused_seconds
        if self._in_body and not self._answered:
            allowed += self._body_bytes / LEAST_RATE
        left = self._begun + allowed - self.loop.time()
        if left > 0.001 or self._flow.read_paused:
            self._receiving = self.loop.call_later(max(left, 0.1), self._check_receiving)
        elif not self._head_bytes or (self._in_body and self._answered):
            self.transport.close()  # nothing arrived, or the request has been answered
        else:
            self._refuse(
                TooSlow(
                    f"the request had not arrived after {self.limits.receive_seconds:g} s; a body "
                    f"needs at least {LEAST_RATE} bytes a second"
                )
            )

    def _watch_sending(self) -> None:
        if self._sending is None:
            left = self.transport.get_write_buffer_size()
            self._sending = self.loop.call_later(
                self.limits.send_seconds, self._check_sending, left
            )

    def _check_sending(self, before: int) -> None:
        self._sending = None
        left = self.transport.get_write_buffer_size()
        if left and left >= before:
            self.limits.refused("answer not read")
            self._abort()
        elif left:
            self._watch_sending()

    def _cancel_receiving(self) -> None:
        if self._receiving:
            self._receiving.cancel()
            self._receiving = None

    def _cancel_sending(self) -> None:
        if self._sending:
            self._sending.cancel()
            self._sending = None

    def _abort(self) -> None:
        """End the connection at once. A request that runs must not write any more, because uvloop's
        closed transport raises an exception where asyncio's ignores it."""
        if not self._idle:
            self._disconnect()
        self.transport.abort()

    def _disconnect(self) -> None:
        self.cycle.disconnected = True
        self.cycle.message_event.set()

    def _refuse(self, problem: Problem) -> None:
        """Send the problem, unless an answer has begun, and close the connection. Earlier requests
        are answered first."""
        self._cancel_receiving()
        if self._last_word:
            return
        self.limits.refused(problem.title.lower())
        cycle = self.cycle
        answering = cycle is not None and not cycle.response_complete
        begun = self._begun_message == self._message
        if answering and (self.pipeline or not begun):
            self._last_word = problem
            if begun:
                self.pipeline.popleft()  # its body will never be complete
            return
        if not (answering and cycle.response_started):
            self.transport.write(_response(problem))
        if answering:
            self._disconnect()
        self.transport.close()


class _Lingering:
    """The transport of a request's cycle, which closes it after the answer; closing it lingers."""

    def __init__(self, protocol: BoundedProtocol) -> None:
        self._protocol = protocol

    def close(self) -> None:
        self._protocol.linger()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._protocol.transport, name)


def _large_head(what: str) -> HeadTooLarge:
    return HeadTooLarge(
        f"the request's head has {what}; at most {MAX_HEAD} bytes and {MAX_HEADERS} headers are "
        "allowed"
    )


def _response(problem: Problem, *, keep_alive: bool = False) -> bytes:
    about, body = problem.written()
    connection = "keep-alive" if keep_alive else "close"
    number = UUID(int=getrandbits(128), version=4)  # uuid4 makes a system call
    headers = {**about, "connection": connection, "x-request-id": str(number)}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return STATUS_LINE[problem.status] + lines.encode() + b"\r\n" + body


class Flow(FlowControl):
    """uvicorn's flow control that also measures how long the server itself did not read."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._paused_at = self._paused = 0.0

    def pause_reading(self) -> None:
        if not self.read_paused:
            self._paused_at = monotonic()
        super().pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused:
            self._paused += monotonic() - self._paused_at
        super().resume_reading()

    @property
    def paused_seconds(self) -> float:
        return self._paused + (monotonic() - self._paused_at if self.read_paused else 0.0)
