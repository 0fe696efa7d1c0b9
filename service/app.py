"""The app: lifespan, middleware, and every error's way to a problem document."""

from __future__ import annotations

import os
import warnings
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from PIL import Image
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from service import __version__
from service.about import make_about_router
from service.answers import problem_response
from service.catalog import EMBEDDED, ModelEntry
from service.documentation import DESCRIPTION, TAGS
from service.errors import MalformedRequest, MethodNotAllowed, Problem, UnknownRoute
from service.explainer import Explainer
from service.fleet import Fleet
from service.metrics import Metrics
from service.middleware import LimitBody, Observe
from service.routes import make_router
from service.settings import Settings
from service.threads import one_each


class ModelName(StringConvertor):
    """A model's name in a path: KServe's verbs follow it after a colon."""

    regex = "[^/:]+"


def create_app(settings: Settings, entries: Sequence[ModelEntry] = (EMBEDDED,)) -> FastAPI:
    """The service for these models. They load when the app starts, not before;
    `app.state.fleet` tells how far they are."""
    register_url_convertor("model", ModelName())
    # A picture that claims a bomb's size is refused, not warned about.
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    metrics = Metrics()
    fleet = Fleet(
        entries,
        max_queue=settings.max_queue,
        metrics=metrics,
        cache_bytes=settings.cache_bytes,
    )
    explainer = Explainer(
        max_pixels=settings.max_pixels, threads=os.cpu_count() or 1, metrics=metrics
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with one_each():
            async with explainer, fleet:
                yield

    app = FastAPIOffline(
        title="gradcam-service",
        version=__version__,
        description=DESCRIPTION,
        openapi_tags=TAGS,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        lifespan=lifespan,
        redoc_url=None,
    )
    app.state.fleet = fleet
    app.add_middleware(LimitBody, max_bytes=settings.max_body_bytes, metrics=metrics)
    app.add_middleware(Observe, metrics=metrics)
    app.add_exception_handler(Problem, _on_problem)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.include_router(make_about_router(fleet=fleet, metrics=metrics))
    app.include_router(make_router(fleet=fleet, explainer=explainer, settings=settings))
    return app


async def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return problem_response(error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own refusals, as problems."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:120]
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        response = problem_response(
            MethodNotAllowed(f"{path} does not answer {request.method}, only {allowed}")
        )
        response.headers["Allow"] = allowed
        return response
    if error.status_code == 404:
        return problem_response(
            UnknownRoute(f"there is nothing at {path}; GET /docs shows every address")
        )
    return problem_response(MalformedRequest(str(error.detail)))
