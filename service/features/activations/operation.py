"""`:activations`: what hooks on layers see of each image: inputs, outputs and gradients."""

from __future__ import annotations

from typing import Final

from service.backend.interface import Listener
from service.core.schemas import TINY_PNG
from service.features.activations.look import observe, show
from service.features.activations.parameters import ActivationParameters, ActivationRequest
from service.features.activations.render import NPZ
from service.features.activations.schemas import ActivationResponse, LayerActivation
from service.http.operation import Operation, each
from service.http.reception import RequestContext
from service.pipeline.instances import Instance
from service.pipeline.pipeline import Pipeline
from service.pipeline.rendering import NAMED_PICTURES, PICTURES


async def _work(
    pipeline: Pipeline,
    context: RequestContext[ActivationParameters],
    instance: Instance[ActivationParameters],
    progress: Listener | None,
) -> list[LayerActivation]:
    return await observe(pipeline, context.replicas, instance, context.timings)


async def _draw(
    pipeline: Pipeline, context: RequestContext[ActivationParameters], form: str
) -> bytes:
    (instance,) = context.instances
    return await show(pipeline, context.replicas, instance, context.timings, form)


ACTIVATIONS: Final = Operation(
    name="activations",
    function="show_activations",
    summary="What hooks on layers see: inputs, outputs and gradients",
    description=(
        "`Accept` selects the form of the answer: `application/json` (default) with statistics; "
        f"for one image `{NPZ}` with the arrays, and for one layer {NAMED_PICTURES} with a gallery "
        "of its strongest feature maps."
    ),
    parameters=ActivationParameters,
    body=ActivationRequest,
    example={
        "instances": [{"image": {"b64": TINY_PNG}}],
        "parameters": {"layer": ["blocks.0", "bn2"]},
    },
    response=ActivationResponse,
    work=_work,
    gather=lambda results: ActivationResponse(activations=each(results)),
    drawn=(*PICTURES, NPZ),
    draw=_draw,
)
