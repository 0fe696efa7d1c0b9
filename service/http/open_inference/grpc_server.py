"""The Open Inference Protocol over gRPC.

The messages are those of open_inference.proto. They are in a pool of their own, so that another
package of the process, such as a client, may have messages of the same names.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc import StatusCode
from starlette.datastructures import Headers

from service import __version__
from service.backend.interface import Backend
from service.core.errors import ConfigError, MalformedRequest, Problem, Unavailable, unexpected
from service.core.metrics import Metrics
from service.core.settings import Settings
from service.http.guard import Guard
from service.http.open_inference.inference import VERSION, Inference, InferRequest, require_version
from service.http.open_inference.routes import EXTENSIONS, Repository
from service.http.open_inference.tensors import from_list, from_raw
from service.limits.body_budget import BodyBudget

SERVICE: Final = "inference.GRPCInferenceService"
CODES: Final[Mapping[int, StatusCode]] = {
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.NOT_FOUND,
    409: StatusCode.FAILED_PRECONDITION,
    424: StatusCode.FAILED_PRECONDITION,
    429: StatusCode.RESOURCE_EXHAUSTED,
    500: StatusCode.INTERNAL,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.DEADLINE_EXCEEDED,
    507: StatusCode.RESOURCE_EXHAUSTED,
}
"""HTTP status of a problem → code; of the others it is INVALID_ARGUMENT."""
CONTENTS: Final = {
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "BOOL": "bool_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Datatype → the field that has its elements where they are not raw bytes."""
Context = Any  # grpc.aio.ServicerContext; grpc has no types
Handler = Callable[[Any, Context], Awaitable[dict[str, Any]]]


class Calls:
    """The calls of the protocol. Each returns its answer's fields."""

    def __init__(
        self,
        *,
        inference: Inference,
        repository: Repository,
        manager: Backend,
        guard: Guard,
        body_budget: BodyBudget,
        metrics: Metrics,
        deadline_seconds: float,
    ) -> None:
        self._inference = inference
        self._repository = repository
        self._manager = manager
        self._guard = guard
        self._share: Callable[[], AbstractContextManager[Callable[[int], None]]] = body_budget.share
        self._metrics = metrics
        self._deadline_seconds = deadline_seconds

    def handlers(self) -> Mapping[str, tuple[Handler, str]]:
        """Return each call's handler, and the HTTP path whose rules for keys it shares: `{model}`
        stands for the model."""
        model = "/v2/models/{model}"
        return {
            "ServerLive": (self._server_live, "/v2/health/live"),
            "ServerReady": (self._server_ready, "/v2/health/ready"),
            "ServerMetadata": (self._server_metadata, "/v2"),
            "ModelReady": (self._model_ready, f"{model}/ready"),
            "ModelMetadata": (self._model_metadata, model),
            "ModelInfer": (self._model_infer, f"{model}/infer"),
            "RepositoryIndex": (self._repository_index, "/v2/repository/index"),
            "RepositoryModelLoad": (self._load, "/v2/repository/models/{model}/load"),
            "RepositoryModelUnload": (self._unload, "/v2/repository/models/{model}/unload"),
        }

    async def call(self, name: str, message: Any, context: Context) -> dict[str, Any]:
        """Answer one call, with the guard's checks before it and its problem as a status."""
        handler, path = self.handlers()[name]
        started, status, place = perf_counter(), 200, None
        try:
            headers = [(key.encode(), value) for key, value in _metadata(context)]
            told = self._guard.let_in(
                "POST"
                if name in ("ModelInfer", "RepositoryModelLoad", "RepositoryModelUnload")
                else "GET",
                path.replace("{model}", _model_of(message)),
                Headers(raw=headers),
            )
            place = told["place"]
            with self._share() as hold:
                hold(message.ByteSize())
                if name == "ModelInfer":
                    return await self._model_infer(message, context, place)
                return await handler(message, context)
        except Problem as problem:
            status = problem.status
            await self._abort(context, problem)
        except asyncio.CancelledError:
            status = 499
            raise
        except Exception:
            status = 500
            await self._abort(context, unexpected(name, "the service failed"))
        finally:
            if place:
                place.leave()
            route = f"{SERVICE}/{name}"
            self._metrics.requests.labels(route=route, method="POST", status=str(status)).inc()
            self._metrics.request_seconds.labels(route=route).observe(perf_counter() - started)
        raise AssertionError("abort raises")

    async def _abort(self, context: Context, problem: Problem) -> None:
        trailing = [(key.lower(), value) for key, value in problem.headers().items()]
        code = CODES.get(problem.status, StatusCode.INVALID_ARGUMENT)
        await context.abort(code, problem.detail, tuple(trailing))

    async def _server_live(self, message: Any, context: Context) -> dict[str, Any]:
        return {"live": True}

    async def _server_ready(self, message: Any, context: Context) -> dict[str, Any]:
        return {"ready": self._manager.ready}

    async def _server_metadata(self, message: Any, context: Context) -> dict[str, Any]:
        return {"name": "gradcam-service", "version": __version__, "extensions": EXTENSIONS}

    async def _model_ready(self, message: Any, context: Context) -> dict[str, Any]:
        require_version(message.name, message.version)
        try:
            self._manager.replicas(message.name)
        except Unavailable:
            return {"ready": False}
        return {"ready": self._manager.model_ready(message.name)}

    async def _model_metadata(self, message: Any, context: Context) -> dict[str, Any]:
        return self._inference.metadata(message.name, message.version)

    async def _model_infer(
        self, message: Any, context: Context, place: Any = None
    ) -> dict[str, Any]:
        left = context.time_remaining()
        seconds = min(self._deadline_seconds, self._deadline_seconds if left is None else left)
        request = await asyncio.to_thread(read_message, message)
        tensors = await self._inference.answer(request, seconds=seconds, place=place)
        return {
            "model_name": message.model_name,
            "model_version": VERSION,
            "id": message.id,
            "outputs": [
                {"name": one.name, "datatype": one.datatype, "shape": one.shape} for one in tensors
            ],
            "raw_output_contents": [one.raw() for one in tensors],
        }

    async def _repository_index(self, message: Any, context: Context) -> dict[str, Any]:
        return {"models": self._repository.models(only_ready=message.ready)}

    async def _load(self, message: Any, context: Context) -> dict[str, Any]:
        config = message.parameters["config"].string_param if message.parameters else None
        name = _model_of(message)
        await self._repository.load_model(name, config or None)
        return {"model_name": name, "isLoaded": True}

    async def _unload(self, message: Any, context: Context) -> dict[str, Any]:
        name = _model_of(message)
        await self._repository.unload(name)
        return {"model_name": name, "isUnloaded": True}


@asynccontextmanager
async def serving_grpc(calls: Calls, settings: Settings) -> AsyncIterator[None]:
    """Serve gRPC at the port of the settings while the block is open. Leaving it finishes the calls
    in progress. Several processes share the port.

    Raises:
        ConfigError: if the port cannot be used.
    """
    messages = _messages()

    def handler(name: str, request: str, answer: str) -> grpc.RpcMethodHandler:
        async def respond(message: Any, context: Context) -> Any:
            return messages[answer](**await calls.call(name, message, context))

        return grpc.unary_unary_rpc_method_handler(
            respond,
            request_deserializer=messages[request].FromString,
            response_serializer=messages[answer].SerializeToString,
        )

    handlers = {
        name: handler(name, f"{name}Request", f"{name}Response") for name in calls.handlers()
    }
    options = [
        ("grpc.max_receive_message_length", settings.max_body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 1),
    ]
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=settings.max_connections)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    where = f"{settings.host}:{settings.grpc_port}"
    try:
        server.add_insecure_port(where)
    except RuntimeError:
        raise ConfigError(f"cannot listen on {where} for gRPC; see GRADCAM_GRPC_PORT") from None
    await server.start()
    try:
        yield
    finally:
        await server.stop(settings.drain_seconds)


def read_message(message: Any) -> InferRequest:
    """Read the message of an inference request.

    Raises:
        MalformedRequest: if a tensor is wrong; the message says how.
    """
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise MalformedRequest(
            f"there are {len(raw)} raw_input_contents for {len(message.inputs)} inputs"
        )
    tensors = []
    for turn, one in enumerate(message.inputs):
        shape = list(one.shape)
        if raw:
            tensors.append(from_raw(one.name, one.datatype, shape, raw[turn]))
        else:
            field = CONTENTS.get(one.datatype, "bytes_contents")
            data = list(getattr(one.contents, field))
            tensors.append(from_list(one.name, one.datatype, shape, data))
    return InferRequest(
        message.model_name,
        message.model_version,
        message.id,
        {name: _value(parameter) for name, parameter in message.parameters.items()},
        tensors,
        [output.name for output in message.outputs],
    )


def _value(parameter: Any) -> Any:
    field = parameter.WhichOneof("parameter_choice")
    return None if field is None else getattr(parameter, field)


def _model_of(message: Any) -> str:
    """Return the name of the model that a call is about, "" if it is about none."""
    for field in ("model_name", "name", "name_or_repository"):
        if name := getattr(message, field, ""):
            return str(name)
    return ""


def _metadata(context: Context) -> list[tuple[str, bytes]]:
    given: Any = context.invocation_metadata() or ()
    return [
        (key, value if isinstance(value, bytes) else value.encode("latin-1", "replace"))
        for key, value in given
    ]


def _messages() -> dict[str, Any]:
    """Return the classes of the messages, by their names."""
    described = FileDescriptorSet.FromString(
        Path(__file__).with_name("open_inference.binpb").read_bytes()
    )
    pool = DescriptorPool()
    for file in described.file:
        pool.Add(file)
    (file,) = described.file
    return {
        message.name: GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{message.name}"))
        for message in file.message_type
    }
