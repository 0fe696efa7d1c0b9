"""Schemas of JSON answers about the service and its models."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.core.choices import (
    RUNTIMES,
    Activation,
    ChannelOrder,
    ClassDependence,
    Fit,
    MapPlace,
    MethodCost,
    MethodFamily,
    Mode,
    ModelKind,
    RuntimeName,
    ValueRange,
)
from service.core.schemas import Open


class ModelList(Open):
    models: list[str] = Field(examples=[["efficientnet-lite0"]])
    takes_text: list[str] | None = Field(
        None,
        description="The loaded models of which a target may be a text, if there are any.",
        examples=[["clip"]],
    )
    detail: str | None = Field(None, description="What to do, if the list is empty.")


class InputDescription(Open):
    """The preprocessing in force: how a photo becomes the model's input."""

    height: int = Field(examples=[224])
    width: int = Field(examples=[224])
    resize: int = Field(
        description="Pixels to which the photo's shorter side is resized before the middle is "
        "cropped, with `fit=crop`.",
        examples=[256],
    )
    fit: Fit = Field(description="Meaning of `fit=crop` for this model.", examples=["crop"])
    default_fit: Fit = Field(
        description="Meaning of `fit=auto`, the default, for this model.", examples=["squash"]
    )
    interpolation: str = Field(description="Pillow's filter, antialiased.", examples=["bicubic"])
    channel_order: ChannelOrder = Field(examples=["rgb"])
    value_range: ValueRange = Field(
        description="Range of the values before they are normalised.", examples=["0-1"]
    )
    mean: tuple[float, float, float] = Field(
        description="One value each for red, green and blue.", examples=[[0.5, 0.5, 0.5]]
    )
    std: tuple[float, float, float] = Field(
        description="One value each for red, green and blue.", examples=[[0.5, 0.5, 0.5]]
    )


class FidelityDescription(Open):
    """Similarity of fast and exact maps on generated pictures: Pearson's correlation, -1 … 1."""

    median: float
    worst: float


class MethodDescription(Open):
    name: str = Field(examples=["gradcam"])
    summary: str = Field(examples=["channels weighted by their mean gradient"])
    family: MethodFamily = Field(
        "other",
        description="What the method works with: gradients at a layer; components of its "
        "activations, or no gradient; perturbation of the photo or the layer; pixels; attention of "
        "a transformer; boxes of a detector.",
        examples=["gradients"],
    )
    paper: str | None = Field(
        None,
        description="The paper that the formula is from, with the place in it, or what else it is "
        "from.",
        examples=['Zhou et al., "Learning Deep Features", CVPR 2016, equation 2'],
    )
    cost: MethodCost = Field(
        description="Cost in addition to the forward pass of the prediction.",
        examples=["one backward"],
    )
    budget: int | None = Field(
        None,
        description="Maximum number of passes, if the cost is N passes and the request sets no "
        "budget.",
    )
    at: MapPlace = Field(
        description="Whether the map is made at a layer or at the input.", examples=["layer"]
    )
    class_specific: bool = Field(
        description="Whether the map shows the evidence for the target. If it does not, every "
        "explanation by this method has a warning.",
        examples=[True],
    )
    class_dependence: ClassDependence = Field(
        description="How the map depends on the target: `none`: it is the same for every class; "
        "`weak`: it is almost the same if the model's last layer is random; else `full`.",
        examples=["full"],
    )
    signed: bool = Field(
        description="Whether the parameter `signed` has an effect.", examples=[True]
    )
    layer: str | None = Field(None, description="Default layer of the method in this model.")
    available: bool = Field(
        description="Whether the method works with this model.", examples=[True]
    )
    reason: str | None = Field(None, description="Why the method does not work.")
    fast: bool = Field(
        description="Whether the fast path makes this method's maps at the model's default layer, "
        "which requires a worst fidelity of 0.98 or more.",
        examples=[False],
    )
    fidelity: FidelityDescription | None = Field(
        None, description="Fidelity of the fast maps at the default layer, if it was measured."
    )


class AuditedMethod(Open):
    """The method and the layer that an audit of the model recommends."""

    method: str = Field(examples=["gradcam"])
    layer: str = Field(examples=["bn2"])


class ModelDescription(Open):
    name: str = Field(examples=["efficientnet-lite0"])
    ready: bool = Field(examples=[True])
    source: str = Field(examples=["embedded:efficientnet-lite0"])
    device: str = Field(examples=["cpu"])
    dtype: str = Field(examples=["float32"])
    kind: ModelKind = Field(
        description="Kind of prediction: classes of the image, classes of each pixel, boxes, or "
        "values of a regression, which have no probability.",
        examples=["classes"],
    )
    activation: Activation = Field(
        description=(
            "Function that turns outputs into probabilities; `none`: the outputs are "
            "probabilities, or values if the kind is `value`. A classifier with one output has two "
            "classes, the negative one first."
        ),
        examples=["softmax"],
    )
    activation_reason: str = Field(
        description="Reason for this activation.",
        examples=["the model has several outputs and does not end in a softmax or sigmoid"],
    )
    input: InputDescription
    classes: int = Field(
        description="Number of classes, or of a regression's values.", examples=[1000]
    )
    labels: list[str] = Field(examples=[["tench", "goldfish"]])
    synonyms: dict[str, list[int]] = Field(
        description="Further names by which a target may call classes, in lower case and without "
        "hyphens, each with the indices of the classes that have it beside their label.",
        examples=[{"orca": [148], "tabby cat": [281]}],
    )
    takes_text: bool = Field(
        description='Whether a target may be a text: `{"text": …}`.', examples=[False]
    )
    default_layer: str | None = Field(
        description="Layer that `auto` means for most methods; null if no layer can be the "
        "default, for example where every layer with a spatial output runs several times.",
        examples=["bn2"],
    )
    levels: list[str] | None = Field(
        None, description="Layers from which a detector computes its boxes."
    )
    methods: list[MethodDescription]
    mode: Mode = Field(
        description="`fast`: a compiled path makes the maps at the default layer, for the methods "
        "whose `fast` is true.",
        examples=["exact"],
    )
    runtime: RuntimeName = Field(
        description="What computes the maps of the fast path.", examples=[[*RUNTIMES][-1]]
    )
    fidelity: float | None = Field(
        None,
        description="Pearson's correlation of a fast map with the exact one: the worst of the "
        "methods that are served fast.",
    )
    max_batch: int = Field(examples=[16])
    batching: str | None = Field(
        None, description="Why the service set `max_batch` to 1; null if it did not."
    )
    audited: AuditedMethod | None = Field(
        None, description="What `method=auto` means, by the audit of the model."
    )
    fingerprint: str = Field(
        description="Changes when the weights or the preprocessing change.",
        examples=["5b1f0c9e0d6c4f5e8a7b6c5d4e3f2a1b"],
    )


class LayerDescription(Open):
    name: str = Field(examples=["bn2"])
    type: str = Field(examples=["BatchNormAct2d"])
    output_shape: list[int] | None = Field(
        None, description="Shape without the batch axis.", examples=[[1280, 7, 7]]
    )
    grid: tuple[int, int] | None = Field(
        None,
        description="Height and width of the layer's map, if its output lies on the image.",
        examples=[[7, 7]],
    )
    explainable: bool = Field(examples=[True])
    reason: str | None = Field(None, description="Why the layer is not explainable.")
    default: bool = Field(examples=[True])
    stage: bool = Field(
        False,
        description="Whether the layer ends a stage of the network, which is a part of one "
        "resolution: maps at these layers show all resolutions. The default layer stands for its "
        "own resolution.",
        examples=[True],
    )


class LayerList(Open):
    """All modules, in the order in which they finish in a forward pass."""

    layers: list[LayerDescription]


class Health(Open):
    status: Literal["ok"]


class Alive(Open):
    """What KServe's clients expect at the root."""

    status: Literal["alive"]


class ModelState(Open):
    """State of a model that is being added."""

    name: str = Field(examples=["r50"])
    state: Literal["loading"]
