"""The models that the administration loads while the service runs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.core.choices import (
    ChannelOrder,
    DetectionForm,
    Dtype,
    Fit,
    Interpolation,
    OutputKind,
    ValueRange,
    WantedActivation,
    WantedMode,
    WantedRuntime,
    Weights,
)
from service.models.catalog import Device, Index, Mean, Name, Prompts, Side, Std, Templates

LayerName = Annotated[str, Field(max_length=200)]
ReshapeWords = Annotated[str, Field(max_length=100)]


class NewModel(BaseModel):
    """A model to load: an entry as in models.toml, without what would name a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    source: str
    weights: Weights = "default"
    seed: int = 0
    labels: Literal["imagenet"] | None = None
    prompts: Prompts | None = None
    templates: Templates = ("{}",)
    output: Index | Name | None = None
    activation: WantedActivation = "auto"
    kind: OutputKind = "auto"
    layer: str = Field("auto", max_length=200)
    reshape: ReshapeWords | dict[LayerName, ReshapeWords] = Field(
        default_factory=dict, max_length=100
    )
    input_size: tuple[Side, Side] | Side | None = None
    fit: Fit | None = None
    resize: Side | None = None
    crop_ratio: float | None = Field(None, gt=0, le=1)
    interpolation: Interpolation | None = None
    channel_order: ChannelOrder = "rgb"
    value_range: ValueRange = "0-1"
    mean: tuple[Mean, Mean, Mean] | None = None
    std: tuple[Std, Std, Std] | None = None
    device: Device = "auto"
    dtype: Dtype = "float32"
    mode: WantedMode = "auto"
    runtime: WantedRuntime | None = None
    detections: DetectionForm = "auto"
    min_score: float | None = Field(None, ge=0, le=1)
    max_batch: int = 16
