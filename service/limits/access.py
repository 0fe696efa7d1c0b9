"""Authentication of requests by API key, with the scopes and the rate of each key."""

from __future__ import annotations

import base64
import math

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.core.errors import Forbidden, RateLimited, Unauthorized
from service.core.metrics import Metrics
from service.limits.keys import Key, Keys
from service.limits.rates import Rates

OPEN_PATHS = ("/healthz", "/readyz")
READING = ("GET", "HEAD")
SEND_ONE = "send an API key: Authorization: Bearer KEY, or X-API-Key: KEY"


class Access:
    """Admits requests with a key whose scopes and rate allow them. Without a file of keys, it
    admits every request except those that need the scope `admin`.

    A key is sent as `Authorization: Bearer KEY`, as `X-API-Key: KEY`, or, by browsers, as the
    password of `Authorization: Basic`.
    """

    def __init__(
        self, app: ASGIApp, *, keys: Keys | None, metrics: Metrics, rates: Rates | None = None
    ) -> None:
        self._app = app
        self._keys = keys
        self._metrics = metrics
        self._rates = rates or Rates()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            wants_admin = scope["path"].startswith("/v1/models") and (
                scope["method"] == "DELETE"
                or (scope["method"] == "POST" and ":" not in scope["path"])
            )
            if self._keys is not None:
                self._admit(self._keys, scope, wants_admin)
            elif wants_admin:
                self._metrics.rejected.labels(reason="scope").inc()
                raise Forbidden(
                    "models are added and removed with an API key of scope 'admin', and this "
                    "service has no keys: see GRADCAM_KEYS"
                )
        await self._app(scope, receive, send)

    def _admit(self, keys: Keys, scope: Scope, wants_admin: bool) -> None:
        sent = presented(Headers(scope=scope))
        key = keys.of(sent)
        if key is None:
            self._metrics.rejected.labels(reason="no key").inc()
            if sent:
                raise Unauthorized(f"the API key that was sent is not known; {SEND_ONE}")
            raise Unauthorized(SEND_ONE)
        scope["state"]["key"] = key.name
        scope["state"]["admin"] = "admin" in key.scopes
        needed = "admin" if wants_admin else "explain"
        if needed not in key.scopes and (wants_admin or scope["method"] not in READING):
            self._metrics.rejected.labels(reason="scope").inc()
            raise Forbidden(
                f"the key {key.name!r} has the scope {', '.join(sorted(key.scopes))}, and this "
                f"needs {needed}"
            )
        self._count(key)

    def _count(self, key: Key) -> None:
        if key.rate is None:
            return
        wait = self._rates.hit(key.rate, key.name)
        if wait is None:
            return
        self._metrics.rejected.labels(reason="rate").inc()
        raise RateLimited(
            f"the key {key.name!r} may make {key.rate}; try again later",
            retry_after=math.ceil(wait),
        )


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
