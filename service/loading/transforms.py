"""The preprocessing of a model's photos, as its source and its entry set it, and its last step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Resampling
from pydantic import ValidationError
from torch import Tensor

from service.core.pydantic_errors import mistake
from service.models.catalog import ModelEntry
from service.models.preprocessing import Fit, Preprocessing

IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
IMAGENET_STD: Final = (0.229, 0.224, 0.225)
PREPROCESSING = (
    "input_size", "fit", "resize", "crop_ratio", "interpolation", "channel_order", "value_range",
    "mean", "std",
)  # fmt: skip
"""Keys of an entry that a factory may state for its model."""
CROP_FITS: Final[dict[str, Fit]] = {"center": "crop", "squash": "squash", "border": "pad"}
"""Crop mode of timm → fit."""


def preprocessing_of(
    entry: ModelEntry,
    *,
    size: tuple[int, int],
    shorter_side: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    interpolation: str,
    crop_fit: Fit = "crop",
) -> Preprocessing:
    """Return the source's preprocessing, overridden by the settings of the entry.

    The default fit is the entry's; `crop` where the entry says how photos are cropped, as its owner
    evaluated the model so; the source's where that shows the whole photo; else `squash`. It is
    never `pad` by itself: the border is a cue that the training did not have.

    Raises:
        ConfigError: if the resized photo would be smaller than the input.
    """
    height, width = size
    if sides := entry.input_sides:
        ratio = shorter_side / min(size)
        height, width = sides
        shorter_side = math.floor(min(height, width) * ratio)
    if entry.crop_ratio is not None:
        shorter_side = math.floor(min(height, width) / entry.crop_ratio)
    if entry.resize is not None:
        shorter_side = entry.resize
    if shorter_side < min(height, width):
        raise entry.mistake(
            "resize",
            f"a photo whose shorter side is resized to {shorter_side} pixels cannot be cropped to "
            f"{height} × {width}; it should be {min(height, width)} or more",
        )
    shown_whole = crop_fit != "crop" and shorter_side == min(height, width)
    evaluated = entry.resize is not None or entry.crop_ratio is not None
    red, green, blue = entry.mean or mean
    red_std, green_std, blue_std = entry.std or std
    return Preprocessing(
        height=height,
        width=width,
        shorter_side=shorter_side,
        mean=(red, green, blue),
        std=(red_std, green_std, blue_std),
        resampling=Resampling[(entry.interpolation or interpolation).upper()],
        crop_fit=crop_fit,
        reversed=entry.channel_order == "bgr",
        byte_range=entry.value_range == "0-255",
        default_fit=entry.fit or ("crop" if evaluated else crop_fit if shown_whole else "squash"),
    )


def with_stated(entry: ModelEntry, what: str, stated: Mapping[str, Any]) -> ModelEntry:
    """Return the entry, completed with the preprocessing that its factory states. Settings of the
    entry itself take precedence.

    Raises:
        ConfigError: if the factory states an unknown key or an invalid value.
    """
    unknown = [str(key) for key in stated if key not in PREPROCESSING]
    if unknown:
        raise entry.mistake(
            "source",
            f"{what} states {', '.join(unknown)} beside its module; what it may state is "
            f"{', '.join(PREPROCESSING)}",
        )
    try:
        read = ModelEntry.model_validate({"name": entry.name, "source": entry.source, **stated})
    except ValidationError as error:
        first = error.errors()[0]
        raise entry.mistake(
            "source", f"{what} states {first['loc'][0]}: {mistake(first)}"
        ) from None
    defaults = {key: field.default for key, field in ModelEntry.model_fields.items()}
    blank = [key for key in stated if getattr(entry, key) == defaults[key]]
    return entry.model_copy(update={key: getattr(read, key) for key in blank})


class Normalisation:
    """Normalises pixels on the model's device. Copying uint8 pixels to the device takes a quarter
    of the bytes of a float32 input.

    Args:
        device: the device that holds the mean and the standard deviation.
    """

    def __init__(self, preprocessing: Preprocessing, device: torch.device) -> None:
        most = 1 if preprocessing.byte_range else 255
        scale = [1 / (most * std) for std in preprocessing.std]
        pairs = zip(preprocessing.mean, preprocessing.std, strict=True)
        shift = [-mean / std for mean, std in pairs]
        self._reversed = preprocessing.reversed
        self._device = device
        self._scale = torch.tensor(scale, device=device).view(3, 1, 1)
        self._shift = torch.tensor(shift, device=device).view(3, 1, 1)

    def __call__(self, pixels: NDArray[np.uint8]) -> Tensor:
        """Normalise a batch in one fused step.

        Args:
            pixels: RGB (N, H, W, 3), all of one size.

        Returns:
            float32 (N, 3, H, W) on the device: (pixels / 255 − mean) / std, without the division
            by 255 for a model that takes 0 … 255. The memory layout is channels-last.
        """
        planes = torch.from_numpy(pixels).to(self._device).permute(0, 3, 1, 2)
        normalised = torch.addcmul(self._shift, planes, self._scale)
        return normalised.flip(1) if self._reversed else normalised
