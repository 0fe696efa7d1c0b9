"""`:predict`: the most probable classes of each image, from one forward pass."""

from __future__ import annotations

from typing import Final

from service.backend.interface import Listener
from service.core.schemas import TINY_PNG, Prediction, PredictResponse
from service.http.operation import Operation, each
from service.http.reception import RequestContext
from service.pipeline.instances import Instance
from service.pipeline.parameters import PredictParameters, PredictRequest
from service.pipeline.pipeline import Pipeline


async def _work(
    pipeline: Pipeline,
    context: RequestContext[PredictParameters],
    instance: Instance[PredictParameters],
    progress: Listener | None,
) -> list[Prediction]:
    return [await pipeline.predict(context.replicas, instance, context.timings)]


PREDICT: Final = Operation(
    name="predict",
    function="predict",
    summary="The most probable classes of each image",
    description="For a segmenter its segments, for a detector its boxes. There is no map.",
    parameters=PredictParameters,
    body=PredictRequest,
    example={
        "instances": [{"image": {"b64": TINY_PNG}}],
        "parameters": {"top_k": 3, "fit": "squash"},
    },
    response=PredictResponse,
    work=_work,
    gather=lambda results: PredictResponse(predictions=each(results)),
)
