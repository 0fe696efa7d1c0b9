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
from service.limits.pixel_budget import PhotoPool
from service.models.info import ModelInfo
from service.models.preprocessing import ModelInput
from service.pipeline.images import EncodedPhoto
from service.pipeline.instances import Instance
from service.pipeline.pipeline import Pipeline, asked_model_of, prompts_of
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
    model, parameters = asked_model_of(replicas, instance), instance.parameters
    async with pipeline.opened(model, instance, timings) as (encoded, pool), pipeline.few_at_once:
        observed, seen = await _observed(pipeline, replicas, instance, encoded, pool, timings)
        concepts = {}
        if parameters.concepts is not None:
            concepts = await _concepts(pipeline, replicas, instance, seen, timings)
        describe = partial(describe_activations, observed, concepts, model.labels, instance)
        return await pool.run(describe)


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
    model, parameters = asked_model_of(replicas, instance), instance.parameters
    if parameters.concepts is not None and media_type == NPZ:
        raise NotAcceptable(f"concepts are numbers in JSON or a picture, not {NPZ}")
    async with pipeline.opened(model, instance, timings) as (encoded, pool):
        if parameters.concepts is not None:
            photo, seen = await pipeline.seen(model, instance, encoded, pool, timings)
            concepts = await _concepts(pipeline, replicas, instance, seen, timings)
            labels = model.labels
            return await pool.run(lambda: draw_concepts(photo, seen, concepts, labels, media_type))
        async with pipeline.few_at_once:
            observed, _ = await _observed(pipeline, replicas, instance, encoded, pool, timings)
            if media_type == NPZ:
                return await pool.run(lambda: pack_arrays(observed))
            return await pool.run(lambda: draw_gallery(observed, parameters, media_type))


async def _observed(
    pipeline: Pipeline,
    replicas: ModelBackend,
    instance: Instance[ActivationParameters],
    encoded: EncodedPhoto,
    pool: PhotoPool,
    timings: Timings,
) -> tuple[list[Observation], ModelInput]:
    """Observe the layers that the parameters name, and return the model's input as well.

    Raises:
        Problem: if this instance cannot be observed.
    """
    model, parameters = asked_model_of(replicas, instance), instance.parameters
    try:
        layers = layers_of(model, parameters)
        target = target_of(model, parameters.target)
        photo, seen = await pipeline.seen(model, instance, encoded, pool, timings)
        question = Question((target,), "gradcam", ())
        (target,) = await pipeline.placed(
            replicas, question, parameters.target, parameters.fit, photo, seen
        )
    except Problem as problem:
        raise instance.blame(problem) from None
    work = Observe(seen.pixels, layers, target, prompts_of(instance))
    outcome = await replicas.ask(work)
    timings.note_outcome(outcome)
    return outcome.value, seen


async def _concepts(
    pipeline: Pipeline,
    replicas: ModelBackend,
    instance: Instance[ActivationParameters],
    seen: ModelInput,
    timings: Timings,
) -> dict[str, list[Concept]]:
    """Return the concepts of each layer that the parameters name, keyed by layer.

    Raises:
        Problem: if a layer cannot be factorised for this instance.
    """
    parameters = instance.parameters
    try:
        layers = layers_of(replicas.model, parameters)
    except Problem as problem:
        raise instance.blame(problem) from None
    targets = {}
    for layer in layers:
        work = Factorise(seen.pixels, layer, parameters.concepts or 2)
        outcome = await replicas.ask(work)
        timings.note_outcome(outcome)
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
