"""What each route requires of its callers: declared with its handler, found by method and path."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from starlette.datastructures import Headers
from starlette.routing import BaseRoute

from service.core.errors import Forbidden, MethodNotAllowed, Problem, UnknownRoute

Handler = TypeVar("Handler", bound=Callable[..., Any])
Scope = Literal["open", "read", "explain", "admin"]
ORDER: Final = ("GET", "HEAD", "POST", "DELETE")
"""Methods in the order in which a 405 lists them."""


@dataclass(frozen=True)
class Caller:
    """Who sends a request: the name and the scopes of a key, and what counts a request of it, or
    raises RateLimited if the key has had as many as it may."""

    name: str
    scopes: frozenset[str]
    count: Callable[[], None]


Identify = Callable[[Headers], Caller]
"""Returns who sends a request, by its headers; raises Unauthorized if it does not know them."""


@dataclass(frozen=True)
class Access:
    """What a route requires of a request.

    Args:
        scope: `open`: nothing; `read`: any key; `explain`, `admin`: a key of that scope. Where the
            service has no keys, `open`, `read` and `explain` are allowed.
        work: whether the request takes a place among those in progress for a model, the path
            parameter `model`.
        streams: whether the handler writes the body to the disk as it arrives.
        without_keys: whether the route is allowed where the service has no keys even though its
            scope is `admin`, because a platform authenticates its callers.
    """

    scope: Scope
    work: bool = False
    streams: bool = False
    without_keys: bool = False

    def require(self, caller: Caller | None) -> None:
        """Raise Forbidden if a caller, None where nobody is known, may not ask the route."""
        if caller is None:
            if self.scope == "admin" and not self.without_keys:
                raise Forbidden(
                    "models are added and removed with an API key of scope 'admin', and this "
                    "service has no keys: see GRADCAM_KEYS"
                )
        elif self.scope != "read" and self.scope not in caller.scopes:
            raise Forbidden(
                f"the key {caller.name!r} has the scope {', '.join(sorted(caller.scopes))}, and "
                f"this needs {self.scope}"
            )


def needs(
    scope: Scope,
    *,
    work: bool = False,
    streams: bool = False,
    without_keys: bool = False,
) -> Callable[[Handler], Handler]:
    """Declare the `Access` of all routes that have this handler: a function, or the app of a
    mount."""

    def declare(handler: Handler) -> Handler:
        handler.access = Access(scope, work, streams, without_keys)  # type: ignore[attr-defined]
        return handler

    return declare


class AccessTable:
    """The access of all routes of an app.

    Raises:
        TypeError: if a route declares no access, or asks for work on a model that its path does not
            name.
    """

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        declared = [_Declared.of(route) for route in flat(routes)]
        self._patterns = {
            method: [
                (route.path.partition("{")[0], route.pattern.fullmatch, route.access)
                for route in declared
                if "{" in route.path and method in route.methods
            ]
            for method in frozenset().union(*(route.methods for route in declared))
        }
        self._fixed: dict[str, dict[str, Access]] = {
            route.path: {} for route in declared if "{" not in route.path
        }
        for path, by_method in self._fixed.items():
            for route in declared:
                if route.pattern.fullmatch(path):
                    for method in route.methods:
                        by_method.setdefault(method, route.access)

    def lookup(self, method: str, path: str) -> tuple[Access, str | None] | None:
        """Return the access of the route that answers a request, and the name of the model on which
        it asks for work. None if no route answers it."""
        if method == "HEAD":  # `AnswerHead` answers it wherever GET is answered
            method = "GET"
        fixed = self._fixed.get(path)
        if fixed is not None:
            return (fixed[method], None) if method in fixed else None
        for prefix, fullmatch, access in self._patterns.get(method, ()):
            if path.startswith(prefix) and (found := fullmatch(path)):
                return access, found["model"] if access.work else None
        return None

    def methods(self, path: str) -> list[str]:
        """Return the methods that a path answers, HEAD included."""
        return [method for method in ORDER if self.lookup(method, path)]

    def is_redirected(self, path: str) -> bool:
        """Return whether no route answers a path, but Starlette redirects it to one that differs
        in its last slash alone."""
        other = path.rstrip("/") if path.endswith("/") else f"{path}/"
        return not self.methods(path) and bool(self.methods(other))

    def refusal(self, method: str, path: str) -> Problem:
        """Return the problem of a request that no route answers."""
        if allowed := self.methods(path):
            return MethodNotAllowed(
                f"{path[:120]} does not answer {method[:20]}, only {', '.join(allowed)}",
                allowed=allowed,
            )
        near = ":".join(path.rsplit("/", 1))  # /v1/models/m/explain
        if self.methods(near):
            return UnknownRoute(
                f"there is nothing at {path[:120]}; did you mean {near[:120]}? GET /docs shows "
                "every address"
            )
        return UnknownRoute(f"there is nothing at {path[:120]}; GET /docs shows every address")


@dataclass(frozen=True)
class _Declared:
    """A route with what it declares."""

    path: str
    pattern: re.Pattern[str]
    methods: frozenset[str]
    access: Access

    @classmethod
    def of(cls, route: Any) -> _Declared:
        # A mount has no methods: what is mounted here are files.
        path, methods = route.path_format, getattr(route, "methods", None) or {"GET"}
        access = getattr(getattr(route, "endpoint", None) or route.app, "access", None)
        if not isinstance(access, Access):
            raise TypeError(
                f"the route {path} declares no access; decorate its handler with `needs`"
            )
        if access.work and "model" not in route.path_regex.groupindex:
            raise TypeError(f"the route {path} asks for work on a model and has no {{model}}")
        return cls(path, route.path_regex, frozenset(methods), access)


def flat(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    """Yield the routes, those of included routers in place of the routers."""
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is None:
            yield route
        else:
            yield from flat(included.routes)
