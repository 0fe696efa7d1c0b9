"""The record of one map: what is known of it, built once, whichever form an answer has.

JSON, a table's row and a picture are made from it; jobs store it.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from pydantic import BaseModel, ConfigDict

from cam import ClassTarget, Explanation, Reason, spearman
from cam.drawing.heatmap import border, concentration, hot_region
from cam.drawing.placement import Box, Float, Placement, Region
from cam.methods import INPUT
from service.backend.outcome import ServedAnswer
from service.core import schemas
from service.models.info import ModelInfo
from service.models.preprocessing import ModelInput
from service.pipeline.coordinates import box_on_photo
from service.pipeline.instances import Instance
from service.pipeline.json_records import describe_target, top_classes
from service.pipeline.parameters import Parameters
from service.pipeline.rendering import Drawing, encode, scaled
from service.pipeline.resolve import asked_of
from service.pipeline.targets import OneTarget, TargetObject

NUMBERS: Final = np.dtype("<f4")
MOST_LOST: Final = 0.25
"""Largest share of a photo that may be cut off without a warning."""
EDGE: Final = 0.02
"""Least share of a side that is cut off at an edge for a warning of heat at that edge."""
MOST_ENLARGED: Final = 2.0
"""Largest factor by which a photo is enlarged to the model's input without a warning."""
MOST_SQUEEZED: Final = 2.5
"""Largest change of a photo's proportions by squashing without a warning."""


class MapRecord(BaseModel):
    """What is known of one map of an image. As JSON, its numbers are in base64."""

    model_config = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64")

    number: int
    """Position among the maps of its image, from 0."""
    facts: schemas.MapFacts
    predicted: schemas.ScoredClass | None = None
    """A classifier's best class for the image; None of other models."""
    numbers: bytes
    """The map on the layer's grid, of a `Reason` on the model's input, as `normalize` asks for it:
    float32, little-endian, row by row. A map on the photo has no more information, and takes a
    thousand times the bytes."""
    shape: tuple[int, int]
    """Rows and columns of the map."""
    covers: Box
    """Where the edges of the map lie on the photo."""
    picture_shape: tuple[int, int]
    """Height and width of the picture that `size` asks for."""

    @property
    def map(self) -> Float:
        """The map, float32 (h, w)."""
        return np.frombuffer(self.numbers, NUMBERS).reshape(self.shape)

    def as_json(self, drawing: Drawing) -> schemas.Explanation:
        """Return the JSON schema object of the map, with the pictures or numbers of its drawing."""
        overlay = overlay_of(drawing) if drawing.parameters.pictured else None
        return schemas.Explanation(**dict(self.facts), heatmap=heatmap_of(drawing), overlay=overlay)


def heatmap_of(drawing: Drawing) -> schemas.Heatmap:
    """Return the JSON schema object of a drawing's map: numbers, or a grayscale picture."""
    asked = drawing.parameters
    numbers = asked.normalize == "none" or asked.output == "values"
    return schemas.Heatmap(
        shape=drawing.shape,
        encoding="float32" if numbers else "png",
        data=_base64(
            drawing.numbers.astype(NUMBERS).tobytes()
            if numbers
            else encode(drawing.gray, "image/png")
        ),
    )


def overlay_of(drawing: Drawing) -> schemas.Overlay:
    """Return the JSON schema object of the picture that a drawing's parameters ask for."""
    return schemas.Overlay(content_type="image/png", data=_base64(drawing.encoded("image/png")))


def record_of(
    drawing: Drawing,
    answer: ServedAnswer,
    model: ModelInfo,
    seen: ModelInput,
    instance: Instance[Parameters],
    scores: dict[str, schemas.Score] | None,
    photo: tuple[int, int],
) -> MapRecord:
    """Return the record of one of the answer's maps.

    Args:
        drawing: the drawing of the map.
        scores: the map's scores, if the parameters name metrics.
        photo: width and height of the photo in pixels.
    """
    explanation, parameters = drawing.explanation, drawing.parameters
    values, inside = explanation.map, drawing.scaled_inside
    height, width = drawing.shape
    flat = values.max() == values.min() or not values.any()
    hot = hot_region(inside, parameters.threshold)
    said = answer.prediction
    predicted = None
    if said.logits is not None and said.probabilities is not None:
        (predicted,) = top_classes(said.logits, said.probabilities, model.labels, 1)
    kept = values
    if parameters.normalize != "none":
        kept = scaled(values, parameters.normalize, explanation.signed)
    facts = schemas.MapFacts(
        instance=instance.index,
        id=instance.id,
        target=describe_target(explanation, model.labels, seen),
        method=explanation.method,
        layer=explanation.layer,
        layer_reason=_layer_reason(explanation, model, parameters),
        reason=_number_of(explanation),
        region=drawing.region,
        covers=Box(0, 0, width, height) if parameters.size == "image" else seen.box,
        placement=_placement(explanation.placement, seen),
        peak=_peak(drawing),
        hot=hot and _shifted(hot, drawing.region),
        mass=float(inside.mean()),
        concentration=None if flat else concentration(values),
        border=None if flat else border(values),
        correct=_correct(explanation, predicted, parameters),
        mode="fast" if explanation.method in answer.fast else "exact",
        agreement=_agreement(answer, drawing.number),
        signed=explanation.signed or None,
        completeness=explanation.completeness,
        passes=explanation.passes,
        scores=scores,
        warnings=[*_warnings(drawing, model), *_fit_warnings(drawing, hot, seen, photo)],
    )
    return MapRecord(
        number=drawing.number,
        facts=facts,
        predicted=predicted,
        numbers=kept.astype(NUMBERS).tobytes(),
        shape=(values.shape[0], values.shape[1]),
        covers=seen.box,
        picture_shape=drawing.shape,
    )


def agreement_mean(agreement: Mapping[str, float] | None) -> float | None:
    """Return the mean of a map's agreement with the maps of the other methods."""
    return float(np.mean([*agreement.values()])) if agreement else None


def _layer_reason(explanation: Explanation, model: ModelInfo, parameters: Parameters) -> str | None:
    """Return why `auto` means another layer than it does for most methods, if it does."""
    method, layer = explanation.method, explanation.layer
    if parameters.layer != "auto" or layer in (INPUT, model.default_layer):
        return None
    return (
        f"{layer!r} is what {method} takes by default in model {model.name!r}; other methods take "
        f"{model.default_layer!r}, so name a layer to compare {method} with them"
    )


def _number_of(explanation: Explanation) -> int | None:
    """Return which reason an explanation is, from 1; None if one reason alone was asked for."""
    return explanation.number if isinstance(explanation, Reason) else None


def _warnings(drawing: Drawing, model: ModelInfo) -> list[str]:
    explanation = drawing.explanation
    flat = None
    if not drawing.scaled_inside.any() and explanation.reached:
        flat = explanation.flat or (
            "the model saw too few of these pixels to show the map on them; try another size"
        )
    return [
        *([flat] if flat else []),
        *explanation.warnings,
        *(about for about in (model.stochastic, model.unnamed) if about),
    ]


def _fit_warnings(
    drawing: Drawing, hot: Region | None, seen: ModelInput, photo: tuple[int, int]
) -> list[str]:
    """Return warnings about the way in which the photo was fitted to the model's input.

    Args:
        hot: the hot region, in pixels of what the model saw.
        photo: width and height of the photo in pixels.
    """
    (width, height), box, warnings = photo, seen.box, list[str]()
    shares = [
        (min(end, side) - max(start, 0)) / side
        for start, end, side in ((box.left, box.right, width), (box.top, box.bottom, height))
    ]
    if (lost := 1 - shares[0] * shares[1]) > MOST_LOST:
        warnings.append(
            f"the model did not see {round(100 * lost)} % of the photo, which fit={seen.fit} cuts "
            "off; fit=squash shows the whole photo"
        )
    rows, columns = drawing.inside.shape
    cut = {
        "left": hot and hot.left == 0 and box.left > EDGE * width,
        "top": hot and hot.top == 0 and box.top > EDGE * height,
        "right": hot and hot.left + hot.width == columns and box.right < (1 - EDGE) * width,
        "bottom": hot and hot.top + hot.height == rows and box.bottom < (1 - EDGE) * height,
    }
    if sides := [side for side, is_cut in cut.items() if is_cut]:
        warnings.append(
            f"the hot region reaches the {' and the '.join(sides)} edge of what the model saw, "
            f"where fit={seen.fit} cuts the photo: it may go on beyond; fit=squash shows the whole "
            "photo"
        )
    seen_height, seen_width = seen.pixels.shape[:2]
    squeezed = (width / seen_width) / (height / seen_height)
    if seen.fit == "squash" and (times := max(squeezed, 1 / squeezed)) > MOST_SQUEEZED:
        warnings.append(
            f"the photo of {width} × {height} pixels was squashed to {seen_width} × {seen_height}: "
            f"one side {times:.1f} times as much as the other; fit=crop and fit=pad keep the "
            "proportions"
        )
    across, down = seen_width / (box.right - box.left), seen_height / (box.bottom - box.top)
    if (times := min(across, down)) > MOST_ENLARGED:
        warnings.append(
            f"the photo of {width} × {height} pixels was enlarged {times:.1f} times to the model's "
            f"{seen_width} × {seen_height}; if the model was trained on photos of that size, its "
            "entry needs input_size"
        )
    return warnings


def _correct(
    explanation: Explanation, predicted: schemas.ScoredClass | None, parameters: Parameters
) -> bool | None:
    """Return whether the class that was named as target is the predicted one; None if no class was
    named."""
    target = explanation.target
    if predicted is None or not isinstance(target, ClassTarget):
        return None
    asked = asked_of(parameters.target)[explanation.turn]
    return target.index == predicted.index if _names_a_class(asked) else None


def _names_a_class(target: OneTarget | None) -> bool:
    """Return whether a target is a class alone, without `minus` and without `against`."""
    if isinstance(target, TargetObject):
        return target.which is not None and target.minus is None and not target.against
    return target is not None


def _agreement(answer: ServedAnswer, number: int) -> dict[str, float] | None:
    """Return each other method's Spearman correlation with the map, keyed by method.

    Maps of the same target at the same layer are compared; if both methods have a single map of the
    target, their layers may differ. A map that is the same everywhere has no correlation.
    """
    mine = answer.explanations[number]
    same_target = [
        explanation
        for explanation in answer.explanations
        if explanation.turn == mine.turn and _number_of(explanation) == _number_of(mine)
    ]
    maps = Counter(explanation.method for explanation in same_target)
    similarities = {}
    for other in same_target:
        single = maps[mine.method] == 1 and maps[other.method] == 1
        if other.method != mine.method and (single or other.layer == mine.layer):
            agreement = spearman(mine.map, other.map)
            if agreement is not None:
                similarities[other.method] = agreement
    return similarities or None


def _placement(placement: Placement | None, seen: ModelInput) -> schemas.Placement | None:
    if placement is None:
        return None
    box = placement.box
    on_photo = box_on_photo((box.left, box.top, box.right, box.bottom), seen)
    return schemas.Placement(**vars(placement), **vars(on_photo))


def _peak(drawing: Drawing) -> schemas.Point | None:
    """Return the hottest pixel of the picture; None if nothing is hot."""
    if drawing.scaled_inside.max() <= 0:
        return None
    numbers, region = drawing.inside, drawing.region  # scaled by a percentile, many are capped
    y, x = np.unravel_index(int(numbers.argmax()), numbers.shape)
    return schemas.Point(x=region.left + int(x), y=region.top + int(y))


def _shifted(inner: Region, region: Region) -> Region:
    """Return a region that is given relative to another one, relative to the picture."""
    return replace(inner, left=region.left + inner.left, top=region.top + inner.top)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
