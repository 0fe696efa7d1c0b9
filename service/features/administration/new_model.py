"""The models that the administration loads while the service runs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from service.core.choices import Weights
from service.models.catalog import AnyEntry, Device

LayerName = Annotated[str, Field(max_length=200)]
ReshapeWords = Annotated[str, Field(max_length=100)]


class NewModel(AnyEntry):
    """A model to load: an entry as in models.toml, without what would name a file."""

    source: str
    weights: Weights = "default"
    labels: Literal["imagenet"] | None = None
    layer: str = Field("auto", max_length=200)
    reshape: ReshapeWords | dict[LayerName, ReshapeWords] = Field(
        default_factory=dict, max_length=100
    )
    device: Device = "auto"
