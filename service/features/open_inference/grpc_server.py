"""The Open Inference Protocol over gRPC.

The messages are those of open_inference.proto. They are in a pool of their own, so that another
package of the process, such as a client, may have messages of the same names.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import grpc
import numpy as np
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from grpc import StatusCode
from starlette.datastructures import Headers

from cam.counts import counted
from service import __version__
from service.backend.interface import Backend
from service.core.errors import (
    BodyTooLarge,
    ConfigError,
    MalformedRequest,
    Overloaded,
    Problem,
    TooSlow,
    unexpected,
)
from service.core.metrics import Metrics
from service.features.open_inference.inference import (
    EVERY,
    VERSION,
    Inference,
    InferRequest,
    require_known_extensions,
    require_version,
)
from service.features.open_inference.routes import EXTENSIONS, MOST_ELEMENTS, Repository
from service.features.open_inference.settings import OpenInferenceSettings
from service.features.open_inference.statistics import AnswerCounts
from service.features.open_inference.streaming import answer_in_order
from service.features.open_inference.tensors import from_list, from_raw
from service.http.access import Access, Caller
from service.http.guard import Guard
from service.http.reception import deadline
from service.limits.admission import AdmittedRequest
from service.limits.body_budget import BodyBudget, Share
from service.limits.connections import other_connections

SERVICE: Final = "inference.GRPCInferenceService"
INFER, STREAM = "ModelInfer", "ModelStreamInfer"
CODES: Final[Mapping[int, StatusCode]] = {
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.NOT_FOUND,
    408: StatusCode.DEADLINE_EXCEEDED,
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
VARINT, DELIMITED = 0, 2
FIXED: Final = {1: 8, 5: 4}
"""Wire types of protobuf: of a number of variable length, of bytes behind their length, and the
lengths of the others."""
MOST_FIELDS: Final = 10_000
"""Maximum number of fields of a message: two tensors have some twenty."""
RECEIVERS: Final = 16
"""Number of calls of a process whose messages may arrive at a time. Each may take the memory of the
largest message."""
STREAMS: Final = 8
"""Number of streams of a process that may be open at a time. Each may wait for a message, beside
those of the `RECEIVERS`."""
STREAMS_OF_A_KEY: Final = STREAMS // 2
"""Number of them that may have one key, so that some are left to the others."""
IDLE_SECONDS: Final = 30
"""Time after which a connection without a call is closed."""
AGE_SECONDS: Final = 60
"""Age at which a connection takes no more calls; when the calls in progress have had the time of a
deadline, it is cut off, with the answers that its client does not read. Clients open a new one by
themselves."""
CALLS_OF_A_CONNECTION: Final = 100
Context = Any  # grpc.aio.ServicerContext; grpc has no types


@dataclass(eq=False)
class GrpcCall:
    """One call, with what its handler may need of it."""

    context: Context
    share: Share
    """Counts the memory of the message and the answer."""
    seconds: float
    """Seconds that the call may take."""
    place: AdmittedRequest | None = None
    """The place among the requests in progress that the guard has given to it."""


Handler = Callable[[Any, GrpcCall], Awaitable[Mapping[str, Any]]]


class Calls:
    """The calls of the protocol. Each returns its answer's fields."""

    def __init__(
        self,
        *,
        inference: Inference,
        repository: Repository,
        statistics: AnswerCounts,
        manager: Backend,
        guard: Guard,
        body_budget: BodyBudget,
        metrics: Metrics,
        settings: OpenInferenceSettings,
    ) -> None:
        self._inference = inference
        self._repository = repository
        self._statistics = statistics
        self._manager = manager
        self._guard = guard
        self._body_budget = body_budget
        self._metrics = metrics
        self._deadline_seconds = settings.deadline_seconds
        self._receive_seconds = settings.receive_seconds
        self._max_calls = settings.max_connections
        self._receiving = 0
        """Number of calls whose message has not arrived."""
        self._streams = Counter[str | None]()
        """Number of streams that are open, by the name of their key."""
        self.stopping: Final = asyncio.Event()
        """Set when the service shuts down: streams take no further message then."""
        self._may_receive = asyncio.Semaphore(RECEIVERS)
        self._messages = _messages()

        model, models = "/v2/models/{model}", "/v2/repository"
        self.handlers: Final[Mapping[str, tuple[Handler, str, str]]] = {
            "ServerLive": (self._server_live, "GET", "/v2/health/live"),
            "ServerReady": (self._server_ready, "GET", "/v2/health/ready"),
            "ServerMetadata": (self._server_metadata, "GET", "/v2"),
            "ModelReady": (self._model_ready, "GET", f"{model}/ready"),
            "ModelMetadata": (self._model_metadata, "GET", model),
            "ModelConfig": (self._model_config, "GET", f"{model}/config"),
            "ModelStatistics": (self._model_statistics, "GET", f"{model}/stats"),
            "ModelInfer": (self._model_infer, "POST", f"{model}/infer"),
            "RepositoryIndex": (self._repository_index, "POST", f"{models}/index"),
            "RepositoryModelLoad": (self._load, "POST", f"{models}/models/{{model}}/load"),
            "RepositoryModelUnload": (
                self._unload,
                "POST",
                f"{models}/models/{{model}}/unload",
            ),
        }
        """Each call's handler, and the HTTP method and path whose rules for keys it shares:
        `{model}` stands for the model."""

    async def respond(self, name: str, context: Context) -> None:
        """Answer one call: read its message, and write the answer, or a problem as a status.

        The key is checked before a byte of the message is read. The message is read within
        `receive_seconds`, and its fields are counted before it is parsed.
        """
        started, status = perf_counter(), 200
        try:
            if name == STREAM:
                await self._stream(context)
                return
            seconds = self._seconds_of(context)
            with self._body_budget.share() as share:
                async with deadline(seconds):
                    answer = await self._answer(name, context, share, seconds)
                # Nothing here can end a write that the client does not read, except the end of the
                # connection: see `AGE_SECONDS`. Its memory counts as long.
                await context.write(answer)
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
            if name != STREAM or status != 200:  # the requests of a stream are counted one by one
                self._count(name, status, started)

    def _count(self, name: str, status: int, started: float) -> None:
        route = f"{SERVICE}/{name}"
        self._metrics.requests.labels(route=route, method="POST", status=str(status)).inc()
        self._metrics.request_seconds.labels(route=route).observe(perf_counter() - started)

    def _seconds_of(self, context: Context) -> float:
        """Return the seconds that a request may take from now on."""
        left = context.time_remaining()
        seconds = self._deadline_seconds if left is None else min(self._deadline_seconds, left)
        return max(seconds, 0.0)

    async def _answer(self, name: str, context: Context, share: Share, seconds: float) -> bytes:
        """Return the message of the answer to a call."""
        call = GrpcCall(context, share, seconds)
        access, caller = self._authorised(name, context)
        if access.scope == "open":  # no byte of the message is needed
            return self._written(name, await self.handlers[name][0](None, call))
        body = await self._receive(context)
        share(len(body))
        message = await asyncio.to_thread(self._parsed, name, body)
        return await self._worked(name, message, call, access, caller, partial(self._written, name))

    def _authorised(self, name: str, context: Context) -> tuple[Access, Caller | None]:
        """Return what a call requires, and who makes it."""
        _, method, path = self.handlers[name]
        access = self._guard.access_of(method, path.replace("{model}", "-"))
        headers = Headers(raw=[(key.encode(), value) for key, value in _metadata(context)])
        return access, self._guard.authorise(access, headers)

    async def _worked(
        self,
        name: str,
        message: Any,
        call: GrpcCall,
        access: Access,
        caller: Caller | None,
        write: Callable[[Mapping[str, Any]], bytes],
    ) -> bytes:
        """Return what `write` makes of the handler's answer to a message."""
        model = _model_of(message) if access.work else None
        call.place = self._guard.enter(access, model, caller, call.seconds)["place"]
        try:
            fields = await self.handlers[name][0](message, call)
            return await asyncio.to_thread(write, fields)
        finally:
            if call.place:
                call.place.leave()

    async def _stream(self, context: Context) -> None:
        """Answer the requests of a stream, each like a call of `ModelInfer`.

        Raises:
            Overloaded: if too many streams are open, or too many of its key.
            Problem: if its key may not infer, it stands still, or the service shuts down.
        """
        access, caller = self._authorised(INFER, context)
        name = caller.name if caller else None
        if caller and self._streams[name] >= STREAMS_OF_A_KEY:
            raise Overloaded(
                f"{STREAMS_OF_A_KEY} streams of the key {name!r} are open; use one of them for "
                f"more requests, or {INFER}",
                retry_after=1,
            )
        if self._streams.total() >= STREAMS:
            raise Overloaded(
                f"{STREAMS} streams are open; use one of them for more requests, or {INFER}",
                retry_after=1,
            )

        async def answer(body: bytes, held: ExitStack) -> bytes:
            share = held.enter_context(self._body_budget.share())
            return await self._answer_in_stream(body, context, share, access, caller)

        self._streams[name] += 1
        try:
            await answer_in_order(
                context.read,
                answer,
                context.write,
                stopping=self.stopping,
                idle_seconds=self._receive_seconds,
            )
        finally:
            self._streams -= Counter([name])  # which leaves out names without a stream

    async def _answer_in_stream(
        self, body: bytes, context: Context, share: Share, access: Access, caller: Caller | None
    ) -> bytes:
        """Return the message of the answer to a request of a stream: the stream goes on after a
        problem, which the message tells."""
        started, status, name = perf_counter(), 200, ""
        seconds = self._seconds_of(context)
        try:
            async with deadline(seconds):
                share(len(body))
                message = await asyncio.to_thread(self._parsed, INFER, body)
                name = message.id
                return await self._worked(
                    INFER,
                    message,
                    GrpcCall(context, share, seconds),
                    access,
                    caller,
                    lambda fields: self._written(STREAM, {"infer_response": fields}),
                )
        except Problem as problem:
            status, said = problem.status, problem.detail
        except asyncio.CancelledError:
            status = 499
            raise
        except Exception:
            status, said = 500, unexpected(STREAM, "the service failed").detail
        finally:
            self._count(STREAM, status, started)
        # The id tells the caller which of its requests it is.
        return self._written(STREAM, {"error_message": said, "infer_response": {"id": name}})

    async def _receive(self, context: Context) -> bytes:
        """Return the bytes of a call's message.

        Raises:
            Overloaded: if too many calls wait for theirs.
            TooSlow: if it does not arrive in time.
            MalformedRequest: if there is none.
        """
        if self._receiving >= self._max_calls:
            raise Overloaded("too many calls have not sent their message", retry_after=1)
        self._receiving += 1
        try:
            async with asyncio.timeout(self._receive_seconds), self._may_receive:
                body = await context.read()
        except TimeoutError:
            raise TooSlow(
                f"the message had not arrived after {self._receive_seconds:g} s"
            ) from None
        finally:
            self._receiving -= 1
        if not isinstance(body, bytes):
            raise MalformedRequest("the call has no message")
        return body

    def _parsed(self, name: str, body: bytes) -> Any:
        """Parse a message, whose fields are counted before, because each takes more memory than its
        bytes."""
        kind = self._messages[f"{name}Request"]
        try:
            require_few_fields(kind.DESCRIPTOR, body)
            return kind.FromString(body)
        except (DecodeError, ValueError, RecursionError):
            raise MalformedRequest(f"the message is not a {name}Request") from None

    def _written(self, name: str, fields: Mapping[str, Any]) -> bytes:
        written: bytes = self._messages[f"{name}Response"](**fields).SerializeToString()
        return written

    async def _abort(self, context: Context, problem: Problem) -> None:
        trailing = [(key.lower(), value) for key, value in problem.headers().items()]
        code = CODES.get(problem.status, StatusCode.INVALID_ARGUMENT)
        await context.abort(code, problem.detail, tuple(trailing))

    async def _server_live(self, message: Any, call: GrpcCall) -> dict[str, Any]:
        return {"live": True}

    async def _server_ready(self, message: Any, call: GrpcCall) -> dict[str, Any]:
        return {"ready": self._manager.ready}

    async def _server_metadata(self, message: Any, call: GrpcCall) -> dict[str, Any]:
        return {"name": "gradcam-service", "version": __version__, "extensions": EXTENSIONS}

    async def _model_ready(self, message: Any, call: GrpcCall) -> dict[str, Any]:
        # As in Triton, a model that does not exist or has failed is one that is not ready: clients
        # ask this before they load a model.
        try:
            require_version(message.name, message.version)
            self._manager.replicas(message.name)
        except Problem:
            return {"ready": False}
        return {"ready": self._manager.model_ready(message.name)}

    async def _model_metadata(self, message: Any, call: GrpcCall) -> dict[str, Any]:
        return self._inference.metadata(message.name, message.version)

    async def _model_config(self, message: Any, call: GrpcCall) -> dict[str, Any]:
        return {"config": self._inference.configuration(message.name, message.version)}

    async def _model_statistics(self, message: Any, call: GrpcCall) -> dict[str, Any]:
        return await self._statistics.of(message.name, message.version)

    async def _model_infer(self, message: Any, call: GrpcCall) -> dict[str, Any]:
        request = await asyncio.to_thread(read_message, message)
        tensors = await self._inference.answer(
            request, seconds=call.seconds, place=call.place, hold=call.share.add
        )
        return {
            "model_name": message.model_name,
            "model_version": VERSION,
            "id": message.id,
            "outputs": [
                {"name": one.name, "datatype": one.datatype, "shape": one.shape} for one in tensors
            ],
            "raw_output_contents": [one.raw() for one in tensors],
        }

    async def _repository_index(self, message: Any, call: GrpcCall) -> dict[str, Any]:
        return {"models": self._repository.models(only_ready=message.ready)}

    async def _load(self, message: Any, call: GrpcCall) -> dict[str, Any]:
        config = message.parameters["config"].string_param if message.parameters else None
        name = _model_of(message)
        await self._repository.load_model(name, config or None)
        return {"model_name": name, "isLoaded": True}

    async def _unload(self, message: Any, call: GrpcCall) -> dict[str, Any]:
        name = _model_of(message)
        await self._repository.unload(name)
        return {"model_name": name, "isUnloaded": True}


@asynccontextmanager
async def serving_grpc(
    calls: Calls, settings: OpenInferenceSettings, processes: int
) -> AsyncIterator[None]:
    """Serve gRPC at the port of the settings while the block is open. Leaving it finishes the calls
    in progress, and ends the streams after the answers that are due.

    Args:
        processes: number of processes that share the port.

    Raises:
        ConfigError: if the port cannot be used.
    """

    def handler(name: str) -> grpc.RpcMethodHandler:
        # A handler of streams: it runs before the message is here, and writes when it wants. On the
        # wire a call with one message and one answer is the same.
        async def respond(messages: Any, context: Context) -> None:
            await calls.respond(name, context)

        return grpc.stream_stream_rpc_method_handler(respond)

    handlers = {name: handler(name) for name in (*calls.handlers, STREAM)}
    connections = max(other_connections(settings) // processes, 1)
    options = [
        ("grpc.max_receive_message_length", settings.max_body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 1),
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.server_handshake_timeout_ms", round(settings.receive_seconds * 1000)),
        ("grpc.max_connection_idle_ms", IDLE_SECONDS * 1000),
        ("grpc.max_connection_age_ms", AGE_SECONDS * 1000),
        ("grpc.max_connection_age_grace_ms", round((settings.deadline_seconds + 1) * 1000)),
        ("grpc.max_concurrent_streams", CALLS_OF_A_CONNECTION),
    ]
    server = grpc.aio.server(options=options)
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
        calls.stopping.set()
        await server.stop(settings.drain_seconds)


def require_few_fields(kind: Any, body: bytes) -> None:
    """Check the number of fields of a serialised message, those of the messages in it included, and
    the number of elements of its packed arrays.

    Args:
        kind: descriptor of the message.

    Raises:
        BodyTooLarge: if it has more fields than `MOST_FIELDS`, or more elements than
            `MOST_ELEMENTS`.
        DecodeError: if it is cut off.
    """
    left, elements = MOST_FIELDS, 0
    parts = [(kind, memoryview(body))]
    while parts:
        kind, part = parts.pop()
        at = 0
        while at < len(part):
            tag, at = _varint(part, at)
            wire, field = tag & 7, kind.fields_by_number.get(tag >> 3)
            length = FIXED.get(wire, 0)
            if wire in (VARINT, DELIMITED):
                length, at = _varint(part, at)
            if wire == DELIMITED and field and field.message_type:
                parts.append((field.message_type, part[at : at + length]))
            elif wire == DELIMITED and field and field.cpp_type != field.CPPTYPE_STRING:
                packed = np.frombuffer(part[at : at + length], np.uint8)
                elements += int(np.count_nonzero(packed < 128))  # the last byte of each number
            at += 0 if wire == VARINT else length
            left -= 1
            if left < 0:
                raise BodyTooLarge(f"the message has more than the {MOST_FIELDS} fields allowed")
            if elements > MOST_ELEMENTS:
                raise BodyTooLarge(
                    f"the arrays of the message have more than the {MOST_ELEMENTS} elements "
                    "allowed; send raw_input_contents"
                )


def _varint(part: memoryview, at: int) -> tuple[int, int]:
    """Return the number that begins at a byte, and where it ends."""
    number = shift = 0
    while at < len(part) and shift < 70:
        byte = part[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
    raise DecodeError("a number is cut off")


def read_message(message: Any) -> InferRequest:
    """Read the message of an inference request.

    Raises:
        MalformedRequest: if a tensor is wrong; the message says how.
    """
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise MalformedRequest(
            f"raw_input_contents has {counted(len(raw), 'element')} for "
            f"{counted(len(message.inputs), 'input')}"
        )
    tensors = []
    for one in (*message.inputs, *message.outputs):
        require_known_extensions(one.name, dict.fromkeys(one.parameters, True))
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
        EVERY,
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
