"""The routes that take images: parse → call → render."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial

from anyio import to_thread
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cam import Concept
from cam.methods.subject import Progress
from service.core import schemas
from service.core.errors import InvalidParameter, NotAcceptable, Problem
from service.core.schemas import dump
from service.engine.engine import Listener
from service.http import documentation
from service.http.answers import (
    as_ready,
    entity_tag,
    failed,
    matches,
    require_one_map,
    together,
)
from service.http.contract import SERVING, answers
from service.http.negotiation import choose
from service.http.reception import Reception, RequestContext
from service.limits.timeouts import deadline, while_connected
from service.pipeline.explainer import Explainer
from service.pipeline.instances import Instance
from service.pipeline.observations import (
    describe_activations,
    draw_concepts,
    draw_gallery,
    pack_arrays,
)
from service.pipeline.parameters import ActivationParameters, Parameters, PredictParameters
from service.pipeline.rendering import EXTENSIONS
from service.pipeline.targets import MAX_MAPS
from service.pipeline.work_item import WorkItem, require_few_numbers

JSON, NDJSON, NPY = "application/json", "application/x-ndjson", "application/x-npy"
NPZ = "application/x-npz"
ACTIVATION_FORMS = (JSON, *EXTENSIONS, NPZ)
FORMS = (JSON, *EXTENSIONS, NPY, NDJSON)
LOOKS = 2
"""At layers at a time, until they are told: of all layers of a model, some hundred megabytes."""


def make_router(*, reception: Reception, explainer: Explainer) -> APIRouter:
    router = APIRouter()

    @router.post(
        "/v1/models/{model:model}:predict",
        tags=["explain"],
        summary="The most probable classes of each image",
        response_model=schemas.PredictResponse,
        responses=answers(schemas.PredictResponse, problems=SERVING),
        openapi_extra=documentation.PREDICT,
    )
    async def predict(model: str, request: Request) -> Response:
        choose(_list_of(request, "accept"), [JSON])

        async def work(instance: Instance[PredictParameters]) -> schemas.Prediction:
            async with explainer.work_item(
                context.replicas, instance, context.timings
            ) as work_item:
                return explainer.predictions(work_item, await explainer.predict(work_item))

        async with (
            reception.receive(request, model, PredictParameters) as context,
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

    @router.post(
        "/v1/models/{model:model}:explain",
        tags=["explain"],
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
    )
    async def explain(model: str, request: Request) -> Response:
        form = choose(_list_of(request, "accept"), FORMS)
        async with reception.receive(request, model, Parameters) as context:
            _limit_maps(context.instances)
            if form == NDJSON:
                return StreamingResponse(
                    _lines(context), media_type=NDJSON, headers={"Vary": "Accept"}
                )
            single = form in EXTENSIONS or form == NPY
            if single:
                _require_single(context.instances, form)
            served = context.replicas.model
            tag = await to_thread.run_sync(entity_tag, served, form, context.instances)
            headers = {"ETag": tag, "Vary": "Accept"}
            if matches(_list_of(request, "if-none-match"), tag):
                return Response(status_code=304, headers=headers)
            async with while_connected(request):
                if single:
                    body = await _draw(context, form)
                else:
                    answer = await _explain_all(context, headers)
                    body = await to_thread.run_sync(dump, answer)
        headers["Server-Timing"] = context.timings.header()
        return Response(body, media_type=form, headers=headers)

    @router.post(
        "/v1/models/{model:model}:activations",
        tags=["explain"],
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
    )
    async def show_activations(model: str, request: Request) -> Response:
        form = choose(_list_of(request, "accept"), ACTIVATION_FORMS)

        async def look(
            instance: Instance[ActivationParameters],
        ) -> list[schemas.LayerActivation]:
            async with explainer.work_item(
                context.replicas, instance, context.timings
            ) as work_item:
                return await _look(work_item)

        async with reception.receive(request, model, ActivationParameters) as context:
            if form != JSON:
                require_one_map(len(context.instances), form)
            async with while_connected(request):
                if form != JSON:
                    body = await _show(context, form)
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

    looks = asyncio.Semaphore(LOOKS)

    async def _look(work_item: WorkItem[ActivationParameters]) -> list[schemas.LayerActivation]:
        async with looks:
            return await _looked(work_item)

    async def _looked(work_item: WorkItem[ActivationParameters]) -> list[schemas.LayerActivation]:
        seen = await explainer.observe(work_item)
        concepts: dict[str, list[Concept]] = {}
        if work_item.instance.parameters.concepts is not None:
            _, concepts = await explainer.concepts(work_item)
        describe = partial(
            describe_activations,
            seen,
            concepts,
            work_item.replicas.model.labels,
            work_item.instance.parameters,
            instance=work_item.instance.index,
            name=work_item.instance.id,
        )
        return await to_thread.run_sync(describe)

    async def _show(context: RequestContext[ActivationParameters], form: str) -> bytes:
        (instance,) = context.instances
        parameters = instance.parameters
        if parameters.concepts is not None and form == NPZ:
            raise NotAcceptable(f"concepts are numbers in JSON or a picture, not {NPZ}")
        async with explainer.work_item(context.replicas, instance, context.timings) as work_item:
            if parameters.concepts is not None:
                looked, concepts = await explainer.concepts(work_item)
                labels = context.replicas.model.labels
                draw = partial(draw_concepts, looked.photo, looked.seen, concepts, labels, form)
                return await work_item.lane.run(draw)
            async with looks:
                seen = await explainer.observe(work_item)
                if form == NPZ:
                    return await to_thread.run_sync(pack_arrays, seen)
                return await to_thread.run_sync(draw_gallery, seen, parameters, form)

    async def _draw(context: RequestContext[Parameters], form: str) -> bytes:
        (instance,) = context.instances
        async with explainer.work_item(context.replicas, instance, context.timings) as work_item:
            return await explainer.render(work_item, await explainer.explain(work_item), form)

    async def explained(
        context: RequestContext[Parameters],
        instance: Instance[Parameters],
        progress: Listener | None = None,
    ) -> tuple[schemas.Prediction, list[schemas.Explanation]]:
        async with explainer.work_item(context.replicas, instance, context.timings) as work_item:
            require_few_numbers(work_item, len(context.instances))
            found = await explainer.explain(work_item, progress)
            described = await explainer.describe(work_item, found)
            return explainer.predictions(work_item, found), described

    async def _explain_all(
        context: RequestContext[Parameters], headers: dict[str, str]
    ) -> schemas.ExplainResponse:
        results = await together(lambda each: explained(context, each), context.instances)
        predictions: list[schemas.Prediction | schemas.FailedInstance] = []
        explanations: list[schemas.Explanation | schemas.FailedInstance] = []
        for instance, result in zip(context.instances, results, strict=True):
            if isinstance(result, Problem):
                predictions.append(failed(instance, result))
                explanations.append(failed(instance, result))
                headers.pop("ETag", None)  # another try may fare better
            else:
                predictions.append(result[0])
                explanations.extend(result[1])
        return schemas.ExplainResponse(predictions=predictions, explanations=explanations)

    async def _lines(context: RequestContext[Parameters]) -> AsyncIterator[bytes]:
        async def bounded(
            instance: Instance[Parameters], report: Callable[[Progress], None]
        ) -> tuple[schemas.Prediction, list[schemas.Explanation]]:
            async with deadline(context.seconds_left, of=context.seconds):
                return await explained(context, instance, report)

        with reception.lasting(context):
            async for instance, result in as_ready(bounded, context.instances):
                if isinstance(result, Problem):
                    yield dump(failed(instance, result)) + b"\n"
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
                    for explanation in result[1]:
                        yield dump(explanation) + b"\n"

    return router


def _list_of(request: Request, header: str) -> str | None:
    """A header that may be sent in several lines (RFC 9110, 5.3)."""
    return ", ".join(request.headers.getlist(header)) or None


def _limit_maps(instances: list[Instance[Parameters]]) -> None:
    """
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
    """
    Raises:
        NotAcceptable, InvalidParameter: if the request's answer does not fit one picture.
    """
    require_one_map(len(instances), form)
    require_one_map(instances[0].parameters.maps, form)
    output = instances[0].parameters.output
    if form == NPY and output not in (None, "values"):
        raise InvalidParameter(f"output is {output!r}, but {NPY} holds values; leave it out")
    if form != NPY and output == "values":
        raise InvalidParameter(f"output is 'values', which is no picture; ask for {NPY}")
