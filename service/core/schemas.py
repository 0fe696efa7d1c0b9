"""Schemas of JSON answers."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.core.choices import HeatmapEncoding
from service.core.glossary import TERMS

# A grayscale PNG of 8 × 8 pixels, short enough for examples.
TINY_PNG: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAU0lEQVR42gFIALf/AQ4kIhsM/OziBBQaISIS+eUABA4S"
    "GCIh8wHwBAMDBQkR/wYEBPj28egA9+70AwMJBfvw6OTjBOzgAPEK/e7mAQAEFBMI/fLsh70dPtcfjAIAAAAASUVORK5C"
    "YII="
)


class Open(BaseModel):
    model_config = ConfigDict(frozen=True)


class ScoredClass(Open):
    index: int = Field(examples=[285])
    label: str | None = Field(
        None, description="Absent where the model has no labels.", examples=["Egyptian cat"]
    )
    score: float = Field(
        description="The model's output for the class: as a rule a logit.", examples=[9.27]
    )
    probability: float = Field(description="By the model's `activation`, 0 … 1.", examples=[0.7734])


class LabelledClass(Open):
    index: int
    label: str | None = None


class Box(Open):
    """In the photo's pixels; edges, which may lie between pixels."""

    left: float
    top: float
    right: float
    bottom: float


class Unit(Open):
    layer: str
    channel: int


class ExplainedTarget(Open):
    """What is explained; `score` is the number: a class's logit, unless the rest says otherwise."""

    index: int | None = Field(None, description=TERMS["target_index"], examples=[285])
    label: str | None = Field(None, description=TERMS["target_label"], examples=["Egyptian cat"])
    score: float = Field(description=TERMS["target_score"], examples=[9.27])
    probability: float | None = Field(
        None, description=TERMS["target_probability"], examples=[0.7734]
    )
    box: Box | None = Field(None, description="Of the detection.")
    unit: Unit | None = None
    like: str | None = Field(
        None, description="The layer at which the photo's embedding was compared with another's."
    )
    minus: LabelledClass | None = Field(None, description="The class it was contrasted with.")
    against: Literal[True] | None = Field(None, description="What speaks against it is shown.")
    of: Literal["probability"] | None = None


class Region(Open):
    """Whole pixels of the heatmap."""

    left: int = Field(examples=[0])
    top: int = Field(examples=[0])
    width: int = Field(examples=[451])
    height: int = Field(examples=[300])


class Point(Open):
    x: int
    y: int


class Heatmap(Open):
    shape: tuple[int, int] = Field(description="Height and width.", examples=[[300, 451]])
    encoding: HeatmapEncoding = Field(
        description=(
            "`png`: an 8-bit grayscale PNG, 255 is 1.0 (of a signed map 0 is -1.0 and 128 is 0); "
            "`float32`: little-endian, row by row."
        ),
        examples=["png"],
    )
    data: str = Field(description="In base64.", examples=[TINY_PNG])


class Overlay(Open):
    content_type: Literal["image/png"]
    data: str = Field(description="In base64.")


class Completeness(Open):
    """Whether the attributions, of either sign, add up to what they explain."""

    attributed: float = Field(description="Their sum.")
    difference: float = Field(description="The score, less that of the baseline.")


class Passes(Open):
    """How many of its passes a method of many has made."""

    made: int
    of: int = Field(description="How many its formula takes.")


class Explanation(Open):
    instance: int = Field(description="Which of the request's instances, from 0.", examples=[0])
    id: str | None = None
    target: ExplainedTarget
    method: str = Field(description=TERMS["method"], examples=["gradcam"])
    layer: str = Field(description=TERMS["layer"], examples=["bn2"])
    layer_reason: str | None = Field(None, description=TERMS["layer_reason"])
    region: Region = Field(description=TERMS["region"])
    covers: Box | None = Field(None, description=TERMS["covers"])
    heatmap: Heatmap
    overlay: Overlay | None = Field(
        None,
        description="The picture, where `output` is `overlay`, `heatmap`, `contour` or `panel`.",
    )
    peak: Point | None = Field(None, description=TERMS["peak"], examples=[{"x": 161, "y": 107}])
    hot: Region | None = Field(None, description=TERMS["hot"])
    mass: float | None = Field(None, description=TERMS["mass"])
    concentration: float | None = Field(None, description=TERMS["concentration"])
    border: float | None = Field(None, description=TERMS["border"])
    correct: bool | None = Field(None, description=TERMS["correct"])
    agreement: dict[str, float] | None = Field(None, description=TERMS["agreement"])
    signed: Literal[True] | None = None
    completeness: Completeness | None = Field(
        None, description="Of methods that promise it: integratedgradients, fullgrad."
    )
    passes: Passes | None = Field(None, description=TERMS["passes"])
    warnings: list[str] = Field([], examples=[[]])


class ProblemDocument(Open):
    """RFC 9457; `error` repeats `detail` for KServe clients."""

    type: str
    title: str
    status: int
    detail: str
    error: str
    pointer: str | None = None


class FailedInstance(Open):
    """Stands in the place of what an instance would have got."""

    instance: int
    id: str | None = None
    error: str
    problem: ProblemDocument


class Segment(LabelledClass):
    share: float = Field(description="Of the pixels that the model saw, 0 … 1.")


class Detection(LabelledClass):
    score: float
    box: Box


class Prediction(Open):
    """What the model says of an image: the one that its kind has."""

    instance: int = Field(examples=[0])
    id: str | None = None
    classes: list[ScoredClass] | None = Field(
        None,
        description="Of a classifier: the top_k classes, best first.",
        examples=[[{"index": 285, "label": "Egyptian cat", "score": 9.27, "probability": 0.7734}]],
    )
    segments: list[Segment] | None = Field(
        None, description="Of a segmenter: the top_k classes of the most pixels."
    )
    detections: list[Detection] | None = Field(
        None, description="Of a detector: the top_k detections, best first."
    )


class PredictResponse(Open):
    predictions: list[Prediction | FailedInstance]


class ExplainResponse(Open):
    """Both lists are in the order of the instances; an instance with several methods, targets or
    layers has an explanation for each: by method, then by target, then by layer."""

    predictions: list[Prediction | FailedInstance]
    explanations: list[Explanation | FailedInstance]


class SignalDescription(Open):
    """One tensor of one image, without the batch."""

    shape: list[int] = Field(examples=[[1280, 7, 7]])
    mean: float = Field(examples=[0.19])
    std: float = Field(examples=[0.67])
    minimum: float = Field(examples=[0.0])
    maximum: float = Field(examples=[6.0])
    zeros: float = Field(
        description="The share of exact zeros: behind a ReLU, of dead units.", examples=[0.81]
    )


class ConceptDescription(Open):
    """A pattern that the layer repeats over the photo."""

    share: float = Field(description="Of the layer's activations, 0 … 1.")
    classes: list[ScoredClass] | None = Field(
        None, description="What the model makes of it alone, best first."
    )


class LayerActivation(Open):
    instance: int = Field(examples=[0])
    id: str | None = None
    layer: str = Field(examples=["bn2"])
    type: str = Field(examples=["BatchNormAct2d"])
    input: SignalDescription | None = Field(
        None,
        description="Absent if no tensor went in.",
        examples=[
            {
                "shape": [1280, 7, 7],
                "mean": -0.73,
                "std": 0.9,
                "minimum": -6.1,
                "maximum": 9.8,
                "zeros": 0.0,
            }
        ],
    )
    output: SignalDescription
    gradient: SignalDescription | None = Field(
        None, description="Of the target at the output; absent if it does not depend on it."
    )
    channels: list[int] = Field(
        description="The top_k strongest, strongest first.", examples=[[1013, 24]]
    )
    concepts: list[ConceptDescription] | None = Field(
        None, description="Where `concepts` asks for them, the largest share first."
    )


class ActivationResponse(Open):
    activations: list[LayerActivation | FailedInstance]


class Step(Open):
    """In forward passes of one image."""

    done: int
    total: int


class ProgressLine(Open):
    """In NDJSON, while a method of many passes is at work."""

    instance: int
    id: str | None = None
    progress: Step
    method: str | None = Field(
        None, description="Which method is at work, where the request names several."
    )


def dump(model: BaseModel) -> bytes:
    """Return a schema as JSON, without the fields that are None."""
    return model.model_dump_json(exclude_none=True).encode()
