"""The FastAPI app: its lifespan, the order of its middleware, and its handlers of known errors."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from anyio import to_thread
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from PIL import Image
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Lifespan

from service import __version__
from service.backend.interface import Backend
from service.core.allocator import give_back_memory
from service.core.errors import ConfigError, MalformedRequest, Problem, UnknownRoute
from service.core.metrics import Metrics
from service.core.settings import CoreSettings
from service.core.threads import one_each
from service.http.about import PROBES, make_about_router
from service.http.access import AccessTable, needs
from service.http.adapter import Adapter, Added, AppParts, Middleware
from service.http.contract import gather_components
from service.http.documentation import DESCRIPTION, TAGS
from service.http.guard import Guard, Guarded
from service.http.middleware import AnswerHead, Deliver, LimitBody, ObserveRequests, Prefixed
from service.http.operation import Operation, make_operations_router
from service.http.reception import Reception, fetch_none
from service.http.responses import problem_response
from service.limits.adaptive_limit import allowed_by
from service.limits.admission import Admission
from service.limits.body_budget import BodyBudget
from service.limits.counters import CONNECTIONS, LocalCounts, ServiceCounts
from service.models.catalog import ModelEntry
from service.pipeline.pipeline import make_pipeline

Given = TypeVar("Given")
REST_SECONDS = 5
PARSERS = 4
"""Number of threads that parse bodies and serialise answers."""


class ModelName(StringConvertor):
    """A model's name in a path, before the colon of KServe's verbs."""

    regex = "[^/:]+"


def make_app(
    settings: CoreSettings,
    entries: Sequence[ModelEntry],
    *,
    operations: Sequence[Operation[Any, Any]],
    adapters: Sequence[Adapter],
    manager: Backend,
    metrics: Metrics,
    counts: ServiceCounts | None = None,
    shared: Path | None = None,
    is_first: bool = True,
) -> FastAPI:
    """Make the app that serves the models of a backend.

    Args:
        entries: the configured models, which may be added again after they were removed.
        operations: what the models do with images: `service.features.operations`.
        adapters: what else is added to the app: `service.features.adapters`.
        manager: the backend; the app enters it when it starts, and leaves it when it ends.
        metrics: the metrics that `GET /metrics` shows, and to which the backend adds its own.
        counts: the counts of the whole service; by default, this process is alone.
        shared: the folder that the processes of the service share; by default, this process is
            alone.
        is_first: whether this process does what one process of a service does for all, such as
            processing jobs.

    Raises:
        ConfigError: if callers should be identified, and no adapter does it, or if several adapters
            identify callers or fetch images.
    """
    register_url_convertor("model", ModelName())
    # Refuse a picture about whose size Pillow would only warn.
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    counts = counts or LocalCounts()
    metrics.count_connections = lambda: counts.total(CONNECTIONS)
    asking = next((each.name for each in operations if each.parameters.asks), None)
    pipeline = make_pipeline(settings, metrics, counts, asking)
    admission = Admission(
        settings.max_queue,
        allowed=allowed_by(settings),
        metrics=metrics,
        counts=counts,
        fitting=partial(_fitting, manager, settings),
        warmed=partial(_warmed, manager),
    )
    body_budget = BodyBudget(
        max(settings.max_bodies_bytes, settings.max_body_bytes), metrics, counts
    )
    reception = Reception(manager=manager, admission=admission, settings=settings)

    parts = AppParts(
        settings,
        entries,
        manager,
        metrics,
        counts,
        pipeline,
        reception,
        body_budget,
        admission,
        shared,
        is_first,
    )
    made = [(adapter, added) for adapter in adapters if (added := adapter(parts))]
    additions = [added for _, added in made]
    identify = _only(made, lambda added: added.identify, "identify callers")
    if settings.identifies_callers() and identify is None:
        raise ConfigError("a setting asks for keys of callers, and no feature here reads them")
    reception.fetch = _only(made, lambda added: added.fetch, "fetch images") or fetch_none
    reception.choosers = [added.choose for added in additions if added.choose]

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        to_thread.current_default_thread_limiter().total_tokens = PARSERS
        with one_each():
            async with pipeline, manager, AsyncExitStack() as scope:
                for added in additions:
                    if added.running:
                        await scope.enter_async_context(added.running(guard))
                resting = asyncio.create_task(_rest(admission), name="rest")
                scope.callback(resting.cancel)
                yield

    told = chain.from_iterable(added.tags.items() for added in additions)
    app = _described_app(lifespan, [{"name": name, "description": text} for name, text in told])
    schemes = dict(chain.from_iterable(added.security_schemes.items() for added in additions))
    app.openapi = partial(_openapi, app, schemes)  # type: ignore[method-assign]
    app.add_exception_handler(Problem, _on_problem)
    app.add_exception_handler(HTTPException, _on_http_exception)
    for router in (
        make_about_router(manager=manager, metrics=metrics),
        make_operations_router(operations, reception=reception, pipeline=pipeline),
        *chain.from_iterable(added.routers for added in additions),
    ):
        app.include_router(router)
    guard = Guard(
        table=AccessTable(app.routes),
        identify=identify,
        admission=admission,
        native=partial(_native, additions),
    )
    app.state.manager = manager
    app.state.metrics = metrics
    app.state.admission = admission
    app.state.guard = guard
    app.state.counts = counts
    app.state.failure = partial(_failure, additions)
    for name, value in chain.from_iterable(added.state.items() for added in additions):
        setattr(app.state, name, value)
    for kind, options in _middleware(parts, guard, additions):
        app.add_middleware(kind, **options)
    return app


def _warmed(manager: Backend, model: str) -> float:
    """Return the number of images that a model explains in a second; 0 if that is not known."""
    try:
        return manager.replicas(model).images_a_second
    except Problem:  # there is no such model, or it loads
        return 0.0


def _fitting(manager: Backend, settings: CoreSettings, model: str) -> int:
    """Return the number of a model's images that fit even if the queue is shorter: see
    `CoreSettings.fitting`."""
    try:
        replicas = manager.replicas(model)
    except Problem:
        return 0
    return settings.fitting("max_queue", replicas.copies * replicas.model.max_batch)


def _middleware(parts: AppParts, guard: Guard, additions: Sequence[Added]) -> Sequence[Middleware]:
    """Return the layers around the routes, from the innermost to the outermost."""
    limits = {
        "max_bytes": parts.settings.max_body_bytes,
        "body_budget": parts.body_budget,
        "max_streamed_bytes": max((added.max_streamed_bytes for added in additions), default=0),
        "metrics": parts.metrics,
    }
    observed = {
        "metrics": parts.metrics,
        "probes": {*PROBES, *chain.from_iterable(added.probes for added in additions)},
        "plain": tuple(chain.from_iterable(added.plain for added in additions)),
    }
    return (
        (Prefixed, {}),
        (AnswerHead, {}),
        (LimitBody, limits),
        (Guarded, {"guard": guard, "metrics": parts.metrics}),
        *chain.from_iterable(added.inner for added in additions),
        (ObserveRequests, observed),
        *chain.from_iterable(added.middleware for added in additions),
        (Deliver, {"metrics": parts.metrics}),
    )


def _described_app(lifespan: Lifespan[FastAPI], tags: Sequence[Mapping[str, str]]) -> FastAPI:
    """Return an app without routes, which describes itself as this service."""
    app = FastAPIOffline(
        title="gradcam-service",
        version=__version__,
        description=DESCRIPTION,
        openapi_tags=[*TAGS, *tags],
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        lifespan=lifespan,
        redoc_url=None,
        generate_unique_id_function=_operation_id,
    )
    for route in app.routes:  # FastAPI's own, of the documentation
        needs("read")(getattr(route, "endpoint", None) or getattr(route, "app"))  # noqa: B009
    return app


def _only(
    made: Sequence[tuple[Adapter, Added]], given: Callable[[Added], Given | None], does: str
) -> Given | None:
    """Return what one adapter alone may give. Of two, one would be ignored without a word."""
    found = [(adapter, one) for adapter, added in made if (one := given(added))]
    if len(found) > 1:
        names = " and ".join(
            f"{adapter.__module__}.{getattr(adapter, '__name__', adapter)}" for adapter, _ in found
        )
        raise ConfigError(f"{names} {does}, and only one adapter may; leave one out")
    return found[0][1] if found else None


def _failure(additions: Sequence[Added]) -> ConfigError | None:
    """Return the mistake in the configuration that an addition has met, if there is one."""
    return next(filter(None, (added.failure() for added in additions)), None)


def _native(additions: Sequence[Added], path: str, headers: Headers) -> str:
    """Return the path of the route that answers a request. The last adapter that knows the path
    decides, as its middleware is the outermost."""
    for added in reversed(additions):
        if native := added.native(path, headers):
            return native
    return path


def _operation_id(route: APIRoute) -> str:
    """Return the operation's name in generated clients: the function's name in the form
    `submitJob`."""
    first, *rest = route.name.split("_")
    return first + "".join(map(str.title, rest))


def _openapi(app: FastAPI, schemes: Mapping[str, Any]) -> dict[str, Any]:
    """Return FastAPI's document, with all components and the security schemes."""
    document = FastAPI.openapi(app)
    gather_components(document)
    # Additions come after what every service has, but for the root of all addresses.
    document["paths"] = dict(sorted(document["paths"].items(), key=lambda path: path[0] != "/"))
    if schemes:
        document["components"]["securitySchemes"] = schemes
        # One of the schemes, or none, because a service may identify nobody.
        document["security"] = [*({name: []} for name in schemes), {}]
    return document


async def _rest(admission: Admission) -> None:
    """Return free memory to the system whenever the service has become idle, until cancelled."""
    seen = -1
    while True:
        await asyncio.sleep(REST_SECONDS)
        if admission.at_rest and admission.admitted != seen:
            seen = admission.admitted
            await asyncio.to_thread(give_back_memory)


async def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    request.scope["state"]["told"]["problem"] = error.type()
    return problem_response(error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Convert Starlette's exceptions to problems. Paths and methods that no route answers have been
    refused by the guard."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:  # of a static file
        path = request.url.path[:120]
        problem: Problem = UnknownRoute(
            f"there is nothing at {path}; GET /docs shows every address"
        )
    else:
        problem = MalformedRequest(str(error.detail))
    return await _on_problem(request, problem)
