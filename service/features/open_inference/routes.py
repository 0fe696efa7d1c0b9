"""The routes of the Open Inference Protocol: health, metadata, inference and the repository.

They are not in openapi/openapi.json: the protocol has a document of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Final

from anyio import to_thread
from fastapi import APIRouter
from pydantic import BaseModel, FailFast, Field, ValidationError
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cam.counts import counted
from service import __version__
from service.backend.interface import Backend
from service.core.errors import (
    InvalidParameter,
    MalformedRequest,
    Problem,
    Unavailable,
    UnknownModel,
)
from service.core.json_text import read_json, validate_json
from service.core.pydantic_errors import mistake
from service.features.administration.routes import AdministrationRoutes, read_entry
from service.features.open_inference.inference import (
    EVERY,
    VERSION,
    Inference,
    InferRequest,
    require_known_extensions,
    require_version,
)
from service.features.open_inference.statistics import AnswerCounts
from service.features.open_inference.tensors import Tensor, from_list, from_raw
from service.http.access import needs
from service.http.contract import JSON
from service.http.reception import Reception, deadline, while_connected
from service.models.catalog import ModelEntry

JSON_LENGTH: Final = "Inference-Header-Content-Length"
"""Header with the number of bytes of the JSON, before the raw bytes of tensors."""
EXTENSIONS: Final = [
    "binary_tensor_data",
    "model_configuration",
    "model_repository",
    "statistics",
]
MOST_ELEMENTS: Final = 1_000_000
"""Maximum number of elements in the JSON of a request: the pixels of a photo of 640 × 480."""


class SentTensor(BaseModel):
    name: str = Field(max_length=200)
    shape: Annotated[list[int], FailFast()] = Field(max_length=8)
    datatype: str = Field(max_length=40)
    parameters: dict[str, Any] = {}
    data: Any = None


class SentOutput(BaseModel):
    name: str = Field(max_length=200)
    parameters: dict[str, Any] = {}


class SentRequest(BaseModel):
    """The JSON of an inference request."""

    id: str = Field("", max_length=200)
    parameters: dict[str, Any] = {}
    inputs: Annotated[list[SentTensor], FailFast()] = Field(min_length=1, max_length=2)
    outputs: Annotated[list[SentOutput], FailFast()] = Field([], max_length=16)


def make_open_inference_router(routes: OpenInferenceRoutes, repository: Repository) -> APIRouter:
    """Make the routes below `/v2`."""
    router = APIRouter(include_in_schema=False)
    router.get("/v2/health/live")(routes.check_health)
    router.get("/v2/health/ready")(routes.check_readiness)
    router.get("/v2")(routes.describe_server)
    router.get("/v2/models/stats")(routes.count)
    for model in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        router.get(model)(routes.describe_model)
        router.get(f"{model}/ready")(routes.check_model)
        router.get(f"{model}/config")(routes.configure)
        router.get(f"{model}/stats")(routes.count)
        router.post(f"{model}/infer")(routes.infer)
    router.post("/v2/repository/index")(repository.index)
    router.post("/v2/repository/models/{model}/load")(repository.load)
    router.post("/v2/repository/models/{model}/unload")(repository.unload)
    return router


class OpenInferenceRoutes:
    """The routes of health, metadata, configuration, statistics and inference."""

    def __init__(
        self,
        inference: Inference,
        reception: Reception,
        manager: Backend,
        statistics: AnswerCounts,
    ) -> None:
        self._inference = inference
        self._reception = reception
        self._manager = manager
        self._statistics = statistics

    @needs("open")
    async def check_health(self) -> dict[str, bool]:
        return {"live": True}

    @needs("open")
    async def check_readiness(self) -> dict[str, bool]:
        if not self._manager.ready:
            raise Unavailable(self._manager.why_not_ready())
        return {"ready": True}

    @needs("read")
    async def describe_server(self) -> dict[str, Any]:
        return {"name": "gradcam-service", "version": __version__, "extensions": EXTENSIONS}

    @needs("read")
    async def describe_model(self, model: str, version: str = "") -> dict[str, Any]:
        return self._inference.metadata(model, version)

    @needs("read")
    async def configure(self, model: str, version: str = "") -> dict[str, Any]:
        return self._inference.configuration(model, version)

    @needs("read")
    async def count(self, model: str = "", version: str = "") -> dict[str, Any]:
        return await self._statistics.of(model, version)

    @needs("read")
    async def check_model(self, model: str, version: str = "") -> dict[str, Any]:
        require_version(model, version)
        self._manager.replicas(model)  # raises the problem that says why it is not ready
        if not self._manager.model_ready(model):
            raise Unavailable(f"model {model!r} is not ready")
        return {"name": model, "ready": True}

    @needs("explain", work=True)
    async def infer(self, model: str, request: Request, version: str = "") -> Response:
        seconds, state = self._reception.timeout_of(request), request.scope["state"]
        async with deadline(seconds):
            body, header = await request.body(), request.headers.get(JSON_LENGTH)
        asked = await to_thread.run_sync(read_request, body, header, model, version)
        async with while_connected(request):
            tensors = await self._inference.answer(
                asked,
                seconds=seconds,
                place=state.get("place"),
                hold=state["hold"],
                told=state["told"],
            )
            pieces, length = await to_thread.run_sync(write_answer, tensors, asked)
        headers = {"Content-Length": str(sum(map(len, pieces)))}
        if length is not None:
            headers[JSON_LENGTH] = str(length)

        async def body_of() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        media_type = JSON if length is None else "application/octet-stream"
        return StreamingResponse(body_of(), media_type=media_type, headers=headers)


class Repository:
    """The routes that list, load and unload models.

    Args:
        entries: the configured models, which `load` knows by their names.
    """

    def __init__(
        self,
        manager: Backend,
        administration: AdministrationRoutes,
        entries: Sequence[ModelEntry],
    ) -> None:
        self._manager = manager
        self._administration = administration
        self._entries = {entry.name: entry for entry in entries}

    @needs("read")
    async def index(self, request: Request) -> list[dict[str, str]]:
        asked = _object(await request.body(), '{"ready": true}')
        return self.models(only_ready=bool(asked.get("ready")))

    def models(self, *, only_ready: bool) -> list[dict[str, str]]:
        """Return name, version, state and its reason of each model, those that are configured and
        unloaded included."""
        names = dict.fromkeys([*self._manager.names, *self._entries])
        states = [self._state(name) for name in names]
        return [one for one in states if one["state"] == "READY" or not only_ready]

    @needs("admin")
    async def load(self, model: str, request: Request) -> Response:
        """Load a configured model again, or one that the parameter `config` describes, and answer
        when it is loaded."""
        body = await request.body()
        await self.load_model(model, _config(body))
        return Response(status_code=200)

    async def load_model(self, model: str, config: str | None) -> None:
        """Load a model, and return when it is loaded.

        Args:
            config: its entry in JSON, as for `POST /v1/models`; None of a configured model.

        Raises:
            Problem: if it is unknown, not allowed or cannot be loaded.
        """
        if config is None:
            if model in self._manager.names and self._state(model)["state"] != "UNAVAILABLE":
                return  # it is loaded
            if model not in self._entries:
                known = ", ".join(self._entries) or "none"
                raise UnknownModel(
                    f"there is no model {model[:80]!r} in the configuration, only {known}; another "
                    "one needs the parameter config"
                )
            entry = self._entries[model]
        else:
            entry = read_entry(config.encode(), name=model)
            self._administration.require_allowed(entry)
        await self._administration.load(entry)

    @needs("admin")
    async def unload(self, model: str) -> Response:
        await self._administration.remove_model(model)
        return Response(status_code=200)

    def _state(self, model: str) -> dict[str, str]:
        state, reason = "READY", ""
        try:
            self._manager.replicas(model)
        except Unavailable as problem:
            state, reason = "LOADING", problem.detail
        except Problem as problem:
            state, reason = "UNAVAILABLE", problem.detail
        return {"name": model, "version": "1", "state": state, "reason": reason}


def read_request(body: bytes, header: str | None, model: str, version: str) -> InferRequest:
    """Read an inference request.

    Args:
        header: value of `JSON_LENGTH`, if the request has raw bytes.

    Raises:
        MalformedRequest: if it cannot be read; the message says where.
    """
    length = len(body)
    if header is not None:
        if not header.isdecimal() or int(header[:20]) > len(body):
            raise MalformedRequest(
                f"{JSON_LENGTH} is {header[:40]!r}; it is the number of bytes of the JSON before "
                f"the raw bytes, and the body has {len(body)}"
            )
        length = int(header[:20])
    try:
        sent = validate_json(SentRequest, body[:length], most=MOST_ELEMENTS)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "/".join(map(str, first["loc"]))[:80]
        raise MalformedRequest(f"at /{where}: {mistake(first)}") from None
    tensors, at = [], length
    for one in sent.inputs:
        require_known_extensions(one.name, one.parameters)
        size = one.parameters.get("binary_data_size")
        if size is None:
            tensors.append(from_list(one.name, one.datatype, one.shape, one.data))
            continue
        if not isinstance(size, int) or not 0 <= size <= len(body) - at:
            raise MalformedRequest(
                f"input {one.name!r}: binary_data_size is {str(size)[:40]}, and the body has "
                f"{counted(len(body) - at, 'more byte')} behind the JSON"
            )
        tensors.append(from_raw(one.name, one.datatype, one.shape, body[at : at + size]))
        at += size
    every = sent.parameters.get("binary_data_output", False) is True
    for output in sent.outputs:
        require_known_extensions(output.name, output.parameters)
    outputs = [output.name for output in sent.outputs]
    binary = {one.name for one in sent.outputs if one.parameters.get("binary_data", every) is True}
    if every and not outputs:
        binary = set(EVERY)
    return InferRequest(
        model,
        version,
        sent.id,
        sent.parameters,
        tensors,
        outputs,
        frozenset(binary),
    )


def write_answer(tensors: Sequence[Tensor], asked: InferRequest) -> tuple[list[bytes], int | None]:
    """Return the body of an answer in pieces, and the number of bytes of its JSON if raw bytes
    follow it."""
    about = {"model_name": asked.model, "model_version": VERSION}
    text = [to_json(about | ({"id": asked.id} if asked.id else {}))[:-1], b',"outputs":[']
    raw: list[bytes] = []
    for turn, tensor in enumerate(tensors):
        described: dict[str, Any] = {
            "name": tensor.name,
            "shape": tensor.shape,
            "datatype": tensor.datatype,
        }
        text.append(b"," * (turn > 0))
        if tensor.name in asked.binary:
            raw.append(tensor.raw())
            described["parameters"] = {"binary_data_size": len(raw[-1])}
            text.append(to_json(described))
        else:
            if tensor.parameters:
                described["parameters"] = tensor.parameters
            text += [to_json(described)[:-1], b',"data":', *tensor.json_data(), b"}"]
    text.append(b"]}")
    if not raw:
        return text, None
    return [*text, *raw], sum(map(len, text))


def _config(body: bytes) -> str | None:
    """Return the parameter `config` of a request to load a model, if it has one."""
    like = '{"parameters": {"config": "{…}"}}'
    parameters = _object(body, like).get("parameters", {})
    if not isinstance(parameters, dict):
        raise MalformedRequest(f"the body is not like {like}")
    config = parameters.get("config")
    if config is not None and not isinstance(config, str):
        raise InvalidParameter("config is not text; it is a model's entry as a text of JSON")
    return config


def _object(body: bytes, like: str) -> dict[str, Any]:
    """Return the object of a body in JSON, which may be left out."""
    sent = read_json(body or b"{}")
    if not isinstance(sent, dict):
        raise MalformedRequest(f"the body is not like {like}")
    return sent
