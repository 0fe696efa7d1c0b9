"""Middleware around the app: request ids, metrics, HEAD, unexpected errors, the size of bodies,
sending in time, and the path in front of the service's own."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection
from time import monotonic, perf_counter
from typing import Final
from uuid import uuid4

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.core.errors import (
    PROBLEM_JSON,
    BodyTooLarge,
    DeadlineExceeded,
    Problem,
    Unavailable,
    unexpected,
)
from service.core.metrics import Metrics
from service.core.tracing import request_span
from service.http.encodings import Decoded
from service.limits.body_budget import BodyBudget

access_log = logging.getLogger("service.access")

HARMLESS = re.compile(r"^[A-Za-z0-9._:-]{1,128}\Z")
"""What callers may put into a line of the log: ids of requests, and names of models."""
HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::[0-9]{1,5})?")
"""The value of `Host`: a name or an address, and a port (RFC 9110, section 7.2)."""
PIECE: Final = 256 * 1024
"""Bytes of an answer that are written at a time."""
BAD_REQUEST = 400
CLIENT_LEFT = 499  # only in metrics and log: the client has disconnected
METHOD_NOT_ALLOWED = 405
CONVERTER = re.compile(r":\w+\}")
"""The name of the converter in a route's parameter, such as `:model}`: no part of the address."""
OF_ENCODED: Final = (b"content-encoding", b"content-length")
SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class ObserveRequests:
    """Gives every request an id, counts and logs it, and answers errors that inner layers raise.

    A defect of the service gets a 500 with the id; a request that the end of the process interrupts
    gets a 503. A caller's own `X-Request-ID` is kept if it is harmless in a log line.

    `told` in the scope's state takes what inner layers tell of the request, for its line in the
    log: `model`, `images`, `methods`, `problem`, and `timings`. `is_probe` says whether monitoring
    asks.

    Args:
        probes: routes that monitoring asks every few seconds: see `Added`.
        plain: what the paths begin with whose problems are plain JSON: see `Added`.
    """

    def __init__(
        self, app: ASGIApp, *, metrics: Metrics, probes: Collection[str], plain: tuple[str, ...]
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._probes = probes
        self._plain = plain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if HARMLESS.match(given) else str(uuid4())
        is_probe = scope["path"] in self._probes
        state = {"request_id": request_id, "told": {}, "is_probe": is_probe}
        scope.setdefault("state", {}).update(state)
        started = perf_counter()
        status = 0

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                is_problem = headers.get("content-type") == PROBLEM_JSON
                if is_problem and scope["path"].startswith(self._plain):
                    headers["Content-Type"] = "application/json"
                for name, value in SECURITY.items():
                    headers.setdefault(name, value)
            await send(message)

        with (
            structlog.contextvars.bound_contextvars(request_id=request_id),
            request_span(scope["method"], scope["headers"], is_probe=is_probe) as tell,
        ):
            try:
                await self._app(scope, receive, send_named)
            except ClientDisconnect:
                status = CLIENT_LEFT
            except Problem as problem:  # raised by inner middleware
                await _send_problem(problem, scope, send_named)
            except Exception:
                failure = unexpected(f"request {request_id}", "the service failed")
                if status:
                    raise  # the answer has begun, and can only be cut off
                failure.detail += f" under {request_id}"
                await _send_problem(failure, scope, send_named)
            except asyncio.CancelledError:
                if status:
                    raise
                await _send_problem(
                    Unavailable("the service stopped before the answer was ready; try again"),
                    scope,
                    send_named,
                )
            finally:
                if place := scope["state"].get("place"):
                    place.leave()
                route = CONVERTER.sub("}", getattr(scope.get("route"), "path", "unmatched"))
                tell(route, status, request_id)
                self._note(scope, route, status, perf_counter() - started)

    def _note(self, scope: Scope, route: str, status: int, seconds: float) -> None:
        answered = route != "unmatched" and status != METHOD_NOT_ALLOWED
        method = scope["method"] if answered else "any"  # callers may invent methods
        self._metrics.requests.labels(route=route, method=method, status=str(status)).inc()
        self._metrics.request_seconds.labels(route=route).observe(seconds)
        level = logging.DEBUG if route in self._probes else logging.INFO
        state = scope["state"]
        named = state.get("model") or scope.get("path_params", {}).get("model", "")
        more = {"key": state.get("key"), "model": HARMLESS.match(named) and named, **state["told"]}
        if timings := more.pop("timings", None):
            more["phases"] = timings.milliseconds
        told = {
            "route": route,
            "method": method,
            "status": status,
            "ms": round(seconds * 1000, 1),
            **{name: each for name, each in more.items() if each},
        }
        access_log.log(level, "request", extra=told)


class Deliver:
    """Sends large answers in pieces, each when the client has read the one before, and ends those
    that are not sent when the time of their request is over.

    `until` in the scope's state is that time, of `time.monotonic`; without it there is no limit. An
    answer that has not begun by then becomes a problem of status 504; one that has begun is cut
    off, so that the client sees that it is not whole.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        is_problem = False

        async def send_in_time(message: Message) -> None:
            nonlocal is_problem
            until = state.get("until")
            if message["type"] == "http.response.start":
                is_problem = message["status"] >= BAD_REQUEST
                if until is not None and not is_problem and monotonic() > until:
                    raise DeadlineExceeded("the answer was made too late; ask for a smaller one")
            if until is None or is_problem:
                await _send_pieces(message, send)
                return
            try:
                async with asyncio.timeout(max(until - monotonic(), 0)):
                    await _send_pieces(message, send)
            except TimeoutError:
                self._metrics.rejected.labels(reason="answer not read").inc()
                if abort := state.get("abort"):
                    abort()
                raise ClientDisconnect from None

        await self._app(scope, receive, send_in_time)


async def _send_pieces(message: Message, send: Send) -> None:
    body = message.get("body", b"")
    if len(body) <= PIECE:
        await send(message)
        return
    for start in range(0, len(body), PIECE):
        more = start + PIECE < len(body) or message.get("more_body", False)
        await send({**message, "body": body[start : start + PIECE], "more_body": more})


class LimitBody:
    """Refuses a request whose body is larger than allowed, because of its Content-Length or as soon
    as too many bytes have arrived. It also refuses a request if the bodies of all requests together
    are larger than the service may hold. A body with a Content-Encoding is decoded here, and its
    decoded bytes count.

    Args:
        max_bytes: maximum bytes of a body.
        body_budget: counts the bytes of all bodies in memory.
        max_streamed_bytes: maximum bytes of a body that its route writes to the disk as it arrives.
            The route itself counts the bytes that it holds in memory.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_bytes: int,
        body_budget: BodyBudget,
        max_streamed_bytes: int = 0,
        metrics: Metrics,
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._max_streamed_bytes = max_streamed_bytes
        self._body_budget = body_budget
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        claimed = headers.get("content-length", "")
        access = scope.get("state", {}).get("access")
        streams = access is not None and access.streams
        most = self._max_streamed_bytes if streams else self._max_bytes
        encoding = ", ".join(headers.getlist("content-encoding")).strip()
        if encoding.lower() == "identity":
            encoding = ""
        if encoding:  # what is read has neither this encoding nor this length
            scope["headers"] = [pair for pair in scope["headers"] if pair[0] not in OF_ENCODED]
        received = 0

        async def receive_bounded() -> Message:
            nonlocal received, receive, encoding
            if claimed.isdecimal() and int(claimed[:20]) > most:
                raise self._too_large(f"the body has {claimed[:20]} bytes", most)
            if encoding:
                receive, encoding = Decoded(receive, encoding), ""
            message = await receive()
            received += len(message.get("body", b""))
            if received > most:
                raise self._too_large("the body is larger", most)
            if not streams:
                hold(received)
            return message

        with self._body_budget.share() as hold:
            scope.setdefault("state", {})["hold"] = hold.add
            await self._app(scope, receive_bounded, send)

    def _too_large(self, what: str, most: int) -> BodyTooLarge:
        self._metrics.rejected.labels(reason="body too large").inc()
        return BodyTooLarge(f"{what}; at most {most} bytes are allowed")


class AnswerHead:
    """Answers HEAD wherever GET answers, with the same status and headers and without a body.

    The work of the GET is cancelled at the first part of its body, so that a long stream is not
    waited for.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        begun = asyncio.Event()
        inside: Scope = {**scope, "method": "GET"}

        async def send_head(message: Message) -> None:
            if begun.is_set():
                return
            if message["type"] == "http.response.body":
                message = {"type": "http.response.body", "body": b""}
                begun.set()
            await send(message)

        answering = asyncio.ensure_future(self._app(inside, receive, send_head))
        waiting = asyncio.ensure_future(begun.wait())
        try:
            await asyncio.wait({answering, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            if "route" in inside:  # for the log
                scope["route"] = inside["route"]
            for task in (answering, waiting):
                task.cancel()
            await asyncio.gather(answering, waiting, return_exceptions=True)


class Prefixed:
    """Innermost middleware, which puts the path that a proxy has removed in front of the path
    again, as ASGI requires of applications below a root path, and in front of `Location`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        prefix: str = scope.get("root_path", "")
        if scope["type"] != "http" or not prefix:
            await self._app(scope, receive, send)
            return
        inside: Scope = {**scope, "path": prefix + scope["path"]}
        if "raw_path" in scope:
            inside["raw_path"] = prefix.encode() + scope["raw_path"]

        async def send_prefixed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if headers.get("location", "").startswith("/"):
                    headers["Location"] = prefix + headers["location"]
            await send(message)

        try:
            await self._app(inside, receive, send_prefixed)
        finally:
            if "route" in inside:  # for the log
                scope["route"] = inside["route"]


async def _send_problem(problem: Problem, scope: Scope, send: Send) -> None:
    scope["state"]["told"]["problem"] = problem.type()
    headers, body = problem.written()
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
