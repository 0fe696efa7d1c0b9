"""Middleware for Ray Serve's proxy that limits bodies and turns the proxy's errors into problems.

    RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=service.ray.proxy:gate

Set this variable in the environment of every node of the cluster. Without it, only the replicas
limit bodies, while the proxy reads them into its memory as fast as they arrive. The proxy's own
errors are then plain text: 429 if too many requests wait, 408 after `request_timeout_s`, 503 if
there is no replica, 500 if a replica is lost.

The proxy replaces `service.process.connections`. These limits of that module are missing here: the
deadlines for a request's head and for a client that does not read, the minimum speed of bodies (the
app's deadline ends a slow one with a 504 instead of a 408), the limit on connections, and the 431.
The proxy reads bodies without waiting for the replica, so a job's body has the limit of any other.
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
from service.http.middleware import HARMLESS, SECURITY, LimitBody
from service.limits.body_budget import BodyBudget
from service.settings import Settings


def gate() -> list[Middleware]:
    """Return the middleware that the proxy installs when it starts. The limits come from the
    environment only, and apply to every application behind the proxy."""
    settings = Settings.read(os.environ)
    return [
        Middleware(
            Gate, max_bytes=settings.max_body_bytes, max_bytes_in_all=settings.max_bodies_bytes
        )
    ]


class Gate:
    """Middleware around Serve's proxy. It limits bodies, replaces request ids that are not
    harmless, removes headers that change how Serve handles timeouts and disconnects, and turns
    every error into a problem."""

    STRIPPED = (b"x-request-id", b"x-request-timeout-seconds", b"x-request-disconnect-disabled")

    def __init__(self, app: ASGIApp, *, max_bytes: int, max_bytes_in_all: int) -> None:
        metrics = Metrics()
        self._app = app
        self._bounded = LimitBody(
            self._forward,
            max_bytes=max_bytes,
            body_budget=BodyBudget(max(max_bytes_in_all, max_bytes), metrics),
            metrics=metrics,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        name = given if HARMLESS.match(given) else str(uuid4())
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
                return {"type": "http.disconnect"}  # so that Serve cancels the request

        async def send_or_replace(message: Message) -> None:
            nonlocal problem, begun
            if message["type"] == "http.response.start" and not begun:
                problem = problem or _serves_own(message)
                begun = problem is None
            if begun:
                await send(message)

        await self._app(scope, receive_or_leave, send_or_replace)
        if not begun:
            problem_ = problem or Unavailable("the replica that had the request is gone; try again")
            headers, body = problem_.written()
            name = {"X-Request-ID": Headers(scope=scope)["x-request-id"]}
            response = Response(body, problem_.status, {**SECURITY, **headers, **name})
            await response(scope, receive, send)


def _serves_own(start: Message) -> Problem | None:
    """Return the problem that replaces an error which the proxy itself answers as plain text."""
    kind = Headers(raw=start["headers"]).get("content-type", "")
    problems: dict[int, Problem] = {
        404: UnknownRoute("no application is deployed at this address"),
        408: DeadlineExceeded("the answer was not ready before Serve's request_timeout_s"),
        429: QueueFull(
            "too many requests wait for a replica; try again", retry_after=RETRY_AFTER_SECONDS
        ),
        500: InternalError("the request failed in Serve; its log has the cause"),
        503: Unavailable("no replica is there to answer; try again"),
    }
    return problems.get(start["status"]) if kind.startswith("text/plain") else None
