"""The guard: lets a request in or refuses it, before its body is read.

What is checked, in this order: the key is known; its scopes allow the request; there is a place
among the requests in progress; the key's rate is kept. Then the body is bounded while it is read.
A caller without a key cannot see which model is busy, and a request that finds no place does not
count for its key's rate.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.core.errors import (
    BodyTooLarge,
    Forbidden,
    Problem,
    QueueFull,
    RateLimited,
    Unauthorized,
)
from service.core.metrics import Metrics
from service.http.page import PATHS
from service.limits.admission import Admission
from service.limits.body_budget import BodyBudget
from service.limits.keys import ApiKey, Keys
from service.limits.rates import Rates

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", *PATHS})
READING = ("GET", "HEAD")
SEND_ONE = "send an API key: Authorization: Bearer KEY, or X-API-Key: KEY"
REASONS: Final[Mapping[type[Problem], str]] = {
    Unauthorized: "no key",
    Forbidden: "scope",
    RateLimited: "rate",
}
"""Problem → reason in the metrics. `Admission` counts its refusals itself."""
RawHeaders = Sequence[tuple[bytes, bytes]]


class Guard:
    """Decides which requests are let in. Without a file of keys, it lets in every request for which
    there is a place, except those that need the scope `admin`.

    A key is sent as `Authorization: Bearer KEY`, as `X-API-Key: KEY`, or, by browsers, as the
    password of `Authorization: Basic`.

    Args:
        web_pages: whether pages of other origins may ask. They need CORS headers to read a
            refusal, which only the app writes.
    """

    def __init__(
        self, *, keys: Keys | None, rates: Rates, admission: Admission, web_pages: bool
    ) -> None:
        self._keys = keys
        self._rates = rates
        self._admission = admission
        self._web_pages = web_pages

    def let_in(self, method: str, path: str, headers: Headers) -> dict[str, Any]:
        """Let a request in.

        Returns:
            What the app has to know of it, as entries of the scope's `state`: `key`, the name of
            its key, and `admin`, whether the key has that scope, if the service has keys; and
            `place`, the place that it has taken, or None if it needs none. `Observe` frees it.

        Raises:
            Unauthorized, Forbidden, QueueFull, RateLimited: if it is refused.
        """
        if path in OPEN_PATHS:
            return {"place": None}
        return self.enter(path, self.authorise(method, path, headers))

    def authorise(self, method: str, path: str, headers: Headers) -> ApiKey | None:
        """Return the key of a request; None if the service has no keys.

        Raises:
            Unauthorized, Forbidden: if there is no key, or it does not allow the request.
        """
        key = self._key_of(headers)
        self._require_scope(key, method, path)
        return key

    def enter(self, path: str, key: ApiKey | None) -> dict[str, Any]:
        """Give a request of a key its place, as `let_in` does.

        Raises:
            QueueFull, RateLimited: if there is none.
        """
        place = self._admission.enter(path.encode(), key.name if key else "")
        try:
            self._count(key)
        except RateLimited:
            if place:
                place.leave()
            raise
        told = {} if key is None else {"key": key.name, "admin": "admin" in key.scopes}
        return {**told, "place": place}

    def let_in_early(self, target: bytes, headers: RawHeaders) -> dict[str, Any] | None:
        """Let in a request for work on a model as soon as its head is here, before the app hears of
        it; a refusal under overload then costs little. None if the app has to decide.

        Raises:
            QueueFull: if there is no place.
        """
        path = unquote_to_bytes(target.partition(b"?")[0])
        if not self._admission.is_work(path):
            return None
        if self._web_pages and any(name == b"origin" for name, _ in headers):
            return None
        try:
            return self.let_in("POST", path.decode("utf-8", "replace"), Headers(raw=list(headers)))
        except QueueFull:
            raise
        except Problem:  # the app refuses it again, with a request id and a line in the log
            return None

    def _key_of(self, headers: Headers) -> ApiKey | None:
        """Return the key of a request; None if the service has no keys."""
        if self._keys is None:
            return None
        sent = presented(headers)
        if key := self._keys.of(sent):
            return key
        if sent:
            raise Unauthorized(f"the API key that was sent is not known; {SEND_ONE}")
        raise Unauthorized(SEND_ONE)

    def _require_scope(self, key: ApiKey | None, method: str, path: str) -> None:
        wants_admin = path.startswith("/v2/repository/models/") or (
            path.startswith("/v1/models")
            and (method == "DELETE" or (method == "POST" and ":" not in path))
        )
        if key is None:
            if wants_admin:
                raise Forbidden(
                    "models are added and removed with an API key of scope 'admin', and this "
                    "service has no keys: see GRADCAM_KEYS"
                )
            return
        needed = "admin" if wants_admin else "explain"
        if needed not in key.scopes and (wants_admin or method not in READING):
            raise Forbidden(
                f"the key {key.name!r} has the scope {', '.join(sorted(key.scopes))}, and this "
                f"needs {needed}"
            )

    def _count(self, key: ApiKey | None) -> None:
        if key is None or key.rate is None:
            return
        wait = self._rates.hit(key.rate, key.name)
        if wait is not None:
            raise RateLimited(
                f"the key {key.name!r} may make {key.rate}; try again later",
                retry_after=math.ceil(wait),
            )


class Guarded:
    """Middleware that asks the guard, unless the connection has asked it already."""

    def __init__(self, app: ASGIApp, *, guard: Guard, metrics: Metrics) -> None:
        self._app = app
        self._guard = guard
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and "place" not in scope["state"]:
            try:
                told = self._guard.let_in(scope["method"], scope["path"], Headers(scope=scope))
            except Problem as problem:
                if reason := REASONS.get(type(problem)):
                    self._metrics.rejected.labels(reason=reason).inc()
                raise
            scope["state"].update(told)
        await self._app(scope, receive, send)


class LimitBody:
    """Refuses a request whose body is larger than allowed, because of its Content-Length or as soon
    as too many bytes have arrived. It also refuses a request if the bodies of all requests together
    are larger than the service may hold.

    Args:
        max_bytes: maximum bytes of a body.
        body_budget: counts the bytes of all bodies in memory.
        streamed: path → maximum bytes of a body that is written to the disk as it arrives. The
            route itself counts the bytes that it holds in memory.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_bytes: int,
        body_budget: BodyBudget,
        streamed: Mapping[str, int],
        metrics: Metrics,
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._streamed = streamed
        self._body_budget = body_budget
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        claimed = Headers(scope=scope).get("content-length", "")
        streams = scope["path"] in self._streamed
        most = self._streamed[scope["path"]] if streams else self._max_bytes
        received = 0

        async def receive_bounded() -> Message:
            nonlocal received
            if claimed.isdecimal() and int(claimed[:20]) > most:
                raise self._too_large(f"the body has {claimed[:20]} bytes", most)
            message = await receive()
            received += len(message.get("body", b""))
            if received > most:
                raise self._too_large("the body is larger", most)
            if not streams:
                hold(received)
            return message

        with self._body_budget.share() as hold:
            scope["state"]["hold"] = hold.add
            await self._app(scope, receive_bounded, send)

    def _too_large(self, what: str, most: int) -> BodyTooLarge:
        self._metrics.rejected.labels(reason="body too large").inc()
        return BodyTooLarge(f"{what}; at most {most} bytes are allowed")


def presented(headers: Headers) -> str:
    """Return the key that a request carries, or "" if it carries none."""
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except ValueError:  # the value is not base64 of UTF-8
            return ""
    return headers.get("x-api-key", "")
