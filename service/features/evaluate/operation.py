"""`:evaluate`: how good the maps of each image are, by the metrics of `cam.evaluation`."""

from __future__ import annotations

import json
from typing import Final

from service.backend.interface import Listener
from service.core.schemas import TINY_PNG
from service.features.evaluate.judge import evaluate
from service.features.evaluate.parameters import EvaluateParameters, EvaluateRequest
from service.features.evaluate.schemas import EvaluateResponse, Evaluation
from service.features.evaluate.summary import summarise
from service.features.explain.operation import limit_maps
from service.http.contract import worked_example
from service.http.operation import Operation, Results, each
from service.http.reception import RequestContext
from service.pipeline.instances import Instance
from service.pipeline.pipeline import Pipeline


async def _work(
    pipeline: Pipeline,
    context: RequestContext[EvaluateParameters],
    instance: Instance[EvaluateParameters],
    progress: Listener | None,
) -> list[Evaluation]:
    return await evaluate(
        pipeline, context.replicas, instance, context.timings, progress, context.passes_until
    )


def _gather(results: Results[EvaluateParameters, list[Evaluation]]) -> EvaluateResponse:
    found = each(results)
    good = [evaluation for evaluation in found if isinstance(evaluation, Evaluation)]
    return EvaluateResponse(evaluations=found, summary=summarise(good))


EVALUATE: Final = Operation(
    name="evaluate",
    function="evaluate",
    summary="How good the maps of each image are",
    description=(
        "Scores maps by metrics such as deletion, insertion, ROAD, ADCC and stability, and "
        "compares them with maps that know nothing of the model. The maps are those that "
        "`:explain` makes, or one that is sent with the instance as `map`. `Accept` selects the "
        "form of the answer: `application/json` (default) or `application/x-ndjson` (lines of "
        "progress, and a line for each map)."
    ),
    parameters=EvaluateParameters,
    body=EvaluateRequest,
    example={
        "instances": [
            {"image": {"b64": TINY_PNG}, "target": "Egyptian cat"},
            {"image": {"b64": TINY_PNG}},
        ],
        "parameters": {"metrics": ["insertion", "deletion", "stability"]},
    },
    response=EvaluateResponse,
    work=_work,
    gather=_gather,
    lines=lambda evaluations: evaluations,
    line=json.dumps(worked_example(Evaluation)) + "\n",
    check=lambda instances, form: limit_maps(instances),
    told=("Server-Timing",),
)
