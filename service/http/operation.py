"""An operation on images, `POST /v1/models/{model}:NAME`, and the route that serves it.

Whatever an operation is stands in its folder below `service/features`; here is what all have in
common: the media type is chosen, the request read and admitted, each instance worked on, and a
problem of one instance told in its place.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Any, Final, Generic, TypeVar

from anyio import to_thread
from fastapi import APIRouter
from pydantic import BaseModel, Field, create_model
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cam.progress import Progress
from service.backend.interface import Listener
from service.core.errors import Problem
from service.core.schemas import TINY_PNG, FailedInstance, Open, ProgressLine, Step, dump
from service.http.access import Scope, needs
from service.http.contract import JSON, PHOTOS, SERVING, UNCHANGED, answers, takes, worked_example
from service.http.reception import Reception, RequestContext, deadline, while_connected
from service.http.responses import (
    as_ready,
    choose,
    failed,
    list_of,
    matches,
    require_one_map,
    together,
)
from service.models.info import ModelInfo
from service.pipeline.instances import Instance, P
from service.pipeline.parameters import ImageParameters, Instances, PredictInstance
from service.pipeline.pipeline import Pipeline
from service.pipeline.targets import StrictModel

NDJSON: Final = "application/x-ndjson"
LAST_LINES_SECONDS: Final = 1.0
"""Seconds behind the deadline in which a stream's last lines may be sent."""
SMALL_BYTES: Final = 256 * 1024
"""Bytes that are hashed or written as JSON on the event loop, in less than half a millisecond."""
T = TypeVar("T")
Value = TypeVar("Value")
Results = Sequence[tuple[Instance[P], T | Problem]]
"""Each instance with its result, or with the problem that it has."""


@dataclass(frozen=True, eq=False)
class InstanceContext(Generic[P]):
    """One instance of a request, and what the work on it needs."""

    pipeline: Pipeline
    request: RequestContext[P]
    instance: Instance[P]
    progress: Listener | None = None
    """Is called with the progress of the work."""


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
        function: name of the operation in generated clients, as `show_activations`; by default the
            verb.
        summary, description: what `openapi/openapi.json` says of it.
        page: path of its page, below docs/.
        scope: what a caller's key must allow.
        parameters: schema of the parameters: of a query, of the fields of a form.
        body: schema of a body of JSON, with `instances` and `parameters`. By default an instance
            has no parameters of its own.
        example: example of such a body; by default one photo.
        work: the work on one instance.
        entry: schema of a line of a stream; None if there is no stream.
        response: schema of the answer in JSON; by default the entries of all instances, in a list
            that has the operation's name.
        gather: makes the answer of the results of all instances; by default the work returns a list
            of entries, and the answer has one field, with the entries of all.
        lines: makes the lines of a stream of a result; by default they are the result.
        line: example of a stream; by default an example of a line.
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
    function: str = ""
    summary: str
    description: str = ""
    page: str = ""
    scope: Scope = "explain"
    parameters: type[P]
    body: type[BaseModel] | None = None
    example: Mapping[str, Any] = field(
        default_factory=lambda: {"instances": [{"image": {"b64": TINY_PNG}}]}
    )
    work: Callable[[InstanceContext[P]], Awaitable[T]]
    entry: type[BaseModel] | None = None
    response: type[BaseModel] | None = None
    gather: Callable[[Results[P, T]], BaseModel] | None = None
    lines: Callable[[T], Sequence[BaseModel]] | None = None
    line: str = ""
    step: Callable[[Instance[P], Progress], BaseModel] = progress_line
    drawn: Sequence[str] = ()
    draw: Callable[[InstanceContext[P], str], Awaitable[bytes]] | None = None
    check: Callable[[Sequence[Instance[P]], str], None] = one_for_a_file
    tag: Callable[[ModelInfo, str, Sequence[Instance[P]]], str] | None = None
    told: Sequence[str] = ()
    size: Callable[[Any], int] | None = None

    @property
    def forms(self) -> tuple[str, ...]:
        """Media types of the answer."""
        return (JSON, *self.drawn, *([NDJSON] if self.entry else []))

    @property
    def request_schema(self) -> type[BaseModel]:
        """Schema of a body of JSON."""
        return self.body or _request_with(self.parameters)

    @cached_property
    def answer_schema(self) -> type[BaseModel]:
        """Schema of the answer in JSON."""
        if self.response:
            return self.response
        assert self.entry  # an operation has the one or the other
        entries: Any = list[self.entry | FailedInstance]  # type: ignore[name-defined]
        fields: dict[str, Any] = {self.name: entries}
        return create_model(f"{self.entry.__name__}Response", __base__=Open, **fields)

    @property
    def stream(self) -> dict[str, str]:
        """Media type of a stream, with an example, if there is one."""
        if not self.entry:
            return {}
        return {NDJSON: self.line or json.dumps(worked_example(self.entry)) + "\n"}

    def gathered(self, results: Results[P, T]) -> BaseModel:
        """Return the answer of the results of all instances."""
        if self.gather:
            return self.gather(results)
        (name,) = self.answer_schema.model_fields
        entries: Any = results
        return self.answer_schema(**{name: each(entries)})

    def lines_of(self, result: T) -> Sequence[BaseModel]:
        """Return the lines of a stream of a result."""
        found: Any = result
        return self.lines(result) if self.lines else found


@cache
def _request_with(parameters: type[ImageParameters]) -> type[BaseModel]:
    """Return the schema of a body of JSON whose instances have no parameters of their own."""
    return create_model(
        parameters.__name__.removesuffix("Parameters") + "Request",
        __base__=StrictModel,
        instances=(Instances[PredictInstance], ...),
        parameters=(parameters, Field(default_factory=parameters)),
    )


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
        described = answers(
            operation.answer_schema,
            {**operation.stream, **dict.fromkeys(operation.drawn)},
            headers=operation.told,
            problems=SERVING,
        )
        if operation.tag:
            described |= UNCHANGED
        router.post(
            f"/v1/models/{{model:model}}:{operation.name}",
            name=operation.function or operation.name,
            summary=operation.summary,
            description=operation.description,
            response_model=operation.answer_schema,
            responses=described,
            openapi_extra=takes(
                operation.parameters,
                operation.request_schema,
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

        @needs(self._operation.scope, work=True)
        async def endpoint(model: str, request: Request) -> Response:
            return await self._answer(model, request)

        return endpoint

    async def _answer(self, model: str, request: Request) -> Response:
        operation = self._operation
        form = choose(list_of(request, "accept"), operation.forms)
        headers = {"Vary": "Accept"} if len(operation.forms) > 1 else {}
        received = self._reception.receive(
            request, model, operation.parameters, operation.request_schema
        )
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
                if matches(list_of(request, "if-none-match"), headers["ETag"]):
                    return Response(status_code=304, headers=headers)
            async with while_connected(request):
                if form != JSON:
                    assert operation.draw  # `drawn` names the form
                    (instance,) = context.instances
                    drawing = InstanceContext(self._pipeline, context, instance)
                    body = await operation.draw(drawing, form)
                else:
                    body = await self._json(context, headers)
        headers["Server-Timing"] = context.timings.header()
        return Response(body, media_type=form, headers=headers)

    async def _json(self, context: RequestContext[P], headers: dict[str, str]) -> bytes:
        """Return the answer in JSON. It has no entity tag if an instance failed: another try may
        succeed."""
        operation = self._operation

        async def work(instance: Instance[P]) -> T:
            return await operation.work(InstanceContext(self._pipeline, context, instance))

        found = await together(work, context.instances)
        if any(isinstance(result, Problem) for result in found):
            headers.pop("ETag", None)
        answer = operation.gathered(list(zip(context.instances, found, strict=True)))
        size = operation.size(answer) if operation.size else SMALL_BYTES + 1
        return await _quickly(size, partial(dump, answer))

    async def _lines(self, context: RequestContext[P]) -> AsyncIterator[bytes]:
        """Yield a line for each result of the work on an instance, after lines of its progress."""
        operation = self._operation

        async def bounded(instance: Instance[P], report: Listener) -> T:
            async with deadline(context.seconds_left, of=context.seconds):
                return await operation.work(
                    InstanceContext(self._pipeline, context, instance, report)
                )

        with self._reception.lasting(context):
            async for instance, result in as_ready(bounded, context.instances):
                if isinstance(result, Problem):
                    yield dump(failed(instance, result)) + b"\n"
                elif isinstance(result, Progress):
                    yield dump(operation.step(instance, result)) + b"\n"
                else:
                    for one in operation.lines_of(result):
                        yield dump(one) + b"\n"


async def _quickly(size: int, work: Callable[[], Value]) -> Value:
    """Do work on `size` bytes: here, if a thread would take longer to start, else in a thread."""
    return work() if size <= SMALL_BYTES else await to_thread.run_sync(work)
