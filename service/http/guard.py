"""The guard: lets a request in or refuses it, before its body is read.

What is checked, in this order: the caller is known; a route answers the request; the caller's
scopes allow that route; there is a place among the requests in progress; the caller's rate is kept.
A caller without a key cannot see which routes there are or which model is busy, and a request that
finds no place does not count for its caller's rate.

Who the callers are, a feature says (`identify` in `service.http.adapter`). What a route requires
stands with its handler (`service.http.access`). A request that no declared route answers goes no
further, so that a route cannot be reached without its declaration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.core.errors import (
    Forbidden,
    MalformedRequest,
    Problem,
    QueueFull,
    RateLimited,
    Unauthorized,
)
from service.core.metrics import Metrics
from service.http.access import Access, AccessTable, Caller, Identify
from service.limits.admission import Admission

REASONS: Final[Mapping[type[Problem], str]] = {
    Unauthorized: "no key",
    Forbidden: "scope",
    RateLimited: "rate",
}
"""Problem → reason in the metrics. `Admission` counts its refusals itself."""
FROM_BROWSERS: Final = (b"origin", b"sec-fetch-site")
TIMEOUT: Final = "x-request-timeout"
"""Header with the seconds that a caller allows."""
RawHeaders = Sequence[tuple[bytes, bytes]]


class Guard:
    """Decides which requests are let in.

    Args:
        table: the access of the app's routes.
        identify: returns who sends a request. Without it, every request is let in for which there
            is a place, except those that need the scope `admin`.
        native: returns the path of the route that answers a request, by the path and the headers
            with which it came: a platform prescribes paths of its own.
    """

    def __init__(
        self,
        *,
        table: AccessTable,
        identify: Identify | None,
        admission: Admission,
        native: Callable[[str, Headers], str] = lambda path, headers: path,
    ) -> None:
        self._table = table
        self._native = native
        self._caller_of: Callable[[Headers], Caller | None] = identify or (lambda headers: None)
        self._admission = admission

    def let_in(self, method: str, path: str, headers: Headers, state: dict[str, Any]) -> None:
        """Let a request in, and write what the app has to know of it into the `state` of its scope:
        what `enter` returns, and `model`, on which it asks for work. A refused request has the
        names of its key and its model there, for the log.

        Raises:
            Unauthorized, Forbidden, QueueFull, RateLimited: if it is refused.
            UnknownRoute, MethodNotAllowed: if no route answers it.
        """
        found = self._table.lookup(method, path)
        caller = None if found and found[0].scope == "open" else self._caller_of(headers)
        if caller:
            state["key"] = caller.name
        if found is None:
            if caller:
                caller.count()
            if not self._table.is_redirected(path):
                raise self._table.refusal(method, path)
            state["place"] = None
            return
        access, model = found
        access.require(caller)
        state["model"] = model
        state.update(self.enter(access, model, caller, allowed_seconds(headers)))

    def access_of(self, method: str, path: str) -> Access:
        """Return what a route requires.

        Raises:
            UnknownRoute, MethodNotAllowed: if there is no such route.
        """
        if found := self._table.lookup(method, path):
            return found[0]
        raise self._table.refusal(method, path)

    def authorise(self, access: Access, headers: Headers) -> Caller | None:
        """Return who sends a request; None if nobody has to say it, or no feature identifies them.

        Raises:
            Unauthorized, Forbidden: if the caller is unknown, or may not send the request.
        """
        caller = None if access.scope == "open" else self._caller_of(headers)
        access.require(caller)
        return caller

    def enter(
        self, access: Access, model: str | None, caller: Caller | None, seconds: float
    ) -> dict[str, Any]:
        """Give an authorised request its place, and count it for its caller's rate.

        Args:
            model: name of the model on which it asks for work; None if it asks for none.
            seconds: seconds that its caller allows; infinity if that is not said.

        Returns:
            Entries of the scope's `state`: `key`, the name of its key, and `admin`, whether the key
            has that scope, if the service has keys; `access`, what its route declares; and `place`,
            the place that it has taken, or None if it needs none. `Observe` frees it.

        Raises:
            QueueFull, RateLimited: if there is no place, or the caller has had its requests.
        """
        place = None
        if model is not None:
            place = self._admission.enter(model, caller.name if caller else "", seconds=seconds)
        try:
            if caller:
                caller.count()
        except RateLimited:
            if place:
                place.leave()
            raise
        told = {"key": caller.name, "admin": "admin" in caller.scopes} if caller else {}
        return {**told, "access": access, "place": place}

    def let_in_early(self, target: bytes, headers: RawHeaders) -> dict[str, Any] | None:
        """Let in a POST request for work on a model as soon as its head is here, before the app
        hears of it; a refusal under overload then costs little. None if the app has to decide.

        Raises:
            QueueFull: if there is no place.
        """
        path = unquote_to_bytes(target.partition(b"?")[0]).decode("utf-8", "replace")
        known = Headers(raw=list(headers))
        found = self._table.lookup("POST", self._native(path, known))
        if found is None or not found[0].work:
            return None
        # The app knows which pages may ask, and adds the headers with which they read a refusal.
        if any(name in FROM_BROWSERS for name, _ in headers):
            return None
        try:
            access, model = found
            caller = self.authorise(access, known)
            return {"model": model, **self.enter(access, model, caller, allowed_seconds(known))}
        except QueueFull:
            raise
        except Problem:  # the app refuses it again, with a request id and a line in the log
            return None


class Guarded:
    """Middleware that asks the guard, unless the connection has asked it already."""

    def __init__(self, app: ASGIApp, *, guard: Guard, metrics: Metrics) -> None:
        self._app = app
        self._guard = guard
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and "place" not in scope["state"]:
            try:
                headers = Headers(scope=scope)
                self._guard.let_in(scope["method"], scope["path"], headers, scope["state"])
            except Problem as problem:
                if reason := REASONS.get(type(problem)):
                    self._metrics.rejected.labels(reason=reason).inc()
                raise
        await self._app(scope, receive, send)


def asked_seconds(headers: Headers) -> float:
    """Return the seconds that a caller allows, or infinity if it states none.

    Raises:
        MalformedRequest: if `X-Request-Timeout` is not a number of seconds.
    """
    sent = headers.get(TIMEOUT)
    if sent is None:
        return math.inf
    try:
        seconds = float(sent)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise MalformedRequest(
            f"X-Request-Timeout is {sent[:40]!r}; it should be seconds, a number above 0"
        )
    return seconds


def allowed_seconds(headers: Headers) -> float:
    """Return the seconds that a caller allows; infinity also if they cannot be read, for which the
    request is refused later."""
    try:
        return asked_seconds(headers)
    except MalformedRequest:
        return math.inf
