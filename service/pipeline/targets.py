"""Schemas of targets, and of the images that a request contains."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError, from_json

from service.core.choices import TargetScore

MAX_MAPS = 100
"""Maximum number of maps of one request."""
MAX_NAME = 200


class StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
Text = Annotated[str, Field(min_length=1, max_length=1000)]
ClassIndex = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
"""Strict, because pydantic would take true for 1 in a form, whose fields are text."""


class ImageSource(StrictModel):
    b64: str = Field(
        description="The image's bytes in base64; a data: URL is taken too.",
        json_schema_extra={"contentEncoding": "base64"},
    )


class Photo(StrictModel):
    """One photo: its bytes or, if the service allows it, its address."""

    b64: str | None = Field(
        None,
        description="The image's bytes in base64; a data: URL is taken too.",
        json_schema_extra={"contentEncoding": "base64"},
    )
    url: str | None = Field(
        None,
        min_length=1,
        max_length=2000,
        description="The image's https address, at a host that the service is set up to ask.",
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Photo:
        if (self.b64 is None) == (self.url is None):
            raise PydanticCustomError("image", "an image has b64 or url, one of them")
        return self


Edge = Annotated[float, Field(allow_inf_nan=False, ge=-1e6, le=1e6)]


# JSON has no tuples, and pydantic in strict mode refuses a list in place of a tuple.
Edges = Annotated[
    tuple[Edge, Edge, Edge, Edge],
    BeforeValidator(lambda sent: tuple(sent) if isinstance(sent, list) else sent),
]


class NamedClass(StrictModel):
    """A class, named by its index or by its label where a number could mean either."""

    index: ClassIndex | None = Field(None, description="Index in the model's output, from 0.")
    label: Name | None = Field(None, description="One of the model's labels, even if a number.")

    @model_validator(mode="after")
    def _one_of_them(self) -> NamedClass:
        if (self.index is None) == (self.label is None):
            raise PydanticCustomError("target", "a class has index or label, one of them")
        return self


class TargetObject(StrictModel):
    """A target other than the score of a class: a class with a contrast, a box or a mask, a unit of
    a layer, or the similarity to another image."""

    class_: ClassIndex | Name | NamedClass | None = Field(
        None, alias="class", description="Index or label; without it the predicted class."
    )
    index: ClassIndex | None = Field(
        None, description="Instead of `class`: its index, also if labels are numbers."
    )
    label: Name | None = Field(
        None, description="Instead of `class`: its label, also if that is a number."
    )
    minus: ClassIndex | Name | NamedClass | None = Field(
        None,
        description="Class to contrast the target with: the map explains the target's score minus "
        "the score of this class.",
    )
    against: bool = Field(False, description="Explain the evidence against the target.")
    of: TargetScore = Field(
        "logit", description="With `probability`, evidence for the competing classes counts, too."
    )
    box: Edges | None = Field(
        None,
        description=(
            "Left, top, right, bottom in the photo's pixels. A detector explains the detection "
            "that overlaps the box; a segmenter sums over the pixels in the box."
        ),
    )
    mask: ImageSource | None = Field(
        None,
        description="For a segmenter: a picture of the photo's size, white where pixels count.",
    )
    layer: Name | None = Field(
        None, description="With `channel` or `like`: the layer whose output is used."
    )
    channel: ClassIndex | None = Field(
        None, description="What drives this channel of `layer`: its mean is explained."
    )
    like: ImageSource | None = Field(
        None,
        description=(
            "What makes the photo similar to this one: the cosine of their embeddings at `layer` "
            "(without it, the model's default layer) is explained."
        ),
    )

    text: Text | None = Field(
        None,
        description=(
            "For a model that takes prompts: what in the photo fits this text. The logit of the "
            "text is explained. With `minus`, another text: what fits this text better than that."
        ),
    )

    words: bool = Field(
        False, description="With `text`: also give the importance of each of its words."
    )

    @model_validator(mode="after")
    def _one_kind(self) -> TargetObject:
        if self.text is not None and self._given - {"text", "minus", "against", "words"}:
            raise PydanticCustomError(
                "target", "a target with text allows no other keys than minus, against and words"
            )
        if self.words and self.text is None:
            raise PydanticCustomError("target", "words belongs to a target with text")
        if self.text is not None and not isinstance(self.minus, str | None):
            raise PydanticCustomError("target", "minus of a target with text is a text, too")
        of_class = {"class", "index", "label", "minus", "of", "box", "mask"} & self._given
        if len({"class", "index", "label"} & self._given) > 1:
            raise PydanticCustomError("target", "a target has class, index or label, one of them")
        if self.channel is not None and (self.layer is None or self.like or of_class):
            raise PydanticCustomError(
                "target", "a target with channel needs layer, and allows no other key than against"
            )
        if self.like is not None and of_class:
            raise PydanticCustomError(
                "target", "a target with like allows no other keys than layer and against"
            )
        if self.layer is not None and self.channel is None and self.like is None:
            raise PydanticCustomError("target", "a target with a layer needs a channel, or like")
        if self.box is not None and self.mask is not None:
            raise PydanticCustomError("target", "a target has a box or a mask, not both")
        if self.box is not None and not (self.box[0] < self.box[2] and self.box[1] < self.box[3]):
            raise PydanticCustomError(
                "target", "a box is left, top, right, bottom, with left < right and top < bottom"
            )
        return self

    @property
    def which(self) -> ClassIndex | Name | NamedClass | None:
        """The class, however it was named."""
        if self.index is None and self.label is None:
            return self.class_
        return NamedClass(index=self.index, label=self.label)

    @property
    def _given(self) -> set[str]:
        return {name.rstrip("_") for name in self.model_fields_set}


OneTarget = ClassIndex | Name | TargetObject
TargetParameter = OneTarget | Annotated[list[OneTarget], Field(min_length=1, max_length=MAX_MAPS)]


def object_in_text(target: Any) -> Any:
    """Parse a target's object that is sent as JSON text, in a query, a form field or on the command
    line."""
    if isinstance(target, list):
        return [object_in_text(value) for value in target]
    if isinstance(target, str) and target.lstrip().startswith("{"):
        try:
            return from_json(target)  # Python's json accepts lone surrogates
        except ValueError:
            sentence = "it should be a JSON object if it starts with a brace"
            raise PydanticCustomError("target", sentence) from None
    if isinstance(target, str) and len(target) > MAX_NAME:  # a text of digits could be an index
        raise PydanticCustomError("target", "it should have at most 200 characters")
    return target


class RegionObject(StrictModel):
    """The part of a photo where the heat should be."""

    box: Edges | None = Field(
        None, description="Left, top, right and bottom edges in the photo's pixels."
    )
    mask: ImageSource | None = Field(
        None, description="A picture of the photo's size that is white inside the region."
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> RegionObject:
        if (self.box is None) == (self.mask is None):
            raise PydanticCustomError("region", "a region has box or mask, one of them")
        if self.box is not None and not (self.box[0] < self.box[2] and self.box[1] < self.box[3]):
            raise PydanticCustomError(
                "region", "a box is left, top, right, bottom, with left < right and top < bottom"
            )
        return self


def parsed(sent: Any) -> Any:
    """Parse an object that is sent as JSON text, in a query or a form field."""
    if isinstance(sent, str) and sent.lstrip().startswith("{"):
        try:
            return from_json(sent)
        except ValueError:
            raise PydanticCustomError("region", "it should be a JSON object") from None
    return sent
