"""The onion around the app: every request is named, counted, bounded and answered."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from time import perf_counter
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import BodyTooLarge, InternalError, Problem, Unavailable
from service.metrics import Metrics

log = logging.getLogger(__name__)

REQUEST_ID = re.compile(r"^[A-Za-z0-9._:-]{1,128}$")
CLIENT_LEFT = 499  # in the metrics alone: nobody is there to be answered
PROBLEM_JSON = "application/problem+json"


class Observe:
    """Gives every request an id, counts it, and answers where nothing inside could: a defect of
    ours is a 500 with that id, a request cut short by the end of the process a 503.

    A caller's own `X-Request-ID` is kept if it is harmless in a log line.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if REQUEST_ID.match(given) else str(uuid4())
        scope.setdefault("state", {})["request_id"] = request_id
        started = perf_counter()
        status = 0

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                headers["X-Content-Type-Options"] = "nosniff"
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except ClientDisconnect:
            status = CLIENT_LEFT
        except Exception:
            log.exception("request %s failed", request_id)
            if status:
                raise  # the answer has begun; all that is left is to cut it off
            await _send_problem(
                InternalError(f"the service failed; its log has the cause under {request_id}"),
                send_named,
            )
        except asyncio.CancelledError:
            if status:
                raise
            await _send_problem(
                Unavailable("the service stopped before the answer was ready; try again"),
                send_named,
            )
        finally:
            route = getattr(scope.get("route"), "path", "unmatched")
            method = scope["method"] if route != "unmatched" else "any"
            self._metrics.requests.labels(route=route, method=method, status=str(status)).inc()
            self._metrics.request_seconds.labels(route=route).observe(perf_counter() - started)


async def _send_problem(problem: Problem, send: Send) -> None:
    body = json.dumps(problem.body()).encode()
    headers = [
        (b"content-type", PROBLEM_JSON.encode()),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class LimitBody:
    """Ends a request whose body is larger than allowed: at its Content-Length, or as soon as more
    has streamed in, whatever it claims to be."""

    def __init__(self, app: ASGIApp, *, max_bytes: int, metrics: Metrics) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        claimed = Headers(scope=scope).get("content-length", "")
        received = 0

        async def receive_bounded() -> Message:
            nonlocal received
            if claimed.isdecimal() and int(claimed) > self._max_bytes:
                raise self._too_large(f"the body has {claimed} bytes")
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise self._too_large("the body is larger")
            return message

        await self._app(scope, receive_bounded, send)

    def _too_large(self, what: str) -> BodyTooLarge:
        self._metrics.rejected.labels(reason="body too large").inc()
        return BodyTooLarge(f"{what}; at most {self._max_bytes} bytes are allowed")
