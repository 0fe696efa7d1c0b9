"""Routes that accept images: `:predict`, `:explain`, `:evaluate`, `:activations`, `:answer`."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from typing import Final, TypeVar

from anyio import to_thread
from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cam.answers.answer import AnswerProgress
from cam.methods.progress import Progress
from service.backend.interface import Listener
from service.core import answer_schemas, schemas
from service.core.errors import InvalidParameter, Problem
from service.core.schemas import dump
from service.http import documentation
from service.http.access import needs
from service.http.answers import (
    as_ready,
    choose,
    entity_tag,
    failed,
    matches,
    require_one_map,
    together,
)
from service.http.contract import SERVING, answers
from service.http.reception import Reception, RequestContext, deadline, while_connected
from service.pipeline.answer_parameters import AnswerParameters
from service.pipeline.answers import AnswerResult, describe_token_line
from service.pipeline.evaluate_parameters import EvaluateParameters
from service.pipeline.evaluation import summarise
from service.pipeline.instances import Instance, P
from service.pipeline.observations import NPZ
from service.pipeline.parameters import ActivationParameters, Parameters, PredictParameters
from service.pipeline.pipeline import Pipeline
from service.pipeline.rendering import EXTENSIONS
from service.pipeline.result import NPY, AnswerBudget
from service.pipeline.targets import MAX_MAPS

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
ANSWER_FORMS: Final = (JSON, *EXTENSIONS, NDJSON)
ACTIVATION_FORMS: Final = (JSON, *EXTENSIONS, NPZ)
FORMS: Final = (JSON, *EXTENSIONS, NPY, NDJSON)
LAST_LINES_SECONDS: Final = 1.0
"""Seconds behind the deadline in which a stream's last lines may be sent."""
SMALL_BYTES: Final = 256 * 1024
"""Bytes that are hashed or written as JSON on the event loop, in less than half a millisecond."""
T = TypeVar("T")
Explained = tuple[schemas.Prediction, list[schemas.Explanation]]


def make_router(*, reception: Reception, pipeline: Pipeline) -> APIRouter:
    """Make the routes of `:predict`, `:explain`, `:evaluate`, `:activations` and `:answer`."""
    router, routes = APIRouter(tags=["explain"]), ImageRoutes(reception, pipeline)
    model = "/v1/models/{model:model}"
    router.post(
        f"{model}:predict",
        summary="The most probable classes of each image",
        description="Segments of a segmenter, boxes of a detector. There is no map.",
        response_model=schemas.PredictResponse,
        responses=answers(schemas.PredictResponse, problems=SERVING),
        openapi_extra=documentation.PREDICT,
    )(routes.predict)
    router.post(
        f"{model}:explain",
        summary="Where in each image the model sees a class",
        description=(
            "Answers by `Accept`: `application/json` (default), `application/x-ndjson` (an "
            "explanation a line, as each is ready), or, for exactly one map, `image/png`, "
            "`image/jpeg`, `image/webp` (a picture) or `application/x-npy` (float32 numbers)."
        ),
        response_model=schemas.ExplainResponse,
        responses={
            **answers(
                schemas.ExplainResponse,
                {NDJSON: documentation.EXPLANATION_LINE, **dict.fromkeys((*EXTENSIONS, NPY))},
                headers=["ETag", "Server-Timing"],
                problems=SERVING,
            ),
            304: {"description": "The caller's `If-None-Match` names this very answer."},
        },
        openapi_extra=documentation.EXPLAIN,
    )(routes.explain)
    router.post(
        f"{model}:evaluate",
        summary="How good the maps of each image are",
        description=(
            "Scores maps by metrics such as deletion, insertion, ROAD, ADCC and stability, beside "
            "maps that know nothing of the model. The maps are those that `:explain` makes, or "
            "one that is sent with the instance as `map`. Answers by `Accept`: `application/json` "
            "(default) or `application/x-ndjson` (lines of progress, and a line for each map)."
        ),
        response_model=schemas.EvaluateResponse,
        responses=answers(
            schemas.EvaluateResponse,
            {NDJSON: documentation.EVALUATION_LINE},
            headers=["Server-Timing"],
            problems=SERVING,
        ),
        openapi_extra=documentation.EVALUATE,
    )(routes.evaluate)
    router.post(
        f"{model}:activations",
        summary="What hooks on layers see: inputs, outputs and gradients",
        description=(
            "Answers by `Accept`: `application/json` (default) with statistics; for one image "
            "`application/x-npz` with the arrays, and for one layer `image/png`, `image/jpeg` or "
            "`image/webp` with a gallery of its strongest feature maps."
        ),
        response_model=schemas.ActivationResponse,
        responses=answers(
            schemas.ActivationResponse, dict.fromkeys((*EXTENSIONS, NPZ)), problems=SERVING
        ),
        openapi_extra=documentation.ACTIVATIONS,
    )(routes.show_activations)
    router.post(
        f"{model}:answer",
        summary="The answer to a question about each image, and where the model sees each word",
        description=(
            "Of vision–language models. Answers by `Accept`: `application/json` (default), "
            "`application/x-ndjson` (each token as soon as it is said, with its map, then the "
            "whole answer), or, for one image, `image/png`, `image/jpeg`, `image/webp`: a picture "
            "of one `word`, or of all words."
        ),
        response_model=answer_schemas.AnswerResponse,
        responses=answers(
            answer_schemas.AnswerResponse,
            {NDJSON: documentation.ANSWER_LINES, **dict.fromkeys(EXTENSIONS)},
            headers=["Server-Timing"],
            problems=SERVING,
        ),
        openapi_extra=documentation.ANSWER,
    )(routes.answer)
    return router


class ImageRoutes:
    """The routes that accept images, with the reception and the pipeline that they share."""

    def __init__(self, reception: Reception, pipeline: Pipeline) -> None:
        self._reception = reception
        self._pipeline = pipeline

    @needs("explain", work=True)
    async def predict(self, model: str, request: Request) -> Response:
        """Answer `:predict`."""
        choose(_list_of(request, "accept"), [JSON])

        async def work(instance: Instance[PredictParameters]) -> schemas.Prediction:
            return await self._pipeline.predict(context.replicas, instance, context.timings)

        async with (
            self._reception.receive(request, model, PredictParameters) as context,
            while_connected(request),
        ):
            results = await together(work, context.instances)
        predictions = [
            failed(instance, result) if isinstance(result, Problem) else result
            for instance, result in zip(context.instances, results, strict=True)
        ]
        answer = schemas.PredictResponse(predictions=predictions)
        body = await to_thread.run_sync(dump, answer)
        headers = {"Server-Timing": context.timings.header()}
        return Response(body, media_type=JSON, headers=headers)

    @needs("explain", work=True)
    async def explain(self, model: str, request: Request) -> Response:
        """Answer `:explain`."""
        form = choose(_list_of(request, "accept"), FORMS)
        async with self._reception.receive(request, model, Parameters) as context:
            _limit_maps(context.instances)
            if form == NDJSON:
                return self._streamed(request, context, self._explanations)
            single = form in EXTENSIONS or form == NPY
            if single:
                _require_single(context.instances, form)
            served = context.replicas.model
            tag = await _quickly(
                sum(instance.size for instance in context.instances),
                partial(entity_tag, served, form, context.instances),
            )
            headers = {"ETag": tag, "Vary": "Accept"}
            if matches(_list_of(request, "if-none-match"), tag):
                return Response(status_code=304, headers=headers)
            async with while_connected(request):
                if single:
                    body = await self._picture(context, form)
                else:
                    answer = await self._explain_all(context, headers)
                    body = await _quickly(_size_of(answer.explanations), partial(dump, answer))
        headers["Server-Timing"] = context.timings.header()
        return Response(body, media_type=form, headers=headers)

    @needs("explain", work=True)
    async def evaluate(self, model: str, request: Request) -> Response:
        """Answer `:evaluate`."""
        form = choose(_list_of(request, "accept"), [JSON, NDJSON])

        async def work(instance: Instance[EvaluateParameters]) -> list[schemas.Evaluation]:
            return await self._pipeline.evaluate(
                context.replicas, instance, context.timings, until=context.passes_until
            )

        async with self._reception.receive(request, model, EvaluateParameters) as context:
            _limit_maps(context.instances)
            if form == NDJSON:
                return self._streamed(request, context, self._evaluated)
            async with while_connected(request):
                results = await together(work, context.instances)
        evaluations: list[schemas.Evaluation | schemas.FailedInstance] = []
        for instance, result in zip(context.instances, results, strict=True):
            evaluations += [failed(instance, result)] if isinstance(result, Problem) else result
        good = [
            evaluation for evaluation in evaluations if isinstance(evaluation, schemas.Evaluation)
        ]
        answer = schemas.EvaluateResponse(evaluations=evaluations, summary=summarise(good))
        body = await to_thread.run_sync(dump, answer)
        headers = {"Server-Timing": context.timings.header(), "Vary": "Accept"}
        return Response(body, media_type=JSON, headers=headers)

    @needs("explain", work=True)
    async def answer(self, model: str, request: Request) -> Response:
        """Answer `:answer`."""
        form = choose(_list_of(request, "accept"), ANSWER_FORMS)
        async with self._reception.receive(request, model, AnswerParameters) as context:
            if form == NDJSON:
                return self._streamed(request, context, self._answered)
            if form != JSON:
                require_one_map(len(context.instances), form)
            async with while_connected(request):
                if form != JSON:
                    result = await self._answer(context, context.instances[0])
                    picture = partial(result.as_picture, form)
                    body = await self._pipeline.draw_answer(picture)
                else:
                    results = await together(
                        lambda instance: self._answered(context, instance), context.instances
                    )
                    found: list[answer_schemas.Answer | schemas.FailedInstance] = []
                    for instance, one in zip(context.instances, results, strict=True):
                        found += [failed(instance, one)] if isinstance(one, Problem) else one
                    answer = answer_schemas.AnswerResponse(answers=found)
                    body = await to_thread.run_sync(dump, answer)
        headers = {"Server-Timing": context.timings.header(), "Vary": "Accept"}
        return Response(body, media_type=form, headers=headers)

    async def _answer(
        self,
        context: RequestContext[AnswerParameters],
        instance: Instance[AnswerParameters],
        progress: Listener | None = None,
    ) -> AnswerResult:
        return await self._pipeline.answer(
            context.replicas, instance, context.timings, progress, context.passes_until
        )

    async def _answered(
        self,
        context: RequestContext[AnswerParameters],
        instance: Instance[AnswerParameters],
        progress: Listener | None = None,
    ) -> list[answer_schemas.Answer]:
        result = await self._answer(context, instance, progress)
        return [await self._pipeline.draw_answer(result.as_json)]

    @needs("explain", work=True)
    async def show_activations(self, model: str, request: Request) -> Response:
        """Answer `:activations`."""
        form = choose(_list_of(request, "accept"), ACTIVATION_FORMS)

        async def look(instance: Instance[ActivationParameters]) -> list[schemas.LayerActivation]:
            return await self._pipeline.observe(context.replicas, instance, context.timings)

        async with self._reception.receive(request, model, ActivationParameters) as context:
            if form != JSON:
                require_one_map(len(context.instances), form)
            async with while_connected(request):
                if form != JSON:
                    (instance,) = context.instances
                    body = await self._pipeline.show(
                        context.replicas, instance, context.timings, form
                    )
                else:
                    results = await together(look, context.instances)
                    activations: list[schemas.LayerActivation | schemas.FailedInstance] = []
                    for instance, result in zip(context.instances, results, strict=True):
                        if isinstance(result, Problem):
                            activations.append(failed(instance, result))
                        else:
                            activations.extend(result)
                    answer = schemas.ActivationResponse(activations=activations)
                    body = await to_thread.run_sync(dump, answer)
        headers = {"Server-Timing": context.timings.header(), "Vary": "Accept"}
        return Response(body, media_type=form, headers=headers)

    async def _picture(self, context: RequestContext[Parameters], form: str) -> bytes:
        (instance,) = context.instances
        budget = None
        if form == NPY:  # one map, whose size is limited by that of photos
            budget = AnswerBudget(1, context.hold, most=sys.maxsize, bytes_each=4, always=True)
        async with self._pipeline.explain(
            context.replicas,
            instance,
            timings=context.timings,
            until=context.passes_until,
            budget=budget,
        ) as result:
            return await result.as_picture(form)

    async def _explained(
        self,
        context: RequestContext[Parameters],
        instance: Instance[Parameters],
        progress: Listener | None = None,
    ) -> Explained:
        async with self._pipeline.explain(
            context.replicas,
            instance,
            timings=context.timings,
            progress=progress,
            budget=AnswerBudget(len(context.instances), context.hold),
            until=context.passes_until,
        ) as result:
            explanations = await result.as_json()
            context.hold(_size_of(explanations))  # the pictures' sizes are known only now
            return result.prediction(), explanations

    async def _explain_all(
        self, context: RequestContext[Parameters], headers: dict[str, str]
    ) -> schemas.ExplainResponse:
        results = await together(
            lambda instance: self._explained(context, instance), context.instances
        )
        predictions: list[schemas.Prediction | schemas.FailedInstance] = []
        explanations: list[schemas.Explanation | schemas.FailedInstance] = []
        for instance, result in zip(context.instances, results, strict=True):
            if isinstance(result, Problem):
                predictions.append(failed(instance, result))
                explanations.append(failed(instance, result))
                headers.pop("ETag", None)  # another try may succeed
            else:
                predictions.append(result[0])
                explanations.extend(result[1])
        return schemas.ExplainResponse(predictions=predictions, explanations=explanations)

    async def _explanations(
        self, context: RequestContext[Parameters], instance: Instance[Parameters], report: Listener
    ) -> Sequence[BaseModel]:
        return (await self._explained(context, instance, report))[1]

    async def _evaluated(
        self,
        context: RequestContext[EvaluateParameters],
        instance: Instance[EvaluateParameters],
        report: Listener,
    ) -> Sequence[BaseModel]:
        return await self._pipeline.evaluate(
            context.replicas, instance, context.timings, report, context.passes_until
        )

    def _streamed(
        self,
        request: Request,
        context: RequestContext[P],
        work: Callable[
            [RequestContext[P], Instance[P], Listener], Coroutine[None, None, Sequence[BaseModel]]
        ],
    ) -> Response:
        # At the deadline each unfinished instance becomes a line that says so.
        request.scope["state"]["until"] = context.until + LAST_LINES_SECONDS
        lines = self._lines(context, work)
        return StreamingResponse(lines, media_type=NDJSON, headers={"Vary": "Accept"})

    async def _lines(
        self,
        context: RequestContext[P],
        work: Callable[
            [RequestContext[P], Instance[P], Listener], Coroutine[None, None, Sequence[BaseModel]]
        ],
    ) -> AsyncIterator[bytes]:
        """Yield a line for each result of the work on an instance, after lines of its progress."""

        async def bounded(instance: Instance[P], report: Listener) -> Sequence[BaseModel]:
            async with deadline(context.seconds_left, of=context.seconds):
                return await work(context, instance, report)

        with self._reception.lasting(context):
            async for instance, result in as_ready(bounded, context.instances):
                if isinstance(result, Problem):
                    yield dump(failed(instance, result)) + b"\n"
                elif isinstance(result, AnswerProgress) and result.token:
                    yield dump(describe_token_line(instance, result)) + b"\n"
                elif isinstance(result, Progress):
                    step = schemas.Step(done=result.done, total=result.total)
                    line = schemas.ProgressLine(
                        instance=instance.index,
                        id=instance.id,
                        progress=step,
                        method=result.method,
                    )
                    yield dump(line) + b"\n"
                else:
                    for explanation in result:
                        yield dump(explanation) + b"\n"


async def _quickly(size: int, work: Callable[[], T]) -> T:
    """Do work on `size` bytes: here, if a thread would take longer to start, else in a thread."""
    return work() if size <= SMALL_BYTES else await to_thread.run_sync(work)


def _size_of(explanations: Sequence[schemas.Explanation | schemas.FailedInstance]) -> int:
    """Return the bytes of the maps and pictures in an answer."""
    size = 0
    for explanation in explanations:
        if isinstance(explanation, schemas.Explanation):
            size += len(explanation.heatmap.data) + (
                len(explanation.overlay.data) if explanation.overlay else 0
            )
    return size


def _list_of(request: Request, header: str) -> str | None:
    """Return the joined lines of a header that may be sent in several (RFC 9110, 5.3)."""
    return ", ".join(request.headers.getlist(header)) or None


def _limit_maps(instances: Sequence[Instance[Parameters]]) -> None:
    """Check the number of maps that a request asks for.

    Raises:
        InvalidParameter: if the instances together ask for more maps than one request may.
    """
    asked = sum(instance.parameters.maps for instance in instances)
    if asked > MAX_MAPS:
        raise InvalidParameter(
            f"the request asks for {asked} maps; at most {MAX_MAPS} are allowed: fewer images, "
            "methods, targets or layers"
        )


def _require_single(instances: list[Instance[Parameters]], form: str) -> None:
    """Check that the answer fits one picture or one NumPy file.

    Raises:
        NotAcceptable, InvalidParameter: if the request's answer does not fit one picture.
    """
    require_one_map(len(instances), form)
    require_one_map(instances[0].parameters.maps, form)
    output = instances[0].parameters.output
    if form == NPY and output not in (None, "values"):
        raise InvalidParameter(f"output is {output!r}, but {NPY} holds values; leave it out")
    if form != NPY and output == "values":
        raise InvalidParameter(f"output is 'values', which is not a picture; ask for {NPY}")
