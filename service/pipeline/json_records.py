"""Conversion of an image's results to the schemas of JSON answers."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cam import METHODS, ClassTarget, Explanation, SimilarityTarget, UnitTarget
from cam.drawing.heatmap import Box, Region, hot_region
from cam.drawing.placement import Placement
from cam.methods import INPUT
from service.backend.answers import Answer
from service.core import model_schemas, schemas
from service.models.info import ModelInfo
from service.models.labels import Labels
from service.models.preprocessing import ModelInput, Preprocessing
from service.pipeline.coordinates import Edges, box_on_photo
from service.pipeline.evaluation import score_lines
from service.pipeline.facts import facts_of
from service.pipeline.instances import Instance, P
from service.pipeline.parameters import Parameters
from service.pipeline.rendering import Caption, Drawing, encode


def describe(
    drawing: Drawing,
    answer: Answer,
    model: ModelInfo,
    seen: ModelInput,
    instance: Instance[Parameters],
    scores: dict[str, schemas.Score] | None = None,
) -> schemas.Explanation:
    """Return the JSON schema object of one of the answer's maps, with its scores if it has some."""
    explanation, parameters = drawing.explanation, drawing.parameters
    facts = facts_of(drawing, answer, seen)
    kind = parameters.output or "mask"
    height, width = drawing.shape
    raw = parameters.normalize == "none"
    if kind == "values" or raw:
        numbers = drawing.values if raw else drawing.scaled
        encoding, data = "float32", numbers.astype("<f4").tobytes()
    else:
        encoding, data = "png", encode(drawing.gray, "image/png")
    target = describe_target(explanation, model.labels, seen)
    picture = None
    if kind not in ("mask", "values"):
        encoded = drawing.encoded("image/png")
        picture = schemas.Overlay(content_type="image/png", data=_base64(encoded))
    flat = not drawing.scaled_inside.any()
    hot = hot_region(drawing.scaled_inside, parameters.threshold)
    complete = explanation.completeness
    return schemas.Explanation(
        instance=instance.index,
        id=instance.id,
        target=target,
        method=explanation.method,
        layer=explanation.layer,
        layer_reason=_layer_reason(explanation, model, parameters),
        region=_region(drawing.region),
        covers=_edges(facts.covers),
        placement=_placement(explanation.placement, seen),
        heatmap=schemas.Heatmap(
            shape=(height, width),
            encoding="png" if encoding == "png" else "float32",
            data=_base64(data),
        ),
        overlay=picture,
        peak=None if drawing.scaled_inside.max() <= 0 else _peak(drawing),
        hot=None if hot is None else _region(_shifted(hot, drawing.region)),
        mass=facts.mass,
        concentration=facts.concentration,
        border=facts.border,
        correct=facts.correct,
        agreement=facts.agreement,
        signed=explanation.signed or None,
        completeness=None
        if complete is None
        else schemas.Completeness(attributed=complete.attributed, difference=complete.difference),
        passes=None
        if explanation.passes is None
        else schemas.Passes(made=explanation.passes.made, of=explanation.passes.of),
        scores=scores,
        warnings=[
            *([_flat_warning(drawing, explanation)] if flat and explanation.reached else []),
            *explanation.warnings,
            *([model.stochastic] if model.stochastic else []),
        ],
    )


def _layer_reason(explanation: Explanation, model: ModelInfo, parameters: Parameters) -> str | None:
    """Return why `auto` means another layer than it does for most methods, if it does."""
    method, layer = explanation.method, explanation.layer
    if parameters.layer != "auto" or layer in (INPUT, model.default_layer):
        return None
    return (
        f"{layer!r} is what {method} takes by default in model {model.name!r}; other methods take "
        f"{model.default_layer!r}, so name a layer to compare {method} with them"
    )


def describe_input(preprocessing: Preprocessing) -> model_schemas.InputDescription:
    """Return the JSON schema object of a model's preprocessing."""
    return model_schemas.InputDescription(
        height=preprocessing.height,
        width=preprocessing.width,
        resize=preprocessing.shorter_side,
        fit=preprocessing.crop_fit,
        interpolation=preprocessing.resampling.name.lower(),
        channel_order="bgr" if preprocessing.reversed else "rgb",
        value_range="0-255" if preprocessing.byte_range else "0-1",
        mean=preprocessing.mean,
        std=preprocessing.std,
    )


def describe_target(
    explanation: Explanation, labels: Labels, seen: ModelInput
) -> schemas.ExplainedTarget:
    """Return the JSON schema object of the target that a map explains."""
    target, score = explanation.target, explanation.score
    against = target.against or None
    if isinstance(target, UnitTarget):
        unit = schemas.Unit(layer=target.layer, channel=target.channel)
        return schemas.ExplainedTarget(score=score, unit=unit, against=against)
    if isinstance(target, SimilarityTarget):
        return schemas.ExplainedTarget(score=score, like=target.layer, against=against)
    index, minus = target.index or 0, target.minus  # every map's target has an index
    value = explanation.probability is None  # only a regression's output has none
    return schemas.ExplainedTarget(
        index=index,
        label=labels.name(index),
        score=score,
        probability=explanation.probability,
        box=None if target.box is None else _box(target.box, seen),
        minus=None
        if minus is None
        else schemas.LabelledClass(index=minus, label=labels.name(minus)),
        against=against,
        of="value" if value else "probability" if target.of == "probability" else None,
    )


def caption_of(
    explanation: Explanation,
    target: schemas.ExplainedTarget,
    model: ModelInfo,
    scores: Mapping[str, schemas.Score] | None = None,
) -> Caption:
    """Return the words that a panel shows beside an explanation."""
    sure = "" if target.probability is None else f"probability {target.probability:.3f} · "
    number = "value" if target.of == "value" else "score"
    lines = (
        f"{sure}{number} {target.score:.4g}",
        f"{explanation.method} at {explanation.layer} of {model.name}",
        *score_lines(scores),
    )
    return Caption(title_of(target), lines)


def title_of(target: schemas.ExplainedTarget) -> str:
    """Return the target in words."""
    if target.unit is not None:
        title = f"channel {target.unit.channel} of {target.unit.layer}"
    elif target.like is not None:
        title = f"like the other photo, at {target.like}"
    else:
        what = "output" if target.of == "value" else "class"
        title = target.label or f"{what} {target.index}"
        if target.minus is not None:
            title += f", not {target.minus.label or f'{what} {target.minus.index}'}"
    return f"against: {title}" if target.against else title


def predict(
    answer: Answer, model: ModelInfo, seen: ModelInput, instance: Instance[P]
) -> schemas.Prediction:
    """Return the JSON schema object of a model's `top_k` best classes, segments or detections, or
    of all values of a regression."""
    said, labels, count = answer.prediction, model.labels, instance.parameters.top_k
    if said.logits is not None and said.probabilities is None:
        return schemas.Prediction(
            instance=instance.index,
            id=instance.id,
            values=[
                schemas.Value(index=index, label=labels.name(index), value=value)
                for index, value in enumerate(said.logits.tolist())
            ],
        )
    if said.logits is not None:
        assert said.probabilities is not None
        classes = top_classes(said.logits, said.probabilities, labels, count)
        return schemas.Prediction(instance=instance.index, id=instance.id, classes=classes)
    if said.shares is not None:
        shares = said.shares
        best = [int(index) for index in np.argsort(-shares, kind="stable")[:count]]
        return schemas.Prediction(
            instance=instance.index,
            id=instance.id,
            segments=[
                schemas.Segment(index=index, label=labels.name(index), share=float(shares[index]))
                for index in best
                if shares[index] > 0
            ],
        )
    assert said.boxes is not None
    boxes = said.boxes
    found = zip(boxes.edges.tolist(), boxes.labels.tolist(), boxes.scores.tolist(), strict=True)
    return schemas.Prediction(
        instance=instance.index,
        id=instance.id,
        detections=[
            schemas.Detection(
                index=index, label=labels.name(index), score=score, box=_box(tuple(box), seen)
            )
            for box, index, score in list(found)[:count]
        ],
    )


def top_classes(
    logits: NDArray[np.float32], probabilities: NDArray[np.float32], labels: Labels, count: int
) -> list[schemas.ScoredClass]:
    """Return the `count` best classes, best first, of one image's logits and probabilities (C,)."""
    best = np.argsort(-logits, kind="stable")[:count]
    return [
        schemas.ScoredClass(
            index=int(index),
            label=labels.name(int(index)),
            score=float(logits[index]),
            probability=float(probabilities[index]),
        )
        for index in best
    ]


def _flat_warning(drawing: Drawing, explanation: Explanation) -> str:
    if explanation.map.max() > explanation.map.min():
        return "the model saw too few of these pixels to show the map on them; try another size"
    what = "zero" if not drawing.inside.any() else "the same"
    target = explanation.target
    named = "output" if explanation.probability is None else "class"
    whom = f"{named} {target.index}" if isinstance(target, ClassTarget) else "the target"
    both = METHODS[explanation.method].signed and not explanation.signed
    advice = "; signed=true shows what speaks against it, if anything does" if both else ""
    return (
        f"the map is {what} everywhere: {explanation.method} finds nothing at layer "
        f"{explanation.layer!r} that speaks for {whom}{advice}"
    )


def _region(region: Region) -> schemas.Region:
    return schemas.Region(
        left=region.left, top=region.top, width=region.width, height=region.height
    )


def _box(box: Edges, seen: ModelInput) -> schemas.Box:
    return _edges(box_on_photo(box, seen))


def _placement(found: Placement | None, seen: ModelInput) -> schemas.Placement | None:
    if found is None:
        return None
    box = found.box
    on_photo = box_on_photo((box.left, box.top, box.right, box.bottom), seen)
    return schemas.Placement(
        **_edges(on_photo).model_dump(),
        transposed=found.transposed,
        upside_down=found.upside_down,
        mirrored=found.mirrored,
    )


def _edges(box: Box) -> schemas.Box:
    return schemas.Box(left=box.left, top=box.top, right=box.right, bottom=box.bottom)


def _peak(drawing: Drawing) -> schemas.Point:
    scaled, region = drawing.scaled_inside, drawing.region
    y, x = np.unravel_index(int(scaled.argmax()), scaled.shape)
    return schemas.Point(x=region.left + int(x), y=region.top + int(y))


def _shifted(inner: Region, region: Region) -> Region:
    """Return a region that is given relative to another one, relative to the picture."""
    return replace(inner, left=region.left + inner.left, top=region.top + inner.top)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
