"""What `:activations` answers in JSON."""

from __future__ import annotations

from pydantic import Field

from service.core.schemas import FailedInstance, Open, ScoredClass


class SignalDescription(Open):
    """Statistics of one tensor of one image, without the batch axis."""

    shape: list[int] = Field(examples=[[1280, 7, 7]])
    mean: float = Field(examples=[0.19])
    std: float = Field(examples=[0.67])
    minimum: float = Field(examples=[0.0])
    maximum: float = Field(examples=[6.0])
    zeros: float = Field(
        description="Share of exact zeros: after a ReLU, the inactive units.", examples=[0.81]
    )


class ConceptDescription(Open):
    """A pattern that the layer repeats over the photo."""

    share: float = Field(description="Share of the layer's activations, 0 … 1.")
    classes: list[ScoredClass] | None = Field(
        None, description="Classes that the model predicts from the concept alone, best first."
    )


class LayerActivation(Open):
    instance: int = Field(examples=[0])
    id: str | None = None
    layer: str = Field(examples=["bn2"])
    type: str = Field(examples=["BatchNormAct2d"])
    input: SignalDescription | None = Field(
        None,
        description="Statistics of the layer's input; absent if no input is a tensor.",
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
        None,
        description="The target's gradient at the output; absent if the target does not depend on "
        "the output.",
    )
    channels: list[int] = Field(
        description="The `top_k` strongest channels, strongest first.", examples=[[1013, 24]]
    )
    concepts: list[ConceptDescription] | None = Field(
        None, description="The concepts, if `concepts` asks for them, largest share first."
    )


class ActivationResponse(Open):
    activations: list[LayerActivation | FailedInstance]
