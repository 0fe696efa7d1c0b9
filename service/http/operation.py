"""An operation on images, `POST /v1/models/{model}:NAME`, and the route that serves it.

Whatever an operation is stands in its folder below `service/features`; here is what all have in
common: the media type is chosen, the request read and admitted, each instance worked on, and a
problem of one instance told in its place.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

from anyio import to_thread
from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cam.progress import Progress
from service.backend.interface import Listener
from service.core.errors import Problem
from service.core.schemas import FailedInstance, ProgressLine, Step, dump
from service.http.access import needs
from service.http.answers import as_ready, choose, failed, matches, require_one_map, together
from service.http.contract import JSON, PHOTOS, SERVING, UNCHANGED, answers, takes
from service.http.reception import Reception, RequestContext, deadline, while_connected
from service.models.info import ModelInfo
from service.pipeline.instances import Instance, P
from service.pipeline.pipeline import Pipeline

NDJSON: Final = "application/x-ndjson"
LAST_LINES_SECONDS: Final = 1.0
"""Seconds behind the deadline in which a stream's last lines may be sent."""
SMALL_BYTES: Final = 256 * 1024
"""Bytes that are hashed or written as JSON on the event loop, in less than half a millisecond."""
T = TypeVar("T")
Value = TypeVar("Value")
Results = Sequence[tuple[Instance[P], T | Problem]]
"""Each instance with its result, or with the problem that it has."""
Work = Callable[[Pipeline, RequestContext[P], Instance[P], Listener | None], Awaitable[T]]
"""The work on one instance. The listener is called with its progress."""


def progress_line(instance: Instance[P], progress: Progress) -> BaseModel:
    """Return the line of a stream that tells the progress of an instance."""
    return ProgressLine(
        instance=instance.index,
        id=instance.id,
        progress=Step(done=progress.done, total=progress.total),
        method=progress.method,
    )


def one_for_a_file(instances: Sequence[Instance[P]], form: str) -> None:
    """Check that a file is asked for of one instance.

    Raises:
        NotAcceptable: if it is asked for of several.
    """
    if form not in (JSON, NDJSON):
        require_one_map(len(instances), form)


@dataclass(frozen=True, kw_only=True)
class Operation(Generic[P, T]):
    """What a model does with images at `POST /v1/models/{model}:NAME`.

    Args:
        name: the verb in the path.
        function: name of the operation in generated clients, as `show_activations`.
        summary, description: what `openapi/openapi.json` says of it.
        parameters: schema of the parameters: of a query, of the fields of a form.
        body: schema of a body of JSON, with `instances` and `parameters`.
        example: example of such a body.
        response: schema of the answer in JSON.
        work: the work on one instance.
        gather: makes the answer of the results of all instances.
        lines: makes the lines of a stream of a result; None if there is no stream.
        line: example of a stream.
        step: makes the line of a stream that tells the progress of an instance.
        drawn: media types of files that are made of one instance.
        draw: makes the file of the only instance.
        check: is called with the instances and the media type before any work.
        tag: returns the answer's entity tag, by the model, the media type and the instances; an
            answer is not made again for a caller who has it. None if there are no tags.
        told: names of the headers that the document lists.
        size: returns the bytes of pictures and maps in an answer, if many are small; by default
            each answer is written by a thread.
    """

    name: str
    function: str
    summary: str
    description: str
    parameters: type[P]
    body: type[BaseModel]
    example: Mapping[str, Any]
    response: type[BaseModel]
    work: Work[P, T]
    gather: Callable[[Results[P, T]], BaseModel]
    lines: Callable[[T], Sequence[BaseModel]] | None = None
    line: str = ""
    step: Callable[[Instance[P], Progress], BaseModel] = progress_line
    drawn: Sequence[str] = ()
    draw: Callable[[Pipeline, RequestContext[P], str], Awaitable[bytes]] | None = None
    check: Callable[[Sequence[Instance[P]], str], None] = one_for_a_file
    tag: Callable[[ModelInfo, str, Sequence[Instance[P]]], str] | None = None
    told: Sequence[str] = ()
    size: Callable[[Any], int] | None = None

    @property
    def forms(self) -> tuple[str, ...]:
        """Media types of the answer."""
        return (JSON, *self.drawn, *([NDJSON] if self.lines else []))


def each(results: Results[P, Sequence[Value]]) -> list[Value | FailedInstance]:
    """Return the entries of all instances, one for each instance that failed."""
    found: list[Value | FailedInstance] = []
    for instance, result in results:
        found += [failed(instance, result)] if isinstance(result, Problem) else result
    return found


def make_operations_router(
    operations: Sequence[Operation[Any, Any]], *, reception: Reception, pipeline: Pipeline
) -> APIRouter:
    """Make the routes of operations."""
    router = APIRouter(tags=["explain"])
    for operation in operations:
        streamed = {NDJSON: operation.line} if operation.lines else {}
        described = answers(
            operation.response,
            {**streamed, **dict.fromkeys(operation.drawn)},
            headers=operation.told,
            problems=SERVING,
        )
        if operation.tag:
            described |= UNCHANGED
        router.post(
            f"/v1/models/{{model:model}}:{operation.name}",
            name=operation.function,
            summary=operation.summary,
            description=operation.description,
            response_model=operation.response,
            responses=described,
            openapi_extra=takes(
                operation.parameters,
                operation.body,
                example=operation.example,
                form=operation.parameters,
                files=PHOTOS,
            ),
        )(_Route(operation, reception, pipeline).endpoint())
    return router


class _Route(Generic[P, T]):
    """The route of an operation, with the reception and the pipeline that all share."""

    def __init__(
        self, operation: Operation[P, T], reception: Reception, pipeline: Pipeline
    ) -> None:
        self._operation = operation
        self._reception = reception
        self._pipeline = pipeline

    def endpoint(self) -> Callable[[str, Request], Awaitable[Response]]:
        """Return the function that FastAPI calls, which declares its access."""

        @needs("explain", work=True)
        async def endpoint(model: str, request: Request) -> Response:
            return await self._answer(model, request)

        return endpoint

    async def _answer(self, model: str, request: Request) -> Response:
        operation = self._operation
        form = choose(_list_of(request, "accept"), operation.forms)
        headers = {"Vary": "Accept"} if len(operation.forms) > 1 else {}
        received = self._reception.receive(request, model, operation.parameters, operation.body)
        async with received as context:
            operation.check(context.instances, form)
            if form == NDJSON:
                # At the deadline each unfinished instance becomes a line that says so.
                request.scope["state"]["until"] = context.until + LAST_LINES_SECONDS
                return StreamingResponse(self._lines(context), media_type=form, headers=headers)
            if operation.tag:
                headers["ETag"] = await _quickly(
                    sum(instance.size for instance in context.instances),
                    partial(operation.tag, context.replicas.model, form, context.instances),
                )
                if matches(_list_of(request, "if-none-match"), headers["ETag"]):
                    return Response(status_code=304, headers=headers)
            async with while_connected(request):
                if form != JSON:
                    assert operation.draw  # `drawn` names the form
                    body = await operation.draw(self._pipeline, context, form)
                else:
                    body = await self._json(context, headers)
        headers["Server-Timing"] = context.timings.header()
        return Response(body, media_type=form, headers=headers)

    async def _json(self, context: RequestContext[P], headers: dict[str, str]) -> bytes:
        """Return the answer in JSON. It has no entity tag if an instance failed: another try may
        succeed."""
        operation = self._operation

        async def work(instance: Instance[P]) -> T:
            return await operation.work(self._pipeline, context, instance, None)

        found = await together(work, context.instances)
        if any(isinstance(result, Problem) for result in found):
            headers.pop("ETag", None)
        answer = operation.gather(list(zip(context.instances, found, strict=True)))
        size = operation.size(answer) if operation.size else SMALL_BYTES + 1
        return await _quickly(size, partial(dump, answer))

    async def _lines(self, context: RequestContext[P]) -> AsyncIterator[bytes]:
        """Yield a line for each result of the work on an instance, after lines of its progress."""
        operation = self._operation
        assert operation.lines  # `forms` has the stream

        async def bounded(instance: Instance[P], report: Listener) -> T:
            async with deadline(context.seconds_left, of=context.seconds):
                return await operation.work(self._pipeline, context, instance, report)

        with self._reception.lasting(context):
            async for instance, result in as_ready(bounded, context.instances):
                if isinstance(result, Problem):
                    yield dump(failed(instance, result)) + b"\n"
                elif isinstance(result, Progress):
                    yield dump(operation.step(instance, result)) + b"\n"
                else:
                    for one in operation.lines(result):
                        yield dump(one) + b"\n"


async def _quickly(size: int, work: Callable[[], Value]) -> Value:
    """Do work on `size` bytes: here, if a thread would take longer to start, else in a thread."""
    return work() if size <= SMALL_BYTES else await to_thread.run_sync(work)


def _list_of(request: Request, header: str) -> str | None:
    """Return the joined lines of a header that may be sent in several (RFC 9110, 5.3)."""
    return ", ".join(request.headers.getlist(header)) or None
