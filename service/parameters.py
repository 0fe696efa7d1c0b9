"""What a caller may ask: the same names in JSON, in the query, in form fields and on the command
line."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, field_validator
from pydantic_core import PydanticCustomError

from cam import COLORMAPS, METHODS

MAX_MAPS = 100
"""Of one request."""
MAX_INSTANCES = 1024
MAX_NAME = 200


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
ClassIndex = Annotated[int, Field(ge=0, lt=2**31)]


class TargetObject(_Closed):
    """A target that is more than a class's own score."""

    class_: ClassIndex | Name | None = Field(
        None, alias="class", description="Index or label; without it the predicted class."
    )
    minus: ClassIndex | Name | None = Field(
        None, description="Why this class and not that one: the difference of the two is explained."
    )
    against: bool = Field(False, description="What speaks against it.")
    of: Literal["logit", "probability"] = Field(
        "logit", description="With `probability`, what raises the competitors counts, too."
    )


OneTarget = ClassIndex | Name | TargetObject
TargetParameter = OneTarget | Annotated[list[OneTarget], Field(min_length=1, max_length=MAX_MAPS)]
LayerParameter = Name | Annotated[list[Name], Field(min_length=1, max_length=MAX_MAPS)]
MethodParameter = Annotated[
    str, Field(min_length=1, max_length=40, json_schema_extra={"enum": list(METHODS)})
]
ColormapParameter = Annotated[str, Field(json_schema_extra={"enum": list(COLORMAPS)})]


def no_method(name: str) -> str:
    return f"there is no method {name!r}; the methods are {', '.join(METHODS)}"


def object_in_text(target: Any) -> Any:
    """A target's object may come as JSON in a query, a form field or on the command line."""
    if isinstance(target, list):
        return [object_in_text(each) for each in target]
    if isinstance(target, str) and target.lstrip().startswith("{"):
        try:
            return json.loads(target)
        except ValueError:
            sentence = "it should be a JSON object if it starts with a brace"
            raise PydanticCustomError("target", sentence) from None
    if isinstance(target, str) and len(target) > MAX_NAME:  # of digits, it might be an index
        raise PydanticCustomError("target", "it should have at most 200 characters")
    return target


def known_colormap(colormap: str) -> str:
    if colormap not in COLORMAPS:
        names = ", ".join(COLORMAPS)
        raise PydanticCustomError("unknown_colormap", f"the colormaps are {names}")
    return colormap


class PredictParameters(_Closed):
    """Parameters of `:predict`: the same names in JSON, in the query and in form fields."""

    top_k: int = Field(5, ge=1, le=1000, description="How many labels to return, best first.")
    fit: Literal["crop", "squash", "pad"] = Field(
        "crop",
        description=(
            "How the model sees the photo: `crop` is its own evaluation preprocessing (the edges "
            "may be cut off), `squash` the whole photo in the input's shape, `pad` the whole "
            "photo with a border."
        ),
    )


class Parameters(PredictParameters):
    """Parameters of `:explain`: the same names in JSON, query, form fields, and on the command
    line."""

    method: MethodParameter = Field(
        "gradcam", description="The method of class activation mapping."
    )
    layer: LayerParameter = Field(
        "auto",
        description="The target layer, or several for a map each; `auto` is the model's default.",
    )
    target: TargetParameter | None = Field(
        None,
        description=(
            "The class to explain, by index or label, or an object for contrasts and more; "
            "several for several maps from one forward pass. Without it, the predicted class."
        ),
    )
    budget: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description=(
            "Most forward passes of a method that needs many; without it the method's own default."
        ),
    )
    output: Literal["overlay", "heatmap", "mask", "values"] | None = Field(
        None,
        description=(
            "`overlay`: colours over the photo; `heatmap`: the colours alone; `mask`: 8-bit "
            "grayscale; `values`: float32 numbers. Without it: an overlay where a picture is "
            "answered, a mask in JSON."
        ),
    )
    colormap: ColormapParameter = Field("turbo", description="The colours of heat.")
    opacity: float = Field(
        0.5, ge=0, le=1, allow_inf_nan=False, description="Of the colours over the photo."
    )
    normalize: Literal["minmax", "none"] = Field(
        "minmax",
        description=(
            "`minmax` scales each map to 0 … 1; `none` leaves the numbers as the method's formula "
            "gives them (pictures are scaled all the same)."
        ),
    )
    size: Literal["image", "model", "layer"] = Field(
        "image",
        description=(
            "Of the map: `image` the photo's own pixels, upright; `model` the model's input; "
            "`layer` the target layer's grid."
        ),
    )

    @property
    def maps(self) -> int:
        """How many maps of an image they ask for."""
        targets, layers = (
            len(dict.fromkeys(each)) if isinstance(each, list) else 1
            for each in (self.target, self.layer)
        )
        return targets * layers

    _object_in_text = field_validator("target", mode="before")(object_in_text)
    _colormap_exists = field_validator("colormap")(known_colormap)

    @field_validator("method")
    @classmethod
    def _method_exists(cls, method: str) -> str:
        if method not in METHODS:
            raise PydanticCustomError("unknown_method", no_method(method))
        return method


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
        None, description="What is differentiated; without it, the predicted class's logit."
    )
    by: Literal["activation", "gradient"] = Field(
        "activation",
        description=(
            "Which channels a gallery shows: those of the greatest mean activation, or those that "
            "Grad-CAM weights most."
        ),
    )
    colormap: ColormapParameter = Field("viridis", description="The colours of a gallery.")

    _object_in_text = field_validator("target", mode="before")(object_in_text)
    _colormap_exists = field_validator("colormap")(known_colormap)


class ImageSource(_Closed):
    b64: str = Field(
        description="The image's bytes in base64; a data: URL is taken too.",
        json_schema_extra={"contentEncoding": "base64"},
    )


class PredictInstance(_Closed):
    """One photo."""

    image: ImageSource
    id: str | None = Field(None, max_length=200, description="Comes back with the answer.")


class ExplainInstance(PredictInstance):
    """One photo, with parameters of its own where they differ from the request's."""

    target: TargetParameter | None = None
    method: MethodParameter | None = None
    layer: LayerParameter | None = None


class PredictRequest(_Closed):
    instances: Annotated[list[PredictInstance], FailFast()] = Field(
        min_length=1, max_length=MAX_INSTANCES
    )
    parameters: PredictParameters = PredictParameters()


class ActivationRequest(_Closed):
    instances: Annotated[list[PredictInstance], FailFast()] = Field(
        min_length=1, max_length=MAX_INSTANCES
    )
    parameters: ActivationParameters = ActivationParameters()


class ExplainRequest(_Closed):
    instances: Annotated[list[ExplainInstance], FailFast()] = Field(
        min_length=1, max_length=MAX_INSTANCES
    )
    parameters: Parameters = Parameters()


def names_of(model: type[BaseModel]) -> list[str]:
    return list(model.model_fields)


def parameter_schemas(model: type[BaseModel]) -> list[dict[str, Any]]:
    """The model's fields as OpenAPI query parameters."""
    properties = model.model_json_schema()["properties"]
    return [
        {
            "name": name,
            "in": "query",
            "required": False,
            "description": schema.pop("description", ""),
            "schema": {key: value for key, value in schema.items() if key != "title"},
        }
        for name, schema in properties.items()
    ]
