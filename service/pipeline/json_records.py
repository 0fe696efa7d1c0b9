"""Conversion of targets and predictions to the schemas of JSON answers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from cam import Explanation, Reason, SimilarityTarget, TextTarget, UnitTarget
from service.backend.outcome import ServedAnswer
from service.core import model_schemas, schemas
from service.models.info import ModelInfo
from service.models.labels import Labels
from service.models.preprocessing import ModelInput, Preprocessing
from service.pipeline.coordinates import box_on_photo
from service.pipeline.evaluation import score_lines
from service.pipeline.instances import Instance
from service.pipeline.parameters import PredictParameters
from service.pipeline.rendering import Caption


def describe_input(preprocessing: Preprocessing) -> model_schemas.InputDescription:
    """Return the JSON schema object of a model's preprocessing."""
    return model_schemas.InputDescription(
        height=preprocessing.height,
        width=preprocessing.width,
        resize=preprocessing.shorter_side,
        fit=preprocessing.crop_fit,
        default_fit=preprocessing.default_fit,
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
    if isinstance(target, TextTarget):
        return schemas.ExplainedTarget(
            label=target.text,
            score=score,
            text=target.text,
            minus_text=target.minus,
            words=[
                schemas.WordImportance(word=word, importance=importance)
                for word, importance in explanation.words
            ]
            or None,
            against=against,
        )
    index, minus = target.index or 0, target.minus  # every map's target has an index
    value = explanation.probability is None  # only a regression's output has none
    return schemas.ExplainedTarget(
        index=index,
        label=labels.name(index),
        score=score,
        probability=explanation.probability,
        box=target.box and box_on_photo(target.box, seen),
        minus=None
        if minus is None
        else schemas.LabelledClass(index=minus, label=labels.name(minus)),
        against=against,
        of="value" if value else "probability" if target.of == "probability" else None,
    )


def caption_of(
    explanation: Explanation,
    model: ModelInfo,
    seen: ModelInput,
    scores: Mapping[str, schemas.Score] | None = None,
) -> Caption:
    """Return the words that a panel shows beside an explanation."""
    target = describe_target(explanation, model.labels, seen)
    sure = "" if target.probability is None else f"probability {target.probability:.3f} · "
    number = "value" if target.of == "value" else "score"
    lines = (
        f"{sure}{number} {target.score:.4g}",
        *([f"reason {explanation.number}"] if isinstance(explanation, Reason) else []),
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
    elif target.text is not None:
        title = target.text
        if target.minus_text is not None:
            title += f", not {target.minus_text}"
    else:
        what = "output" if target.of == "value" else "class"
        title = target.label or f"{what} {target.index}"
        if target.minus is not None:
            title += f", not {target.minus.label or f'{what} {target.minus.index}'}"
    return f"against: {title}" if target.against else title


def predict(
    answer: ServedAnswer, model: ModelInfo, seen: ModelInput, instance: Instance[PredictParameters]
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
    rows = zip(boxes.edges.tolist(), boxes.labels.tolist(), boxes.scores.tolist(), strict=True)
    return schemas.Prediction(
        instance=instance.index,
        id=instance.id,
        detections=[
            schemas.Detection(
                index=index,
                label=labels.name(index),
                score=score,
                box=box_on_photo(tuple(box), seen),
            )
            for box, index, score in list(rows)[:count]
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
