"""Schemas of JSON answers about the service and its models."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.core.choices import (
    Activation,
    ChannelOrder,
    Fit,
    MapPlace,
    MethodCost,
    Mode,
    ModelKind,
    ValueRange,
)
from service.core.schemas import Open


class ModelList(Open):
    models: list[str] = Field(examples=[["efficientnet-lite0"]])


class InputDescription(Open):
    """What the model gets to see of a photo, whatever the entry says or leaves out."""

    height: int = Field(examples=[224])
    width: int = Field(examples=[224])
    resize: int = Field(
        description="Pixels to which the photo's shorter side is resized before the middle is "
        "cropped, with `fit=crop`.",
        examples=[256],
    )
    fit: Fit = Field(description="What `fit=crop` means here.", examples=["crop"])
    interpolation: str = Field(description="Pillow's, antialiased.", examples=["bicubic"])
    channel_order: ChannelOrder = Field(examples=["rgb"])
    value_range: ValueRange = Field(description="Before it is normalised.", examples=["0-1"])
    mean: tuple[float, float, float] = Field(
        description="Of red, green, blue.", examples=[[0.5, 0.5, 0.5]]
    )
    std: tuple[float, float, float] = Field(
        description="Of red, green, blue.", examples=[[0.5, 0.5, 0.5]]
    )


class FidelityDescription(Open):
    """How much fast maps are like the exact ones, on generated pictures: Pearson's correlation,
    -1 … 1."""

    median: float
    worst: float


class MethodDescription(Open):
    name: str = Field(examples=["gradcam"])
    summary: str = Field(examples=["channels weighted by their mean gradient"])
    cost: MethodCost = Field(
        description="Beside the forward pass that predicts.", examples=["one backward"]
    )
    budget: int | None = Field(
        None, description="Of N passes: how many at most, unless the request says otherwise."
    )
    at: MapPlace = Field(description="Where the map is made.", examples=["layer"])
    class_specific: bool = Field(
        description="Whether the map depends on the target.", examples=[True]
    )
    signed: bool = Field(description="Whether `signed` has anything to show.", examples=[True])
    layer: str | None = Field(None, description="Its default layer in this model.")
    available: bool = Field(description="Whether this model can.", examples=[True])
    reason: str | None = Field(None, description="Why not.")
    fast: bool = Field(
        description="Whether its maps at the model's default layer come from the fast path: only "
        "where its fidelity is 0.98 or more, at worst too.",
        examples=[False],
    )
    fidelity: FidelityDescription | None = Field(
        None, description="Of its fast maps at the default layer, if they were judged."
    )


class ModelDescription(Open):
    name: str = Field(examples=["efficientnet-lite0"])
    ready: bool = Field(examples=[True])
    source: str = Field(examples=["embedded:efficientnet-lite0"])
    device: str = Field(examples=["cpu"])
    dtype: str = Field(examples=["float32"])
    kind: ModelKind = Field(
        description="What it predicts: of the image, of each pixel, or boxes.", examples=["classes"]
    )
    activation: Activation = Field(
        description=(
            "What makes probabilities of its outputs; `none`: they are probabilities already. A "
            "model of one output has two classes, the negative one first."
        ),
        examples=["softmax"],
    )
    activation_reason: str = Field(
        description="Why it is that one.",
        examples=["the model has several outputs and ends in no softmax or sigmoid"],
    )
    input: InputDescription
    classes: int = Field(examples=[1000])
    labels: list[str] = Field(examples=[["tench", "goldfish"]])
    default_layer: str = Field(examples=["bn2"])
    levels: list[str] | None = Field(
        None, description="Of a detector: the layers that its boxes are made from."
    )
    methods: list[MethodDescription]
    mode: Mode = Field(
        description="`fast`: maps at the default layer come from the fast path, of those methods "
        "that say so.",
        examples=["exact"],
    )
    fidelity: float | None = Field(
        None,
        description="Pearson's correlation of a fast map with the exact one: the worst of the "
        "methods that are served fast.",
    )
    max_batch: int = Field(examples=[16])
    batching: str | None = Field(
        None, description="Why images are run one by one, where `max_batch` is 1 for that."
    )
    fingerprint: str = Field(
        description="Changes when the weights or the preprocessing do.",
        examples=["5b1f0c9e0d6c4f5e8a7b6c5d4e3f2a1b"],
    )


class LayerDescription(Open):
    name: str = Field(examples=["bn2"])
    type: str = Field(examples=["BatchNormAct2d"])
    output_shape: list[int] | None = Field(
        None, description="Without the batch dimension.", examples=[[1280, 7, 7]]
    )
    grid: tuple[int, int] | None = Field(
        None,
        description="Height and width of its map, where the output lies on the image.",
        examples=[[7, 7]],
    )
    explainable: bool = Field(examples=[True])
    reason: str | None = Field(None, description="Why not.")
    default: bool = Field(examples=[True])


class LayerList(Open):
    """Every module in the order in which they finish in a forward pass."""

    layers: list[LayerDescription]


class Health(Open):
    status: Literal["ok"]


class ModelState(Open):
    """What becomes of a model that is added."""

    name: str = Field(examples=["r50"])
    state: Literal["loading"]
