"""Schemas of JSON answers."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from cam.drawing.placement import Box, Region
from cam.progress import Completeness, Passes
from service.core.choices import Better, ExplainedNumber, HeatmapEncoding, Mode
from service.core.glossary import TERMS

# A grayscale PNG of 8 × 8 pixels, short enough for examples.
TINY_PNG: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAU0lEQVR42gFIALf/AQ4kIhsM/OziBBQaISIS+eUABA4S"
    "GCIh8wHwBAMDBQkR/wYEBPj28egA9+70AwMJBfvw6OTjBOzgAPEK/e7mAQAEFBMI/fLsh70dPtcfjAIAAAAASUVORK5C"
    "YII="
)


class Open(BaseModel):
    """A part of an answer. What `cam` returns is read by the names of its attributes."""

    model_config = ConfigDict(frozen=True, from_attributes=True)


class Described(Open):
    """A part that holds dataclasses of `cam`, whose docstrings say what their fields are."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class ScoredClass(Open):
    index: int = Field(examples=[285])
    label: str | None = Field(
        None,
        description="Label of the class; absent if the model has no labels.",
        examples=["Egyptian cat"],
    )
    score: float = Field(
        description="The model's output for the class, usually a logit.", examples=[9.27]
    )
    probability: float = Field(
        description="Probability by the model's `activation`, 0 … 1.", examples=[0.7734]
    )


class LabelledClass(Open):
    index: int
    label: str | None = None


class Unit(Open):
    layer: str
    channel: int


class WordImportance(Open):
    """How much a word of a text adds to the score of the photo."""

    word: str = Field(examples=["wicker"])
    importance: float = Field(
        description="The score of the text minus the score of the text without the word.",
        examples=[1.7],
    )


class ExplainedTarget(Described):
    """The target that a map explains. `score` is its number: the logit of a class, unless the other
    fields say otherwise."""

    index: int | None = Field(None, description=TERMS["target_index"], examples=[285])
    label: str | None = Field(None, description=TERMS["target_label"], examples=["Egyptian cat"])
    score: float = Field(description=TERMS["target_score"], examples=[9.27])
    probability: float | None = Field(
        None, description=TERMS["target_probability"], examples=[0.7734]
    )
    box: Box | None = Field(None, description="Box of the explained detection.")
    unit: Unit | None = None
    like: str | None = Field(
        None, description="The layer whose embeddings of the two photos were compared."
    )
    text: str | None = Field(None, description="The text, if the target is one.")
    minus_text: str | None = Field(None, description="The text that the target is contrasted with.")
    words: list[WordImportance] | None = Field(
        None, description="The importance of each word of the text, if the target asks for it."
    )
    minus: LabelledClass | None = Field(
        None, description="The class that the target is contrasted with."
    )
    against: Literal[True] | None = Field(
        None, description="The map shows evidence against the target."
    )
    of: ExplainedNumber | None = Field(
        None,
        description="What `score` is if it is not a logit: a probability, or a regression's value.",
    )


class Point(Open):
    x: int
    y: int


class Heatmap(Open):
    shape: tuple[int, int] = Field(description="Height and width.", examples=[[300, 451]])
    encoding: HeatmapEncoding = Field(
        description=(
            "`png`: an 8-bit grayscale PNG, 255 is 1.0 (in a signed map, 0 is -1.0 and 128 is 0); "
            "`float32`: little-endian, row by row."
        ),
        examples=["png"],
    )
    data: str = Field(
        description="The file, or the numbers, in base64.",
        examples=[TINY_PNG],
        json_schema_extra={"contentEncoding": "base64"},
    )


class Overlay(Open):
    content_type: Literal["image/png"]
    data: str = Field(
        description="The file in base64.", json_schema_extra={"contentEncoding": "base64"}
    )


class Score(Open):
    """How good a map is by one metric."""

    value: float | None = Field(
        None, description="Absent if the metric has no value for this map.", examples=[0.118]
    )
    better: Better = Field(description="Which values are better.", examples=["lower"])
    convention: str = Field(
        description="How the value was computed. Values of other conventions are not comparable.",
        examples=["Petsiuk et al., RISE, BMVC 2018: area (trapezoid) under the probability; …"],
    )
    baselines: dict[str, float | None] = Field(
        {},
        description="Values of maps that know nothing of the model, for the same photo.",
        examples=[{"random": 0.203, "gaussian": 0.171, "edges": 0.198, "uniform": 0.239}],
    )
    verdict: str | None = Field(
        None,
        description=(
            "How the value compares with those of the baselines: better than chance above the 95th "
            "percentile of misplaced maps, worse below the 5th; by `energy` and `pointing`, "
            "better or worse than all of them. The uniform map is left out."
        ),
        examples=["better than chance and an edge detector; no better than a centred Gaussian"],
    )
    percentile: float | None = Field(
        None,
        description="Percentage of the misplaced maps that are worse.",
        ge=0,
        le=100,
        examples=[98.3],
    )
    random_maps: int = Field(
        0,
        description=(
            "Number of misplaced maps: the same map turned about the centre, and mirrored. "
            "`random` in `baselines` is their mean value. With fewer than 19 of them, the "
            "percentile is that of Student's distribution with their mean and spread; otherwise it "
            "is the rank among them."
        ),
        examples=[8],
    )
    details: dict[str, float | list[float] | None] = Field(
        {}, description="The numbers behind the value, such as the points of a curve."
    )
    warning: str | None = Field(None, description="Why there is no value.")


class Placement(Open):
    left: float
    top: float
    right: float
    bottom: float
    transposed: bool = Field(description="Whether the layer's rows are columns of the photo.")
    upside_down: bool = Field(description="Whether the layer's first row lies at the bottom.")
    mirrored: bool = Field(description="Whether the layer's first column lies at the right.")


class MapFacts(Described):
    """The facts about one map, without its numbers."""

    instance: int = Field(description="Index of the instance in the request, from 0.", examples=[0])
    id: str | None = None
    target: ExplainedTarget
    method: str = Field(description=TERMS["method"], examples=["gradcam"])
    layer: str = Field(description=TERMS["layer"], examples=["bn2"])
    layer_reason: str | None = Field(None, description=TERMS["layer_reason"])
    reason: int | None = Field(None, description=TERMS["reason"])
    region: Region = Field(
        description=TERMS["region"],
        examples=[{"left": 0, "top": 0, "width": 451, "height": 300}],
    )
    covers: Box | None = Field(None, description=TERMS["covers"])
    placement: Placement | None = Field(None, description=TERMS["placement"])
    peak: Point | None = Field(None, description=TERMS["peak"], examples=[{"x": 161, "y": 107}])
    hot: Region | None = Field(None, description=TERMS["hot"])
    mass: float | None = Field(None, description=TERMS["mass"])
    concentration: float | None = Field(None, description=TERMS["concentration"])
    border: float | None = Field(None, description=TERMS["border"])
    correct: bool | None = Field(None, description=TERMS["correct"])
    mode: Mode | None = Field(None, description=TERMS["mode"])
    agreement: dict[str, float] | None = Field(None, description=TERMS["agreement"])
    signed: Literal[True] | None = None
    completeness: Completeness | None = Field(
        None,
        description="Only for methods whose attributions should add up to the score: "
        "integratedgradients, expectedgradients, fullgrad and lrp.",
    )
    passes: Passes | None = Field(None, description=TERMS["passes"])
    scores: dict[str, Score] | None = Field(
        None, description="Metric → score, if `evaluate` names metrics."
    )
    warnings: list[str] = Field([], examples=[[]])


class Explanation(MapFacts):
    heatmap: Heatmap
    overlay: Overlay | None = Field(
        None,
        description="The picture, if `output` is `overlay`, `heatmap`, `contour` or `panel`.",
    )


class ProblemDocument(Open):
    """A problem document (RFC 9457). `error` repeats `detail` for KServe clients."""

    type: str
    title: str
    status: int
    detail: str
    error: str
    pointer: str | None = None


class FailedInstance(Open):
    """Takes the place of an instance's result if the instance failed."""

    instance: int
    id: str | None = None
    error: str
    problem: ProblemDocument


class Segment(LabelledClass):
    share: float = Field(description="The class's share of the pixels that the model saw, 0 … 1.")


class Detection(LabelledClass, Described):
    score: float
    box: Box


class Value(LabelledClass):
    """An output of a regression."""

    value: float


class Prediction(Open):
    """The prediction for an image: classes, segments, detections or values, depending on the kind
    of model."""

    instance: int = Field(examples=[0])
    id: str | None = None
    classes: list[ScoredClass] | None = Field(
        None,
        description="The `top_k` classes of a classifier, best first.",
        examples=[[{"index": 285, "label": "Egyptian cat", "score": 9.27, "probability": 0.7734}]],
    )
    segments: list[Segment] | None = Field(
        None, description="The `top_k` classes of a segmenter with the most pixels."
    )
    detections: list[Detection] | None = Field(
        None, description="The `top_k` detections of a detector, best first."
    )
    values: list[Value] | None = Field(
        None, description="All outputs of a regression, in their order. They are not probabilities."
    )


class PredictResponse(Open):
    predictions: list[Prediction | FailedInstance]


class ExplainResponse(Open):
    """Predictions and explanations, both in the order of the instances. An instance with several
    methods, targets, layers or reasons has one explanation for each, ordered by method, target,
    layer and reason."""

    predictions: list[Prediction | FailedInstance]
    explanations: list[Explanation | FailedInstance]


class Step(Open):
    """Progress, in forward passes of one image."""

    done: int
    total: int


class ProgressLine(Open):
    """A line of NDJSON that reports the progress of a method of many passes."""

    instance: int
    id: str | None = None
    progress: Step
    method: str | None = Field(
        None, description="Name of the running method, if the request names several."
    )


def dump(model: BaseModel) -> bytes:
    """Return a schema as JSON, without the fields that are None."""
    return model.model_dump_json(exclude_none=True).encode()
