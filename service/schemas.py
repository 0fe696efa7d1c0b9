"""What answers look like, in JSON."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _Open(BaseModel):
    model_config = ConfigDict(frozen=True)


class ScoredClass(_Open):
    index: int
    label: str | None = Field(None, description="Absent where the model has no labels.")
    score: float = Field(description="The pre-softmax logit.")
    probability: float = Field(description="The softmax probability, 0 … 1.")


class NamedClass(_Open):
    index: int
    label: str | None = None


class ExplainedTarget(ScoredClass):
    """The class explained; `score` is the number explained: its logit, unless the rest says
    otherwise."""

    minus: NamedClass | None = Field(None, description="The class it was contrasted with.")
    against: Literal[True] | None = Field(None, description="What speaks against it is shown.")
    of: Literal["probability"] | None = None


class Region(_Open):
    """The pixels of the heatmap that the model saw; outside them it is 0."""

    left: int
    top: int
    width: int
    height: int


class Point(_Open):
    x: int
    y: int


class Heatmap(_Open):
    shape: tuple[int, int] = Field(description="Height and width.")
    encoding: Literal["png", "float32"] = Field(
        description=(
            "`png`: an 8-bit grayscale PNG, 255 is 1.0; `float32`: little-endian, row by row."
        )
    )
    data: str = Field(description="In base64.")


class Overlay(_Open):
    content_type: Literal["image/png"]
    data: str = Field(description="In base64.")


class Explanation(_Open):
    instance: int = Field(description="Which of the request's instances, from 0.")
    id: str | None = None
    target: ExplainedTarget
    method: str
    layer: str
    region: Region
    heatmap: Heatmap
    overlay: Overlay | None = Field(
        None, description="The picture, where `output` is `overlay` or `heatmap`."
    )
    peak: Point | None = Field(None, description="The hottest pixel; absent if the map is zero.")
    warnings: list[str] = []


class ProblemDocument(_Open):
    """RFC 9457; `error` repeats `detail` for KServe clients."""

    type: str
    title: str
    status: int
    detail: str
    error: str
    pointer: str | None = None


class FailedInstance(_Open):
    """Stands in the place of what an instance would have got."""

    instance: int
    id: str | None = None
    error: str
    problem: ProblemDocument


class Prediction(_Open):
    instance: int
    id: str | None = None
    classes: list[ScoredClass] = Field(description="The top_k classes, best first.")


class PredictResponse(_Open):
    predictions: list[Prediction | FailedInstance]


class ExplainResponse(_Open):
    """Both lists are in the order of the instances; an instance with several targets or layers
    has an explanation for each, targets first."""

    predictions: list[Prediction | FailedInstance]
    explanations: list[Explanation | FailedInstance]


class SignalDescription(_Open):
    """One tensor of one image, without the batch."""

    shape: list[int]
    mean: float
    std: float
    minimum: float
    maximum: float
    zeros: float = Field(description="The share of exact zeros: behind a ReLU, of dead units.")


class LayerActivation(_Open):
    instance: int
    id: str | None = None
    layer: str
    type: str
    input: SignalDescription | None = Field(None, description="Absent if no tensor went in.")
    output: SignalDescription
    gradient: SignalDescription | None = Field(
        None, description="Of the target at the output; absent if it does not depend on it."
    )
    channels: list[int] = Field(description="The top_k strongest, strongest first.")


class ActivationResponse(_Open):
    activations: list[LayerActivation | FailedInstance]


class ModelList(_Open):
    models: list[str]


class InputDescription(_Open):
    height: int
    width: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


class MethodDescription(_Open):
    name: str
    summary: str
    cost: Literal["one forward", "one backward", "N forwards", "N backwards"] = Field(
        description="Beside the forward pass that predicts."
    )
    budget: int | None = Field(
        None, description="Of N passes: how many at most, unless the request says otherwise."
    )
    at: Literal["layer", "input"] = Field(description="Where the map is made.")
    class_specific: bool = Field(description="Whether the map depends on the target.")


class ModelDescription(_Open):
    name: str
    ready: bool
    source: str
    device: str
    dtype: str
    input: InputDescription
    classes: int
    labels: list[str]
    default_layer: str
    methods: list[MethodDescription]
    max_batch: int
    fingerprint: str = Field(description="Changes when the weights or the preprocessing do.")


class LayerDescription(_Open):
    name: str
    type: str
    output_shape: list[int] | None = Field(None, description="Without the batch dimension.")
    grid: tuple[int, int] | None = Field(
        None, description="Height and width of its map, where the output lies on the image."
    )
    explainable: bool
    reason: str | None = Field(None, description="Why not.")
    default: bool


class LayerList(_Open):
    """Every module in the order in which they finish in a forward pass."""

    layers: list[LayerDescription]


class Health(_Open):
    status: Literal["ok"]


def dump(model: BaseModel) -> bytes:
    """A schema as JSON, without the fields that are absent."""
    return model.model_dump_json(exclude_none=True).encode()
