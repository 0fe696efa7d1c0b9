"""`:evaluate`: how good the maps of each image are, by the metrics of `cam.evaluation`."""

from __future__ import annotations

from typing import Final

from service.core.schemas import TINY_PNG
from service.features.evaluate.judge import evaluate
from service.features.evaluate.parameters import EvaluateParameters, EvaluateRequest
from service.features.evaluate.schemas import EvaluateResponse, Evaluation
from service.features.evaluate.summary import summarise
from service.features.explain.operation import limit_maps
from service.http.operation import InstanceContext, Operation, Results, each


async def _work(context: InstanceContext[EvaluateParameters]) -> list[Evaluation]:
    request = context.request
    return await evaluate(
        context.pipeline,
        request.replicas,
        context.instance,
        request.timings,
        context.progress,
        request.passes_until,
    )


def _gather(results: Results[EvaluateParameters, list[Evaluation]]) -> EvaluateResponse:
    found = each(results)
    good = [evaluation for evaluation in found if isinstance(evaluation, Evaluation)]
    return EvaluateResponse(evaluations=found, summary=summarise(good))


EVALUATE: Final = Operation(
    name="evaluate",
    summary="How good the maps of each image are",
    description=(
        "Scores maps by metrics such as deletion, insertion, ROAD, ADCC and stability, and "
        "compares them with maps that know nothing of the model. The maps are those that "
        "`:explain` makes, or one that is sent with the instance as `map`. `Accept` selects the "
        "form of the answer: `application/json` (default) or `application/x-ndjson` (lines of "
        "progress, and a line for each map)."
    ),
    page="evaluation.md",
    parameters=EvaluateParameters,
    body=EvaluateRequest,
    example={
        "instances": [
            {"image": {"b64": TINY_PNG}, "target": "Egyptian cat"},
            {"image": {"b64": TINY_PNG}},
        ],
        "parameters": {"metrics": ["insertion", "deletion", "stability"]},
    },
    work=_work,
    entry=Evaluation,
    response=EvaluateResponse,
    gather=_gather,
    check=lambda instances, form: limit_maps(instances),
    told=("Server-Timing",),
)
