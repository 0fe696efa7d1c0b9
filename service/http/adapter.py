"""What a feature adds to the app: routes of other resources, another way in, such as a protocol, or
who the callers are.

An adapter is a function that takes the parts of the app and returns what it adds to the app, or
None where the settings do not ask for it. `service.features.FEATURES` names them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fastapi import APIRouter
from starlette.datastructures import Headers
from starlette.types import ASGIApp

from service.backend.interface import Backend
from service.core.errors import ConfigError
from service.core.metrics import Metrics
from service.core.settings import CoreSettings
from service.http.access import Identify
from service.http.guard import Guard
from service.http.reception import Choose, Fetch, Reception
from service.limits.admission import Admission
from service.limits.body_budget import BodyBudget
from service.limits.counters import ServiceCounts
from service.models.catalog import ModelEntry
from service.pipeline.pipeline import Pipeline

Settings = TypeVar("Settings", bound=CoreSettings)
Middleware = tuple[Callable[..., ASGIApp], Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class AppParts:
    """The parts of the app, which adapters share."""

    settings: CoreSettings
    entries: Sequence[ModelEntry]
    """The configured models, which may be added again after they were removed."""
    manager: Backend
    metrics: Metrics
    counts: ServiceCounts
    pipeline: Pipeline
    reception: Reception
    body_budget: BodyBudget
    admission: Admission
    shared: Path | None
    """The folder that the processes of the service share; None if this process is alone."""
    is_first: bool
    """Whether this process does what one process of a service does for all."""

    def settings_of(self, kind: type[Settings]) -> Settings:
        """Return the settings as those of a feature: they are those of all features."""
        assert isinstance(self.settings, kind)
        return self.settings


@dataclass(frozen=True, eq=False)
class Added:
    """What an adapter adds to the app.

    Args:
        routers: routes, each of which declares its access.
        native: returns the path of the route that answers a request, by the path and the headers
            with which it came; None for a path that is not the adapter's.
        middleware: classes of middleware with their options, from the innermost to the outermost.
        inner: likewise, around the guard and inside of what logs requests and answers problems.
        running: returns what is open while the app runs, such as a port of its own.
        failure: returns the mistake in the configuration that shows only now, if there is one: the
            process then ends.
        fetch: fetches the images that are given by address. One adapter alone gives it.
        choose: completes the instances of each request before the work on them.
        identify: returns who sends a request. One adapter alone gives it. Without it, everybody may
            explain, and nobody may administrate.
        state: entries of the app's `state`, for whoever holds the app.
        security_schemes: the ways to send what identifies a caller, as OpenAPI describes them.
        probes: its routes that monitoring asks every few seconds. They have no trace, and a line in
            the log only if it shows all details.
        plain: what its paths begin with, if their clients read `error` of a problem document only
            where the media type is plain JSON.
        tags: the names of groups of its routes in OpenAPI, with a sentence about each.
        max_streamed_bytes: maximum bytes of a body that a route of the adapter writes to the disk
            as it arrives.
    """

    routers: Sequence[APIRouter] = ()
    native: Callable[[str, Headers], str | None] = lambda path, headers: None
    middleware: Sequence[Middleware] = ()
    inner: Sequence[Middleware] = ()
    running: Callable[[Guard], AbstractAsyncContextManager[Any]] | None = None
    failure: Callable[[], ConfigError | None] = lambda: None
    fetch: Fetch | None = None
    choose: Choose | None = None
    identify: Identify | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    security_schemes: Mapping[str, Any] = field(default_factory=dict)
    probes: Sequence[str] = ()
    plain: Sequence[str] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    max_streamed_bytes: int = 0


Adapter = Callable[[AppParts], Added | None]
