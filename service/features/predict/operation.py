"""`:predict`: the most probable classes of each image, from one forward pass."""

from __future__ import annotations

from typing import Final

from service.core.schemas import TINY_PNG, Prediction, PredictResponse
from service.http.operation import InstanceContext, Operation
from service.pipeline.parameters import PredictParameters


async def _work(context: InstanceContext[PredictParameters]) -> list[Prediction]:
    request = context.request
    return [await context.pipeline.predict(request.replicas, context.instance, request.timings)]


PREDICT: Final = Operation(
    name="predict",
    summary="The most probable classes of each image",
    description="For a segmenter its segments, for a detector its boxes. There is no map.",
    page="http-api.md",
    parameters=PredictParameters,
    example={
        "instances": [{"image": {"b64": TINY_PNG}}],
        "parameters": {"top_k": 3, "fit": "squash"},
    },
    response=PredictResponse,
    work=_work,
)
