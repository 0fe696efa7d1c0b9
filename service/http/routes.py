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
from service.http.negotiation import choose
from service.http.reception import Inquiry, Reception
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
from service.pipeline.work_item import Case, require_few_numbers

JSON, NDJSON, NPY = "application/json", "application/x-ndjson", "application/x-npy"
NPZ = "application/x-npz"
ACTIVATION_FORMS = (JSON, *EXTENSIONS, NPZ)
FORMS = (JSON, *EXTENSIONS, NPY, NDJSON)
LOOKS = 2
"""At layers at a time, until they are told: of all layers of a model, some hundred megabytes."""


def make_router(*, reception: Reception, explainer: Explainer) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/models/{model:model}:predict", **documentation.PREDICT)
    async def predict(model: str, request: Request) -> Response:
        choose(_list_of(request, "accept"), [JSON])

        async def work(instance: Instance[PredictParameters]) -> schemas.Prediction:
            async with explainer.case(inquiry.crew, instance, inquiry.timings) as case:
                return explainer.predictions(case, await explainer.predict(case))

        async with (
            reception.receive(request, model, PredictParameters) as inquiry,
            while_connected(request),
        ):
            results = await together(work, inquiry.instances)
        predictions = [
            failed(instance, result) if isinstance(result, Problem) else result
            for instance, result in zip(inquiry.instances, results, strict=True)
        ]
        answer = schemas.PredictResponse(predictions=predictions)
        body = await to_thread.run_sync(dump, answer)
        headers = {"Server-Timing": inquiry.timings.header()}
        return Response(body, media_type=JSON, headers=headers)

    @router.post("/v1/models/{model:model}:explain", **documentation.EXPLAIN)
    async def explain(model: str, request: Request) -> Response:
        form = choose(_list_of(request, "accept"), FORMS)
        async with reception.receive(request, model, Parameters) as inquiry:
            _limit_maps(inquiry.instances)
            if form == NDJSON:
                return StreamingResponse(
                    _lines(inquiry), media_type=NDJSON, headers={"Vary": "Accept"}
                )
            single = form in EXTENSIONS or form == NPY
            if single:
                _require_single(inquiry.instances, form)
            served = inquiry.crew.model
            tag = await to_thread.run_sync(entity_tag, served, form, inquiry.instances)
            headers = {"ETag": tag, "Vary": "Accept"}
            if matches(_list_of(request, "if-none-match"), tag):
                return Response(status_code=304, headers=headers)
            async with while_connected(request):
                if single:
                    body = await _draw(inquiry, form)
                else:
                    answer = await _explain_all(inquiry, headers)
                    body = await to_thread.run_sync(dump, answer)
        headers["Server-Timing"] = inquiry.timings.header()
        return Response(body, media_type=form, headers=headers)

    @router.post("/v1/models/{model:model}:activations", **documentation.ACTIVATIONS)
    async def show_activations(model: str, request: Request) -> Response:
        form = choose(_list_of(request, "accept"), ACTIVATION_FORMS)

        async def look(
            instance: Instance[ActivationParameters],
        ) -> list[schemas.LayerActivation]:
            async with explainer.case(inquiry.crew, instance, inquiry.timings) as case:
                return await _look(case)

        async with reception.receive(request, model, ActivationParameters) as inquiry:
            if form != JSON:
                require_one_map(len(inquiry.instances), form)
            async with while_connected(request):
                if form != JSON:
                    body = await _show(inquiry, form)
                else:
                    results = await together(look, inquiry.instances)
                    activations: list[schemas.LayerActivation | schemas.FailedInstance] = []
                    for instance, result in zip(inquiry.instances, results, strict=True):
                        if isinstance(result, Problem):
                            activations.append(failed(instance, result))
                        else:
                            activations.extend(result)
                    answer = schemas.ActivationResponse(activations=activations)
                    body = await to_thread.run_sync(dump, answer)
        headers = {"Server-Timing": inquiry.timings.header(), "Vary": "Accept"}
        return Response(body, media_type=form, headers=headers)

    looks = asyncio.Semaphore(LOOKS)

    async def _look(case: Case[ActivationParameters]) -> list[schemas.LayerActivation]:
        async with looks:
            return await _looked(case)

    async def _looked(case: Case[ActivationParameters]) -> list[schemas.LayerActivation]:
        seen = await explainer.observe(case)
        concepts: dict[str, list[Concept]] = {}
        if case.instance.parameters.concepts is not None:
            _, concepts = await explainer.concepts(case)
        describe = partial(
            describe_activations,
            seen,
            concepts,
            case.crew.model.labels,
            case.instance.parameters,
            instance=case.instance.index,
            name=case.instance.id,
        )
        return await to_thread.run_sync(describe)

    async def _show(inquiry: Inquiry[ActivationParameters], form: str) -> bytes:
        (instance,) = inquiry.instances
        parameters = instance.parameters
        if parameters.concepts is not None and form == NPZ:
            raise NotAcceptable(f"concepts are numbers in JSON or a picture, not {NPZ}")
        async with explainer.case(inquiry.crew, instance, inquiry.timings) as case:
            if parameters.concepts is not None:
                looked, concepts = await explainer.concepts(case)
                labels = inquiry.crew.model.labels
                draw = partial(draw_concepts, looked.photo, looked.seen, concepts, labels, form)
                return await case.lane.run(draw)
            async with looks:
                seen = await explainer.observe(case)
                if form == NPZ:
                    return await to_thread.run_sync(pack_arrays, seen)
                return await to_thread.run_sync(draw_gallery, seen, parameters, form)

    async def _draw(inquiry: Inquiry[Parameters], form: str) -> bytes:
        (instance,) = inquiry.instances
        async with explainer.case(inquiry.crew, instance, inquiry.timings) as case:
            return await explainer.render(case, await explainer.explain(case), form)

    async def explained(
        inquiry: Inquiry[Parameters],
        instance: Instance[Parameters],
        progress: Listener | None = None,
    ) -> tuple[schemas.Prediction, list[schemas.Explanation]]:
        async with explainer.case(inquiry.crew, instance, inquiry.timings) as case:
            require_few_numbers(case, len(inquiry.instances))
            found = await explainer.explain(case, progress)
            described = await explainer.describe(case, found)
            return explainer.predictions(case, found), described

    async def _explain_all(
        inquiry: Inquiry[Parameters], headers: dict[str, str]
    ) -> schemas.ExplainResponse:
        results = await together(lambda each: explained(inquiry, each), inquiry.instances)
        predictions: list[schemas.Prediction | schemas.FailedInstance] = []
        explanations: list[schemas.Explanation | schemas.FailedInstance] = []
        for instance, result in zip(inquiry.instances, results, strict=True):
            if isinstance(result, Problem):
                predictions.append(failed(instance, result))
                explanations.append(failed(instance, result))
                headers.pop("ETag", None)  # another try may fare better
            else:
                predictions.append(result[0])
                explanations.extend(result[1])
        return schemas.ExplainResponse(predictions=predictions, explanations=explanations)

    async def _lines(inquiry: Inquiry[Parameters]) -> AsyncIterator[bytes]:
        async def bounded(
            instance: Instance[Parameters], report: Callable[[Progress], None]
        ) -> tuple[schemas.Prediction, list[schemas.Explanation]]:
            async with deadline(inquiry.seconds_left, of=inquiry.seconds):
                return await explained(inquiry, instance, report)

        with reception.lasting(inquiry):
            async for instance, result in as_ready(bounded, inquiry.instances):
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
