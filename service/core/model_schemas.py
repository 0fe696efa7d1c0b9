"""What the service tells of itself and its models, in JSON."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.core.schemas import Open


class ModelList(Open):
    models: list[str]


class InputDescription(Open):
    """What the model gets to see of a photo, whatever the entry says or leaves out."""

    height: int
    width: int
    resize: int = Field(
        description="Pixels to which the photo's shorter side is resized before the middle is "
        "cropped, with `fit=crop`."
    )
    fit: Literal["crop", "squash", "pad"] = Field(description="What `fit=crop` means here.")
    interpolation: str = Field(description="Pillow's, antialiased.")
    channel_order: Literal["rgb", "bgr"]
    value_range: Literal["0-1", "0-255"] = Field(description="Before it is normalised.")
    mean: tuple[float, float, float] = Field(description="Of red, green, blue.")
    std: tuple[float, float, float] = Field(description="Of red, green, blue.")


class FidelityDescription(Open):
    """How much fast maps are like the exact ones, on generated pictures: Pearson's correlation,
    -1 … 1."""

    median: float
    worst: float


class MethodDescription(Open):
    name: str
    summary: str
    cost: Literal["one forward", "one backward", "two backwards", "N forwards", "N backwards"] = (
        Field(description="Beside the forward pass that predicts.")
    )
    budget: int | None = Field(
        None, description="Of N passes: how many at most, unless the request says otherwise."
    )
    at: Literal["layer", "input"] = Field(description="Where the map is made.")
    class_specific: bool = Field(description="Whether the map depends on the target.")
    signed: bool = Field(description="Whether `signed` has anything to show.")
    layer: str | None = Field(None, description="Its default layer in this model.")
    available: bool = Field(description="Whether this model can.")
    reason: str | None = Field(None, description="Why not.")
    fast: bool = Field(
        description="Whether its maps at the model's default layer come from the fast path: only "
        "where its fidelity is 0.98 or more, at worst too."
    )
    fidelity: FidelityDescription | None = Field(
        None, description="Of its fast maps at the default layer, if they were judged."
    )


class ModelDescription(Open):
    name: str
    ready: bool
    source: str
    device: str
    dtype: str
    kind: Literal["classes", "segments", "detections"] = Field(
        description="What it predicts: of the image, of each pixel, or boxes."
    )
    activation: Literal["softmax", "sigmoid", "none"] = Field(
        description=(
            "What makes probabilities of its outputs; `none`: they are probabilities already. A "
            "model of one output has two classes, the negative one first."
        )
    )
    activation_reason: str = Field(description="Why it is that one.")
    input: InputDescription
    classes: int
    labels: list[str]
    default_layer: str
    levels: list[str] | None = Field(
        None, description="Of a detector: the layers that its boxes are made from."
    )
    methods: list[MethodDescription]
    mode: Literal["exact", "fast"] = Field(
        description="`fast`: maps at the default layer come from the fast path, of those methods "
        "that say so."
    )
    fidelity: float | None = Field(
        None,
        description="Pearson's correlation of a fast map with the exact one: the worst of the "
        "methods that are served fast.",
    )
    max_batch: int
    batching: str | None = Field(
        None, description="Why images are run one by one, where `max_batch` is 1 for that."
    )
    fingerprint: str = Field(description="Changes when the weights or the preprocessing do.")


class LayerDescription(Open):
    name: str
    type: str
    output_shape: list[int] | None = Field(None, description="Without the batch dimension.")
    grid: tuple[int, int] | None = Field(
        None, description="Height and width of its map, where the output lies on the image."
    )
    explainable: bool
    reason: str | None = Field(None, description="Why not.")
    default: bool


class LayerList(Open):
    """Every module in the order in which they finish in a forward pass."""

    layers: list[LayerDescription]


class Health(Open):
    status: Literal["ok"]


class ModelState(Open):
    """What becomes of a model that is added."""

    name: str
    state: Literal["loading"]
