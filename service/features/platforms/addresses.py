"""Addresses that a platform prescribes, answered by routes of the service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from starlette.types import ASGIApp, Receive, Scope, Send

from service.backend.interface import Backend
from service.core.errors import Problem
from service.features.platforms.bodies import as_instances
from service.features.platforms.settings import EXPLAIN

ANSWER: Final = "/v1/models/{model}:answer"


class PlatformAddresses:
    """Middleware that replaces the path of a request, whose body may be that of another client: see
    `service.features.platforms.bodies`.

    Args:
        routes: path → the service's own path, in which `{model}` stands for the first model.
    """

    def __init__(self, app: ASGIApp, *, routes: Mapping[str, str], manager: Backend) -> None:
        self._app = app
        self._routes = routes
        self._manager = manager

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        native = None
        if scope["type"] == "http":
            native = native_path(scope["path"], self._routes, self._manager)
        if native:
            scope = at(scope, native)
            scope.setdefault("state", {})["rewrite"] = as_instances
        await self._app(scope, receive, send)


def native_path(path: str, routes: Mapping[str, str], manager: Backend) -> str | None:
    """Return the service's own path for one that a platform prescribes; None for any other."""
    native = routes.get(path)
    model = next(iter(manager.names), "none")
    if native == EXPLAIN and answers(manager, model):
        native = ANSWER
    return native and native.replace("{model}", model)


def answers(manager: Backend, model: str) -> bool:
    """Return whether a model answers questions: an address for its explanations is then one for its
    answers."""
    try:
        return manager.replicas(model).model.answers
    except Problem:  # the route will tell it
        return False


def at(scope: Scope, path: str, **more: Any) -> Scope:
    """Return a request's scope at another path."""
    return {**scope, "path": path, "raw_path": quote(path).encode(), **more}
