"""`:activations`: what hooks on layers see of each image: inputs, outputs and gradients."""

from __future__ import annotations

from typing import Final

from service.core.schemas import TINY_PNG
from service.features.activations.look import observe, show
from service.features.activations.parameters import ActivationParameters
from service.features.activations.render import NPZ
from service.features.activations.schemas import ActivationResponse, LayerActivation
from service.http.operation import InstanceContext, Operation
from service.pipeline.rendering import NAMED_PICTURES, PICTURES


async def _work(context: InstanceContext[ActivationParameters]) -> list[LayerActivation]:
    request = context.request
    return await observe(context.pipeline, request.replicas, context.instance, request.timings)


async def _draw(context: InstanceContext[ActivationParameters], form: str) -> bytes:
    request = context.request
    return await show(context.pipeline, request.replicas, context.instance, request.timings, form)


ACTIVATIONS: Final = Operation(
    name="activations",
    function="show_activations",
    summary="What hooks on layers see: inputs, outputs and gradients",
    description=(
        "`Accept` selects the form of the answer: `application/json` (default) with statistics; "
        f"for one image `{NPZ}` with the arrays, and for one layer {NAMED_PICTURES} with a gallery "
        "of its strongest feature maps."
    ),
    page="http-api.md",
    parameters=ActivationParameters,
    example={
        "instances": [{"image": {"b64": TINY_PNG}}],
        "parameters": {"layer": ["blocks.0", "bn2"]},
    },
    response=ActivationResponse,
    work=_work,
    drawn=(*PICTURES, NPZ),
    draw=_draw,
)
