"""Parameters of `:activations`: the same names in JSON, in the query and in form fields."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator
from typing_extensions import TypeAliasType

from cam.drawing.overlay import USUAL_GALLERY
from service.pipeline.parameters import (
    Colormap,
    LayerParameter,
    PredictParameters,
)
from service.pipeline.targets import (
    ClassIndex,
    Name,
    TargetObject,
    object_in_text,
)

ChannelRanking = TypeAliasType("ChannelRanking", Literal["activation", "gradient"])


class ActivationParameters(PredictParameters):
    """Parameters of `:activations`."""

    top_k: int = Field(25, ge=1, le=400, description="How many channels a gallery shows.")
    layer: LayerParameter = Field(
        "auto",
        description=(
            "A layer, several, or patterns like `blocks.*.bn1`; `auto` is the model's default."
        ),
    )
    target: ClassIndex | Name | TargetObject | None = Field(
        None, description="What is differentiated; without it, the logit of the predicted class."
    )
    by: ChannelRanking = Field(
        "activation",
        description=(
            "Which channels a gallery shows: those with the largest mean activation, or those to "
            "which Grad-CAM gives the most weight."
        ),
    )
    colormap: Colormap = Field(USUAL_GALLERY, description="The colours of a gallery.")
    concepts: int | None = Field(
        None,
        ge=2,
        le=10,
        description=(
            "Factorise a layer's activations into this number of concepts; a picture then shows "
            "them over the photo, with the classes that the model predicts from each concept alone."
        ),
    )

    @property
    def costly(self) -> bool:
        return True  # each image is processed alone, not in a batch

    _object_in_text = field_validator("target", mode="before")(object_in_text)
