"""Looking at layers while the model processes one image."""

from __future__ import annotations

import difflib
import fnmatch
from functools import partial
from typing import Final

from cam import Concept, Observation, Question
from service.backend.interface import ModelBackend
from service.backend.timings import Timings
from service.core.errors import InvalidParameter, NotAcceptable, Problem, UnknownLayer
from service.features.activations import schemas
from service.features.activations.parameters import ActivationParameters
from service.features.activations.render import (
    NPZ,
    describe_activations,
    draw_concepts,
    draw_gallery,
    pack_arrays,
)
from service.features.activations.work import Factorise, Observe
from service.models.info import ModelInfo
from service.models.preprocessing import ModelInput
from service.pipeline.instances import Instance
from service.pipeline.opened_photo import OpenedPhoto
from service.pipeline.pipeline import Pipeline
from service.pipeline.resolve import target_of

MAX_OBSERVED: Final = 64
"""Maximum number of layers of one request."""


async def observe(
    pipeline: Pipeline,
    replicas: ModelBackend,
    instance: Instance[ActivationParameters],
    timings: Timings,
) -> list[schemas.LayerActivation]:
    """Return the JSON schema objects of the layers that the parameters name, for one image.

    Raises:
        Problem: if this instance cannot be observed.
    """
    async with pipeline.opened(replicas, instance, timings) as opened, pipeline.few_at_once:
        observed, seen = await _observed(opened)
        concepts = {}
        if instance.parameters.concepts is not None:
            concepts = await _concepts(opened, seen)
        labels = opened.model.labels
        describe = partial(describe_activations, observed, concepts, labels, instance)
        return await opened.pool.run(describe)


async def show(
    pipeline: Pipeline,
    replicas: ModelBackend,
    instance: Instance[ActivationParameters],
    timings: Timings,
    media_type: str,
) -> bytes:
    """Return a picture of the only layer that the parameters name, for one image: its strongest
    feature maps or its concepts. With `NPZ`, return all layers' arrays as a NumPy file.

    Raises:
        NotAcceptable: if the media type cannot hold what the parameters ask for.
        Problem: if this instance cannot be observed.
    """
    parameters = instance.parameters
    if parameters.concepts is not None and media_type == NPZ:
        raise NotAcceptable(f"concepts are numbers in JSON or a picture, not {NPZ}")
    async with pipeline.opened(replicas, instance, timings) as opened:
        run, labels = opened.pool.run, opened.model.labels
        if parameters.concepts is not None:
            photo, seen = await opened.seen()
            concepts = await _concepts(opened, seen)
            return await run(lambda: draw_concepts(photo, seen, concepts, labels, media_type))
        async with pipeline.few_at_once:
            observed, _ = await _observed(opened)
            if media_type == NPZ:
                return await run(lambda: pack_arrays(observed))
            return await run(lambda: draw_gallery(observed, parameters, media_type))


async def _observed(
    opened: OpenedPhoto[ActivationParameters],
) -> tuple[list[Observation], ModelInput]:
    """Observe the layers that the parameters name, and return the model's input as well.

    Raises:
        Problem: if this instance cannot be observed.
    """
    model, instance, parameters = opened.model, opened.instance, opened.instance.parameters
    try:
        layers = layers_of(model, parameters)
        target = target_of(model, parameters.target)
        photo, seen = await opened.seen()
        question = Question((target,), "gradcam", ())
        (target,) = await opened.placed(question, parameters.target, photo, seen)
    except Problem as problem:
        raise instance.blame(problem) from None
    outcome = await opened.replicas.ask(Observe(seen.pixels, layers, target, opened.prompts))
    opened.timings.note_outcome(outcome)
    return outcome.value, seen


async def _concepts(
    opened: OpenedPhoto[ActivationParameters], seen: ModelInput
) -> dict[str, list[Concept]]:
    """Return the concepts of each layer that the parameters name, keyed by layer.

    Raises:
        Problem: if a layer cannot be factorised for this instance.
    """
    parameters = opened.instance.parameters
    try:
        layers = layers_of(opened.model, parameters)
    except Problem as problem:
        raise opened.instance.blame(problem) from None
    targets = {}
    for layer in layers:
        work = Factorise(seen.pixels, layer, parameters.concepts or 2)
        outcome = await opened.replicas.ask(work)
        opened.timings.note_outcome(outcome)
        targets[layer] = outcome.value
    return targets


def layers_of(model: ModelInfo, parameters: ActivationParameters) -> tuple[str, ...]:
    """Return the layers that names and patterns match, in execution order.

    Raises:
        UnknownLayer, InvalidParameter
    """
    named = parameters.layer if isinstance(parameters.layer, list) else [parameters.layer]
    ran = [layer.name for layer in model.layers if layer.shape is not None]
    wanted: set[str] = set()
    for name in named:
        pattern = model.default if name == "auto" else name
        matches = [name for name in ran if name == pattern] or fnmatch.filter(ran, pattern)
        if not matches:
            near = difflib.get_close_matches(pattern, ran, 3) or ran[-3:]
            raise UnknownLayer(
                f"model {model.name!r} has no layer {name[:80]!r} that returns a tensor; the "
                f"nearest are {', '.join(near)}"
            )
        wanted.update(matches)
    if len(wanted) > MAX_OBSERVED:
        raise InvalidParameter(
            f"layer names {len(wanted)} layers; at most {MAX_OBSERVED} are allowed, so use a "
            "narrower pattern"
        )
    return tuple(name for name in ran if name in wanted)
