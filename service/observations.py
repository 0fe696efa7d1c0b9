"""What hooks saw, as JSON, as a picture and as arrays."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from numpy.typing import NDArray

from cam import Observation, gallery
from cam.observation import statistics
from service import schemas
from service.errors import NotAcceptable
from service.parameters import ActivationParameters
from service.rendering import encode


def describe_activations(
    observations: list[Observation],
    parameters: ActivationParameters,
    *,
    instance: int,
    name: str | None,
) -> list[schemas.LayerActivation]:
    """One image's layers as JSON has them."""
    return [
        schemas.LayerActivation(
            instance=instance,
            id=name,
            layer=seen.layer,
            type=seen.type,
            input=None if seen.input is None else _signal(seen.input),
            output=_signal(seen.output),
            gradient=None if seen.gradient is None else _signal(seen.gradient),
            channels=seen.strongest(parameters.top_k, parameters.by),
        )
        for seen in observations
    ]


def draw_gallery(
    observations: list[Observation], parameters: ActivationParameters, media_type: str
) -> bytes:
    """The strongest feature maps of the only layer, each under its channel's number.

    Raises:
        NotAcceptable: if there is more than one layer, or none whose output is feature maps.
    """
    if len(observations) != 1:
        raise NotAcceptable(
            f"{media_type} holds the gallery of exactly one layer, and this request names "
            f"{len(observations)}; ask for application/json or application/x-npz"
        )
    (seen,) = observations
    maps = seen.channels()
    chosen = seen.strongest(parameters.top_k, parameters.by)
    if maps is None or not chosen:
        why = "has no feature maps" if maps is None else "does not reach the target"
        raise NotAcceptable(f"layer {seen.layer!r} {why}; ask for application/json")
    names = [f"{index}: {maps[index].max():.3g}" for index in chosen]
    picture = gallery([maps[index] for index in chosen], names, colormap=parameters.colormap)
    return encode(picture, media_type)


def pack_arrays(observations: list[Observation]) -> bytes:
    """A NumPy .npz file: for each layer LAYER.input, LAYER.output, LAYER.gradient, float32."""
    arrays: dict[str, NDArray[np.float32]] = {}
    for seen in observations:
        for kind in ("input", "output", "gradient"):
            values = getattr(seen, kind)
            if values is not None:
                arrays[f"{seen.layer}.{kind}"] = values
    file = BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return file.getvalue()


def _signal(values: NDArray[np.float32]) -> schemas.SignalDescription:
    found = statistics(values)
    return schemas.SignalDescription(
        shape=list(values.shape),
        mean=found.mean,
        std=found.std,
        minimum=found.minimum,
        maximum=found.maximum,
        zeros=found.zeros,
    )
