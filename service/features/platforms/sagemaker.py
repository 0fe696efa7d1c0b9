"""SageMaker: what its callers say in headers, and its endpoints of several models.

`POST /invocations` is answered like `:explain`, or like `:answer` of a model that answers
questions. The header `X-Amzn-SageMaker-Custom-Attributes` is a query:
`operation=predict&model=birds&top_k=3`, in which `operation` and `model` choose the route and the
rest are its parameters.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from anyio import to_thread
from fastapi import APIRouter
from pydantic import BaseModel, Field, ValidationError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from service.backend.interface import Backend
from service.core.errors import (
    BodyTooLarge,
    ConfigError,
    Conflict,
    Forbidden,
    InsufficientStorage,
    InvalidParameter,
    MalformedRequest,
    UnknownModel,
)
from service.core.json_text import validate_json
from service.core.pydantic_errors import mistake
from service.features.administration.routes import MAX_BYTES, WORDS, AdministrationRoutes
from service.features.platforms.addresses import answers, at
from service.features.platforms.bodies import as_instances
from service.features.platforms.settings import PlatformSettings
from service.http.access import needs
from service.models.catalog import NAME, ModelEntry, read_catalog
from service.models.sources import source_of

ATTRIBUTES: Final = "x-amzn-sagemaker-custom-attributes"
RAW: Final = ("application/x-image", "application/octet-stream", "file-path/raw-bytes", "")
"""Media types with which SageMaker's clients send the bytes of an image. The Python SDK's
DataSerializer says `file-path/raw-bytes`, of a path and of bytes alike."""
NO_MODEL: Final = (
    "url names no folder with one model that can be read: a models.toml with one entry, or a "
    "Hugging Face model with its config.json; the log of the service says what is wrong"
)
OUTSIDE: Final = "is outside of the folder from which models are loaded: see GRADCAM_LOAD_FOLDER"
log = logging.getLogger(__name__)


class Invocations:
    """Middleware that translates requests for an invocation to requests for a model's route.

    Args:
        several: whether the endpoint has several models, which addresses name.
    """

    def __init__(self, app: ASGIApp, *, manager: Backend, several: bool) -> None:
        self._app = app
        self._manager = manager
        self._several = several

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            sent = Headers(scope=scope)
            found = invocation(scope["path"], sent, self._manager, several=self._several)
            if found:
                (native, said), headers = found, sent.mutablecopy()
                if headers.get("content-type", "").partition(";")[0].lower() in RAW:
                    headers["content-type"] = "image/*"
                query = b"&".join(filter(None, [scope["query_string"], urlencode(said).encode()]))
                scope = at(scope, native, headers=headers.raw, query_string=query)
                scope.setdefault("state", {})["rewrite"] = as_instances
        await self._app(scope, receive, send)


def invocation(
    path: str, headers: Headers, manager: Backend, *, several: bool
) -> tuple[str, dict[str, str]] | None:
    """Return the service's own path of an invocation, and the parameters that its header names;
    None for any other path.

    Args:
        several: whether the endpoint has several models, which addresses name.
    """
    of_one = several and path.startswith("/models/") and path.endswith("/invoke")
    if path != "/invocations" and not of_one:
        return None
    said = dict(parse_qsl(headers.get(ATTRIBUTES, ""), keep_blank_values=True))
    model = said.pop("model", next(iter(manager.names), "none"))
    if of_one:
        model = path.removeprefix("/models/").removesuffix("/invoke")
    operation = said.pop("operation", "answer" if answers(manager, model) else "explain")
    return f"/v1/models/{model}:{operation}", said


class ModelToLoad(BaseModel):
    model_name: str = Field(pattern=rf"^{NAME}$", max_length=200)
    url: str = Field(
        min_length=1,
        max_length=1000,
        description="Folder in which SageMaker has unpacked the model.",
    )


def has_several_models(settings: PlatformSettings) -> bool:
    """Return whether the service is an endpoint with several models, which SageMaker loads."""
    return settings.platform == "sagemaker" and settings.starts_empty


def make_sagemaker_router(
    *, manager: Backend, administration: AdministrationRoutes, settings: PlatformSettings
) -> APIRouter:
    """Make the routes of batch transform and, if there are several models, those that manage them.

    SageMaker calls these without a key. A service with keys wants one of scope `admin`.
    """
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

    if not has_several_models(settings):
        return router

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
        model = _model_to_load(await request.body())
        name = model.model_name
        loaded_already = Conflict(f"model {name[:80]!r} is loaded already")
        if name in manager.names and not administration.has_failed(name):
            raise loaded_already
        read = partial(read_model, model.url, name=name, root=settings.load_folder)
        entry = await to_thread.run_sync(read)
        try:
            await administration.load(entry)
        except Conflict as problem:
            if name in manager.names:  # another request was faster
                raise loaded_already from None
            # SageMaker then unloads another model, and comes back.
            raise InsufficientStorage(problem.detail) from None
        folders[name] = model.url
        return JSONResponse({"modelName": name})

    @router.delete("/models/{name}")
    @needs("admin", without_keys=True)
    async def unload_model(name: str) -> Response:
        folders.pop(name, None)
        await administration.remove_model(name)
        return JSONResponse({"modelName": name})

    return router


def _model_to_load(body: bytes) -> ModelToLoad:
    if len(body) > MAX_BYTES:
        raise BodyTooLarge(f"the body has {len(body)} bytes; at most {MAX_BYTES} are allowed")
    try:
        return validate_json(ModelToLoad, body)
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:
            raise MalformedRequest('the body is not like {"model_name": …, "url": …}') from None
        key = first["loc"][0]
        wanted = WORDS["name"] if key == "model_name" else mistake(first)
        told = f"is {str(first['input'])[:80]!r}: {wanted}"
        told = "is required" if first["type"] == "missing" else told
        raise InvalidParameter(f"{key} {told}", pointer=f"/{key}") from None


def read_model(url: str, *, name: str, root: Path) -> ModelEntry:
    """Return the entry of the one model in a folder, under a new name.

    A caller names the folder, so that nothing in it is trusted: neither it nor a file that it holds
    or names may lead out of `root`, and it runs no code. No message tells what files there are.

    Args:
        url: path of the folder, or of its TOML file.
        root: folder below which it must be.

    Raises:
        Forbidden: if anything leads out of `root`, or if the source is code.
        UnknownModel: if there is no such folder, or not one model in it.
        InvalidParameter: if `url` is not a path.
    """
    try:
        root, place = root.resolve(), Path(url).resolve()
        if root not in place.parents:
            raise Forbidden(f"url {OUTSIDE}")
        for file in [place] if place.is_file() else _contents(place):
            if root not in file.resolve().parents:
                raise Forbidden(f"a file of the model {OUTSIDE}")
            if not file.is_file():  # waiting for the other end of a pipe would take for ever
                raise UnknownModel(NO_MODEL)
        (entry,) = read_catalog(place, name=name)
        _check_names(entry, root)
    except ConfigError as error:
        log.warning("model %s: %s", name, error)
        raise UnknownModel(NO_MODEL) from None
    except (OSError, ValueError, RuntimeError) as error:  # too long, with a zero byte, a loop
        log.warning("model %s: %s", name, error)
        raise InvalidParameter("url is not the path of a folder", pointer="/url") from None
    return entry


def _contents(folder: Path) -> list[Path]:
    """Return all files below a folder, and its links, which are not followed."""
    if not folder.is_dir():
        raise UnknownModel(NO_MODEL)
    found = []
    for place, folders, files in os.walk(folder):
        found += [Path(place, file) for file in files]
        found += [path for inner in folders if (path := Path(place, inner)).is_symlink()]
    return found


def _check_names(entry: ModelEntry, root: Path) -> None:
    """Check that an entry names no code, and no file outside of `root`.

    Raises:
        Forbidden: if it does.
    """
    source, what = source_of(entry.source)
    if source.is_code:
        raise Forbidden(
            f"the source of a model in a folder may not be a {source.name}, which is code"
        )
    named = (what, entry.weights, entry.labels, entry.audit, entry.reference)
    for key, value in zip(
        ("source", "weights", "labels", "audit", "reference"), named, strict=True
    ):
        if value is not None and root not in entry.path(value).resolve().parents:
            raise Forbidden(f"{key} in the model's entry {OUTSIDE}")
