"""The answers of `:activations`: observed layers as JSON, as a picture and as arrays."""

from __future__ import annotations

from io import BytesIO
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cam import Concept, Observation, gallery
from cam.activations.observations import statistics
from cam.drawing.overlay import paint
from cam.drawing.panel import legend
from cam.drawing.placement import place
from service.core.errors import NotAcceptable
from service.core.schemas import ScoredClass
from service.features.activations import schemas
from service.features.activations.parameters import ActivationParameters
from service.models.labels import Labels
from service.models.preprocessing import ModelInput
from service.pipeline.instances import Instance
from service.pipeline.json_records import top_classes
from service.pipeline.rendering import encode

NPZ: Final = "application/x-npz"


def describe_activations(
    observations: list[Observation],
    concepts: dict[str, list[Concept]],
    labels: Labels,
    instance: Instance[ActivationParameters],
) -> list[schemas.LayerActivation]:
    """Return the JSON schema objects of one image's observed layers."""
    parameters = instance.parameters
    return [
        schemas.LayerActivation(
            instance=instance.index,
            id=instance.id,
            layer=seen.layer,
            type=seen.type,
            input=None if seen.input is None else _signal(seen.input),
            output=_signal(seen.output),
            gradient=None if seen.gradient is None else _signal(seen.gradient),
            channels=seen.strongest(parameters.top_k, parameters.by),
            concepts=[
                schemas.ConceptDescription(share=concept.share, classes=_best(concept, labels))
                for concept in concepts[seen.layer]
            ]
            if seen.layer in concepts
            else None,
        )
        for seen in observations
    ]


def draw_gallery(
    observations: list[Observation], parameters: ActivationParameters, media_type: str
) -> bytes:
    """Draw the strongest feature maps of the only layer, each under its channel's number.

    Raises:
        NotAcceptable: if there is more than one layer, or the layer has no feature maps or does not
            reach the target.
    """
    if len(observations) != 1:
        raise NotAcceptable(
            f"{media_type} holds the gallery of exactly one layer, and this request names "
            f"{len(observations)}; ask for application/json or application/x-npz"
        )
    (seen,) = observations
    maps = seen.maps
    chosen = seen.strongest(parameters.top_k, parameters.by)
    if maps is None or not chosen:
        why = "has no feature maps" if maps is None else "does not reach the target"
        raise NotAcceptable(f"layer {seen.layer!r} {why}; ask for application/json")
    names = [f"{index}: {maps[index].max():.3g}" for index in chosen]
    picture = gallery([maps[index] for index in chosen], names, colormap=parameters.colormap)
    return encode(picture, media_type)


def draw_concepts(
    photo: Image.Image,
    seen: ModelInput,
    concepts: dict[str, list[Concept]],
    labels: Labels,
    media_type: str,
) -> bytes:
    """Draw the concepts of the only layer over the photo, each in its own colour, with a legend of
    the classes that the model finds in each concept.

    Raises:
        NotAcceptable: if there is more than one layer.
    """
    if len(concepts) != 1:
        raise NotAcceptable(
            f"{media_type} holds the concepts of exactly one layer, and this request names "
            f"{len(concepts)}; ask for application/json"
        )
    (maps_,) = concepts.values()
    picture = np.asarray(photo)
    maps = [place(map_.map, seen.box, *picture.shape[:2])[0] for map_ in maps_]
    names = []
    for concept in maps_:
        what = ", ".join(one.label or f"class {one.index}" for one in _best(concept, labels) or [])
        names.append(f"{concept.share:.0%} {what}".rstrip())
    return encode(legend(paint(picture, maps), names), media_type)


def pack_arrays(observations: list[Observation]) -> bytes:
    """Return a NumPy .npz file with float32 arrays LAYER.input, LAYER.output and LAYER.gradient for
    each layer, as far as they were observed."""
    arrays: dict[str, NDArray[np.float32]] = {}
    for seen in observations:
        for kind in ("input", "output", "gradient"):
            values = getattr(seen, kind)
            if values is not None:
                arrays[f"{seen.layer}.{kind}"] = values
    file = BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return file.getvalue()


def _best(concept: Concept, labels: Labels) -> list[ScoredClass] | None:
    if concept.logits is None or concept.probabilities is None:
        return None
    return top_classes(concept.logits, concept.probabilities, labels, 3)


def _signal(values: NDArray[np.float32]) -> schemas.SignalDescription:
    return schemas.SignalDescription(shape=list(values.shape), **vars(statistics(values)))
