"""The routes that take images: parse → call → render."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial

from anyio import to_thread
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cam import Concept
from cam.methods.subject import Progress
from service import documentation, schemas
from service.answers import (
    as_ready,
    entity_tag,
    failed,
    matches,
    require_one_map,
    together,
)
from service.crew import Crew
from service.engine import Listener
from service.errors import InvalidParameter, NotAcceptable, Problem
from service.explainer import Explainer
from service.fleet import Fleet
from service.negotiation import choose
from service.observations import (
    describe_activations,
    draw_concepts,
    draw_gallery,
    pack_arrays,
)
from service.parameters import ActivationParameters, Parameters, PredictParameters
from service.patience import deadline, while_connected
from service.rendering import EXTENSIONS
from service.requests import Instance, read_instances
from service.schemas import dump
from service.settings import Settings
from service.targets import MAX_MAPS
from service.timings import Timings

JSON, NDJSON, NPY = "application/json", "application/x-ndjson", "application/x-npy"
NPZ = "application/x-npz"
ACTIVATION_FORMS = (JSON, *EXTENSIONS, NPZ)
FORMS = (JSON, *EXTENSIONS, NPY, NDJSON)


def make_router(*, fleet: Fleet, explainer: Explainer, settings: Settings) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/models/{model:model}:predict", **documentation.PREDICT)
    async def predict(model: str, request: Request) -> Response:
        choose(_list_of(request, "accept"), [JSON])
        crew = fleet.crew(model)
        timings = Timings()

        async def work(instance: Instance[PredictParameters]) -> schemas.Prediction:
            explained = await explainer.predict(crew, instance, timings)
            return explainer.predictions(crew, instance, explained)

        async with deadline(settings.deadline_seconds):
            instances = await read_instances(
                request, PredictParameters, max_instances=settings.max_instances
            )
            async with while_connected(request):
                results = await together(work, instances)
        predictions = [
            failed(instance, result) if isinstance(result, Problem) else result
            for instance, result in zip(instances, results, strict=True)
        ]
        answer = schemas.PredictResponse(predictions=predictions)
        body = await to_thread.run_sync(dump, answer)
        return Response(body, media_type=JSON, headers={"Server-Timing": timings.header()})

    @router.post("/v1/models/{model:model}:explain", **documentation.EXPLAIN)
    async def explain(model: str, request: Request) -> Response:
        form = choose(_list_of(request, "accept"), FORMS)
        crew = fleet.crew(model)
        timings = Timings()
        async with deadline(settings.deadline_seconds):
            instances = await read_instances(
                request, Parameters, max_instances=settings.max_instances
            )
            _limit_maps(instances)
            if form == NDJSON:
                lines = _lines(crew, instances, timings)
                return StreamingResponse(lines, media_type=NDJSON, headers={"Vary": "Accept"})
            single = form in EXTENSIONS or form == NPY
            if single:
                _require_single(instances, form)
            tag = await to_thread.run_sync(entity_tag, crew.model, form, instances)
            headers = {"ETag": tag, "Vary": "Accept"}
            if matches(_list_of(request, "if-none-match"), tag):
                return Response(status_code=304, headers=headers)
            async with while_connected(request):
                if single:
                    explained = await explainer.explain(crew, instances[0], timings)
                    body = await explainer.render(crew, instances[0], explained, form, timings)
                else:
                    answer = await _explain_all(crew, instances, timings, headers)
                    body = await to_thread.run_sync(dump, answer)
        headers["Server-Timing"] = timings.header()
        return Response(body, media_type=form, headers=headers)

    @router.post("/v1/models/{model:model}:activations", **documentation.ACTIVATIONS)
    async def show_activations(model: str, request: Request) -> Response:
        form = choose(_list_of(request, "accept"), ACTIVATION_FORMS)
        crew = fleet.crew(model)
        timings = Timings()

        async def look(
            instance: Instance[ActivationParameters],
        ) -> list[schemas.LayerActivation]:
            seen = await explainer.observe(crew, instance, timings)
            concepts: dict[str, list[Concept]] = {}
            if instance.parameters.concepts is not None:
                _, concepts = await explainer.concepts(crew, instance, timings)
            describe = partial(
                describe_activations,
                seen,
                concepts,
                crew.model.labels,
                instance.parameters,
                instance=instance.index,
                name=instance.id,
            )
            return await to_thread.run_sync(describe)

        async with deadline(settings.deadline_seconds):
            instances = await read_instances(
                request, ActivationParameters, max_instances=settings.max_instances
            )
            async with while_connected(request):
                if form == JSON:
                    activations: list[schemas.LayerActivation | schemas.FailedInstance] = []
                    results = await together(look, instances)
                    for instance, result in zip(instances, results, strict=True):
                        if isinstance(result, Problem):
                            activations.append(failed(instance, result))
                        else:
                            activations.extend(result)
                    answer = schemas.ActivationResponse(activations=activations)
                    body = await to_thread.run_sync(dump, answer)
                else:
                    require_one_map(len(instances), form)
                    body = await _show(crew, instances[0], timings, form)
        headers = {"Server-Timing": timings.header(), "Vary": "Accept"}
        return Response(body, media_type=form, headers=headers)

    async def _show(
        crew: Crew, instance: Instance[ActivationParameters], timings: Timings, form: str
    ) -> bytes:
        parameters = instance.parameters
        if parameters.concepts is not None and form == NPZ:
            raise NotAcceptable(f"concepts are numbers in JSON or a picture, not {NPZ}")
        if parameters.concepts is not None:
            looked, concepts = await explainer.concepts(crew, instance, timings)
            labels = crew.model.labels
            draw = partial(draw_concepts, looked.photo, looked.seen, concepts, labels, form)
            return await explainer.in_thread(draw)
        seen = await explainer.observe(crew, instance, timings)
        if form == NPZ:
            return await to_thread.run_sync(pack_arrays, seen)
        return await to_thread.run_sync(draw_gallery, seen, parameters, form)

    async def explained(
        crew: Crew,
        instance: Instance[Parameters],
        timings: Timings,
        progress: Listener | None = None,
    ) -> tuple[schemas.Prediction, list[schemas.Explanation]]:
        found = await explainer.explain(crew, instance, timings, progress)
        described = await explainer.describe(crew, instance, found, timings)
        return explainer.predictions(crew, instance, found), described

    async def _explain_all(
        crew: Crew,
        instances: list[Instance[Parameters]],
        timings: Timings,
        headers: dict[str, str],
    ) -> schemas.ExplainResponse:
        results = await together(lambda each: explained(crew, each, timings), instances)
        predictions: list[schemas.Prediction | schemas.FailedInstance] = []
        explanations: list[schemas.Explanation | schemas.FailedInstance] = []
        for instance, result in zip(instances, results, strict=True):
            if isinstance(result, Problem):
                predictions.append(failed(instance, result))
                explanations.append(failed(instance, result))
                headers.pop("ETag", None)  # another try may fare better
            else:
                predictions.append(result[0])
                explanations.extend(result[1])
        return schemas.ExplainResponse(predictions=predictions, explanations=explanations)

    async def _lines(
        crew: Crew, instances: list[Instance[Parameters]], timings: Timings
    ) -> AsyncIterator[bytes]:
        async def bounded(
            instance: Instance[Parameters], report: Callable[[Progress], None]
        ) -> tuple[schemas.Prediction, list[schemas.Explanation]]:
            async with deadline(settings.deadline_seconds):
                return await explained(crew, instance, timings, report)

        async for instance, result in as_ready(bounded, instances):
            if isinstance(result, Problem):
                yield dump(failed(instance, result)) + b"\n"
            elif isinstance(result, Progress):
                step = schemas.Step(done=result.done, total=result.total)
                line = schemas.ProgressLine(instance=instance.index, id=instance.id, progress=step)
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
            "targets or layers"
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
