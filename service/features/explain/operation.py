"""`:explain`: where in each image the model sees a class."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from service.core.errors import InvalidParameter, Problem
from service.core.schemas import (
    TINY_PNG,
    ExplainResponse,
    Explanation,
    FailedInstance,
    Prediction,
)
from service.http.contract import JSON
from service.http.operation import (
    NDJSON,
    InstanceContext,
    Operation,
    Results,
    one_for_a_file,
)
from service.http.responses import entity_tag, failed, require_one_map
from service.pipeline.instances import Instance
from service.pipeline.parameters import ExplainRequest, Parameters
from service.pipeline.rendering import NAMED_PICTURES, PICTURES
from service.pipeline.result import NPY, AnswerBudget
from service.pipeline.targets import MAX_MAPS

Explained = tuple[Prediction, list[Explanation]]


async def _work(context: InstanceContext[Parameters]) -> Explained:
    request = context.request
    async with context.pipeline.explain(
        request.replicas,
        context.instance,
        timings=request.timings,
        progress=context.progress,
        budget=AnswerBudget(len(request.instances), request.hold),
        until=request.passes_until,
    ) as result:
        explanations = await result.as_json()
        request.hold(_size(explanations))  # the pictures' sizes are known only now
        return result.prediction(), explanations


async def _draw(context: InstanceContext[Parameters], form: str) -> bytes:
    request, budget = context.request, None
    if form == NPY:  # one map, whose size is limited by that of photos
        budget = AnswerBudget(1, request.hold, most=sys.maxsize, bytes_each=4, always=True)
    async with context.pipeline.explain(
        request.replicas,
        context.instance,
        timings=request.timings,
        until=request.passes_until,
        budget=budget,
    ) as result:
        return await result.as_picture(form)


def _gather(results: Results[Parameters, Explained]) -> ExplainResponse:
    predictions: list[Prediction | FailedInstance] = []
    explanations: list[Explanation | FailedInstance] = []
    for instance, result in results:
        if isinstance(result, Problem):
            predictions.append(failed(instance, result))
            explanations.append(failed(instance, result))
        else:
            predictions.append(result[0])
            explanations += result[1]
    return ExplainResponse(predictions=predictions, explanations=explanations)


def _size(explanations: Sequence[Explanation | FailedInstance]) -> int:
    """Return the bytes of the maps and pictures in an answer."""
    size = 0
    for explanation in explanations:
        if isinstance(explanation, Explanation):
            size += len(explanation.heatmap.data) + (
                len(explanation.overlay.data) if explanation.overlay else 0
            )
    return size


def limit_maps(instances: Sequence[Instance[Parameters]]) -> None:
    """Check the number of maps that a request asks for.

    Raises:
        InvalidParameter: if the instances together ask for more maps than one request may.
    """
    asked = sum(instance.parameters.maps for instance in instances)
    if asked > MAX_MAPS:
        raise InvalidParameter(
            f"the request asks for {asked} maps; at most {MAX_MAPS} are allowed: send fewer "
            "images, methods, targets or layers"
        )


def _check(instances: Sequence[Instance[Parameters]], form: str) -> None:
    """Check that the answer is not too large, and fits the media type.

    Raises:
        NotAcceptable, InvalidParameter: if not.
    """
    limit_maps(instances)
    one_for_a_file(instances, form)
    if form in (JSON, NDJSON):
        return
    require_one_map(instances[0].parameters.maps, form)
    output = instances[0].parameters.output
    if form == NPY and output not in (None, "values"):
        raise InvalidParameter(f"output is {output!r}, but {NPY} holds values; leave it out")
    if form != NPY and output == "values":
        raise InvalidParameter(f"output is 'values', which is not a picture; ask for {NPY}")


EXPLAIN: Final = Operation(
    name="explain",
    summary="Where in each image the model sees a class",
    description=(
        "`Accept` selects the form of the answer: `application/json` (default), "
        "`application/x-ndjson` (a line for each explanation, as soon as it is ready), or, for "
        f"exactly one map, {NAMED_PICTURES} (a picture) or `{NPY}` (float32 numbers)."
    ),
    page="http-api.md",
    parameters=Parameters,
    body=ExplainRequest,
    example={
        "instances": [
            {"image": {"b64": TINY_PNG}, "id": "a", "target": "Egyptian cat"},
            {"image": {"b64": TINY_PNG}},
        ],
        "parameters": {"method": "gradcam", "output": "overlay", "fit": "squash"},
    },
    work=_work,
    entry=Explanation,
    response=ExplainResponse,
    gather=_gather,
    lines=lambda explained: explained[1],
    drawn=(*PICTURES, NPY),
    draw=_draw,
    check=_check,
    tag=entity_tag,
    told=("ETag", "Server-Timing"),
    size=lambda answer: _size(answer.explanations),
)
