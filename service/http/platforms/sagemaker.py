"""SageMaker: what its callers say in headers, and its endpoints of several models.

`POST /invocations` is answered like `:explain`. The header `X-Amzn-SageMaker-Custom-Attributes` is
a query: `operation=predict&model=birds&top_k=3`, in which `operation` and `model` choose the route
and the rest are its parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter
from pydantic import BaseModel, Field, ValidationError
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from service.backend.interface import Backend
from service.core.errors import (
    ConfigError,
    Conflict,
    InsufficientStorage,
    MalformedRequest,
    UnknownModel,
)
from service.core.settings import Settings
from service.http.access import needs
from service.http.administration import AdministrationRoutes
from service.http.open_inference.routes import loaded
from service.http.platforms.addresses import at
from service.models.catalog import read_catalog

ATTRIBUTES: Final = "x-amzn-sagemaker-custom-attributes"
RAW: Final = ("application/x-image", "application/octet-stream", "")
"""Media types with which SageMaker's clients send the bytes of an image."""


class Invocations:
    """Middleware that translates requests for an invocation to requests for a model's route."""

    def __init__(self, app: ASGIApp, *, manager: Backend) -> None:
        self._app = app
        self._manager = manager

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        of_one = path.startswith("/models/") and path.endswith("/invoke")
        if scope["type"] == "http" and (path == "/invocations" or of_one):
            headers = MutableHeaders(raw=list(scope["headers"]))
            said = dict(parse_qsl(headers.get(ATTRIBUTES, ""), keep_blank_values=True))
            operation = said.pop("operation", "explain")
            model = said.pop("model", next(iter(self._manager.names), "none"))
            if of_one:
                model = path.removeprefix("/models/").removesuffix("/invoke")
            if headers.get("content-type", "").partition(";")[0].lower() in RAW:
                headers["content-type"] = "image/*"
            query = b"&".join(filter(None, [scope["query_string"], urlencode(said).encode()]))
            native = f"/v1/models/{model}:{operation}"
            scope = at(scope, native, headers=headers.raw, query_string=query)
        await self._app(scope, receive, send)


class ModelToLoad(BaseModel):
    model_name: str = Field(min_length=1, max_length=200)
    url: Path = Field(description="Folder in which SageMaker has unpacked the model.")


def make_sagemaker_router(
    *, manager: Backend, administration: AdministrationRoutes, settings: Settings
) -> APIRouter:
    """Make the routes of batch transform and of endpoints with several models."""
    router = APIRouter(include_in_schema=False)
    folders: dict[str, str] = {}

    @router.get("/execution-parameters")
    @needs("read")
    async def execution_parameters() -> dict[str, Any]:
        megabytes = max(settings.max_body_bytes // 1_000_000, 1)
        return {
            "MaxConcurrentTransforms": min(settings.max_queue, 100),
            "BatchStrategy": "SINGLE_RECORD",
            "MaxPayloadInMB": megabytes,
        }

    def described(name: str) -> Mapping[str, str]:
        manager.replicas(name)  # raises the problem of a model that is not there or not loaded
        return {"modelName": name, "modelUrl": folders.get(name, "")}

    @router.get("/models")
    @needs("read")
    async def list_models() -> dict[str, Any]:
        return {"models": [described(name) for name in manager.names if manager.model_ready(name)]}

    @router.get("/models/{name}")
    @needs("read")
    async def get_model(name: str) -> Mapping[str, str]:
        return described(name)

    @router.post("/models")
    @needs("admin", without_keys=True)
    async def load_model(request: Request) -> Response:
        try:
            model = ModelToLoad.model_validate_json(await request.body())
        except ValidationError:
            raise MalformedRequest('the body is not like {"model_name": …, "url": …}') from None
        name = model.model_name
        if name in manager.names:
            raise Conflict(f"model {name[:80]!r} is loaded already")
        try:
            (entry,) = read_catalog(model.url, name=name)
        except (ConfigError, ValueError) as error:
            raise UnknownModel(f"{model.url} holds no single model: {error}"[:390]) from None
        try:
            await manager.add(entry)
        except Conflict as problem:  # SageMaker then unloads another model, and comes back
            raise InsufficientStorage(problem.detail) from None
        await loaded(manager, name)
        folders[name] = str(model.url)
        return JSONResponse({"modelName": name})

    @router.delete("/models/{name}")
    @needs("admin", without_keys=True)
    async def unload_model(name: str) -> Response:
        folders.pop(name, None)
        await administration.remove_model(name)
        return JSONResponse({"modelName": name})

    return router
