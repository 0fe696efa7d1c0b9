"""What Ray Serve's proxy does not do by itself, done in it.

    RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=service.ray.proxy:gate

in the environment of every node of the cluster. Without it bodies are limited in the replicas
alone, while the proxy reads them into its memory as fast as they come, and what the proxy says by
itself is bare text: 429 when more requests wait than may, 408 after `request_timeout_s`, 503 where
there is no replica, 500 when one is lost.

The proxy takes the place of `service.process.protocol`. What that does and nothing does here: a
deadline for a request's head and for a reader who does not read, a least speed of bodies (the app's
own deadline ends a slow one, a 504 instead of a 408), a limit of connections, and a 431. And since
it reads bodies without waiting for the replica, a job's may be as large here as any other's.
"""

from __future__ import annotations

import os
from uuid import uuid4

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.core.errors import (
    RETRY_AFTER_SECONDS,
    DeadlineExceeded,
    InternalError,
    Problem,
    QueueFull,
    Unavailable,
    UnknownRoute,
)
from service.core.metrics import Metrics
from service.core.settings import read_settings
from service.http.middleware import REQUEST_ID, SECURITY, LimitBody
from service.limits.body_budget import BodyBudget


def gate() -> list[Middleware]:
    """The proxy calls it as it starts. Its limits come from the environment alone, and hold for
    every application behind the proxy."""
    settings = read_settings(os.environ)
    return [
        Middleware(
            Gate, max_bytes=settings.max_body_bytes, max_bytes_in_all=settings.max_bodies_bytes
        )
    ]


class Gate:
    """Around Serve's proxy: no body is larger than it may be, nobody names a request as it should
    not be named, or changes how long Serve waits, and every error is a problem."""

    STRIPPED = (b"x-request-id", b"x-request-timeout-seconds", b"x-request-disconnect-disabled")

    def __init__(self, app: ASGIApp, *, max_bytes: int, max_bytes_in_all: int) -> None:
        metrics = Metrics()
        self._app = app
        self._bounded = LimitBody(
            self._forward,
            max_bytes=max_bytes,
            body_budget=BodyBudget(max(max_bytes_in_all, max_bytes), metrics),
            streamed={},  # the proxy holds a body whole, whatever the replica does with it
            metrics=metrics,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        name = given if REQUEST_ID.match(given) else str(uuid4())
        headers = [pair for pair in scope["headers"] if pair[0] not in self.STRIPPED]
        headers.append((b"x-request-id", name.encode()))
        await self._bounded({**scope, "headers": headers}, receive, send)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem: Problem | None = None
        begun = False

        async def receive_or_leave() -> Message:
            nonlocal problem
            try:
                return await receive()
            except Problem as refused:
                problem = problem or refused
                return {"type": "http.disconnect"}  # so Serve withdraws the request

        async def send_or_replace(message: Message) -> None:
            nonlocal problem, begun
            if message["type"] == "http.response.start" and not begun:
                problem = problem or _serves_own(message)
                begun = problem is None
            if begun:
                await send(message)

        await self._app(scope, receive_or_leave, send_or_replace)
        if not begun:
            found = problem or Unavailable(
                "the replica that had the request is gone; try again",
                retry_after=RETRY_AFTER_SECONDS,
            )
            headers, body = found.written()
            name = {"X-Request-ID": Headers(scope=scope)["x-request-id"]}
            response = Response(body, found.status, {**SECURITY, **headers, **name})
            await response(scope, receive, send)


def _serves_own(start: Message) -> Problem | None:
    """What the proxy says by itself, in text, where the service would say it in a problem."""
    kind = Headers(raw=start["headers"]).get("content-type", "")
    found: dict[int, Problem] = {
        404: UnknownRoute("no application is deployed at this address"),
        408: DeadlineExceeded("the answer was not ready before Serve's request_timeout_s"),
        429: QueueFull(
            "too many requests wait for a replica; try again", retry_after=RETRY_AFTER_SECONDS
        ),
        500: InternalError("the request failed in Serve; its log has the cause"),
        503: Unavailable(
            "no replica is there to answer; try again", retry_after=RETRY_AFTER_SECONDS
        ),
    }
    return found.get(start["status"]) if kind.startswith("text/plain") else None
