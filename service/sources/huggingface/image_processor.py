"""The image processor of a Hugging Face model, as the service's preprocessing.

The settings of an image processor say what it does only together with the code of its class. So
what it does to values is measured on photos of one colour, and what it does to sizes follows from
its settings and is compared with what it makes of photos of several shapes. A processor that
differs is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.Image import Resampling
from torch import device

from cam.drawing.samples import samples
from service.core.choices import ChannelOrder
from service.core.errors import ConfigError, typed_line
from service.loading.transforms import CROP_FITS, Normalisation, preprocessing_of
from service.models.catalog import ModelEntry
from service.models.preprocessing import Fit, Preprocessing

SIZES: Final = ((240, 320), (310, 200), (97, 151))
"""Heights and widths of the photos: one is wide, one is high, and one is smaller than most inputs;
their remainders beside a crop are odd and even."""
COLOUR: Final = (200, 100, 50)
LEVELS: Final = 3.0
"""Largest difference, in gray levels of 256. Two resizers may round a value differently, in each of
their two passes."""
MEAN_LEVELS: Final = 0.5
REMEDY: Final = "set input_size, mean and std in the entry, which replace the image processor"
TOLD: Final = ("size", "crop_size", "pad_size", "crop_pct", "image_mean", "image_std", "resample")
LEVIT_RATIO: Final = 256 / 224
"""Ratio of the resized photo to the crop in LevitImageProcessor, which no setting says."""


@dataclass(frozen=True)
class ProcessorSettings:
    """What an image processor states, in terms of the service."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    """Both in the value range 0 … 1."""
    interpolation: str
    reversed: bool
    floored: bool
    """See `Preprocessing`."""
    ways: Sequence[tuple[Fit, float]]
    """The ways in which such settings may be meant: the fit, and the pixels of the resized shorter
    side; 0 for those of the input."""


def preprocessing_of_processor(entry: ModelEntry, processor: Any) -> Preprocessing:
    """Return the preprocessing of an image processor, overridden by the entry.

    Raises:
        ConfigError: if the preprocessing does not represent it; the message names the settings.
    """
    stated = _stated(entry, processor)
    if stated.reversed and entry.channel_order == "rgb":
        entry = entry.model_copy(update={"channel_order": "bgr"})
    # Without black and white, no resizer clips values between its passes, whose order differs.
    drawn = [samples(1, *size, seed=size[0])[0] // 2 + 64 for size in SIZES]
    photos = [Image.fromarray(pixels.astype(np.uint8)) for pixels in drawn]
    made = [_made(entry, processor, photo) for photo in photos]
    sizes = {tensor.shape[1:] for tensor in made}
    if len(sizes) > 1:
        if not (sides := entry.input_sides):
            raise _refusal(
                entry,
                processor,
                "makes inputs of different sizes from photos of different shapes, and the service "
                "needs one size",
                "set input_size in the entry, into which photos are fitted with a border",
            )
        return _overridden(entry, stated, sides, min(sides), "pad")
    ((height, width),) = sizes
    order: ChannelOrder = "bgr" if stated.reversed else "rgb"
    bare = ModelEntry(name=entry.name, source=entry.source, channel_order=order)
    for fit, shorter in stated.ways:
        side = int(shorter) or min(height, width)
        if side < min(height, width):
            continue
        guess = _overridden(bare, stated, (height, width), side, fit)
        if all(_agree(guess, photo, tensor) for photo, tensor in zip(photos, made, strict=True)):
            return _overridden(entry, stated, (height, width), side, fit)
    raise _refusal(entry, processor, f"makes {height} × {width} pixels that no fit represents")


def _stated(entry: ModelEntry, processor: Any) -> ProcessorSettings:
    """Return what a processor does to values, as measured, and to sizes, as its settings say."""
    black, white, red, mixed = (
        _middle(_made(entry, processor, Image.new("RGB", (400, 400), colour)))
        for colour in ((0, 0, 0), (255, 255, 255), (255, 0, 0), COLOUR)
    )
    span = white - black
    flipped = bool(abs(red[2] - black[2]) > abs(red[0] - black[0]))
    expected = black + span * np.array(COLOUR[:: -1 if flipped else 1]) / 255
    if not (span > 0).all() or not np.allclose(mixed, expected, atol=1e-4 * span.max()):
        raise _refusal(
            entry, processor, f"makes {mixed.tolist()} of the colour {COLOUR}, no scaled colour"
        )
    if flipped:
        black, span = black[::-1], span[::-1]
    setting = _settings(processor)
    data = getattr(processor, "data_config", None)
    if data is not None:  # timm's configuration, in a TimmWrapperImageProcessor
        side = math.floor(min(data["input_size"][1:]) / data["crop_pct"])
        ways: Sequence[tuple[Fit, float]] = ((CROP_FITS.get(data["crop_mode"], "crop"), side),)
        interpolation = data["interpolation"]
    else:
        ways = tuple(_ways(setting))
        resample = setting.get("resample", Resampling.BILINEAR)
        known = isinstance(resample, int)  # else it is a mode of torchvision
        interpolation = Resampling(resample).name.lower() if known else str(resample.value)
    if interpolation.upper() not in Resampling.__members__:
        raise _refusal(entry, processor, f"resizes by {interpolation!r}")
    return ProcessorSettings(
        _three(-black / span),
        _three(1 / span),
        interpolation,
        reversed=flipped,
        floored=data is None,
        ways=ways,
    )


def _middle(made: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the channels of the pixel in the middle (3,)."""
    return made[:, made.shape[1] // 2, made.shape[2] // 2].astype(np.float64)


def _three(channels: NDArray[np.float64]) -> tuple[float, float, float]:
    red, green, blue = channels.round(6).tolist()
    return red, green, blue


def _ways(setting: dict[str, Any]) -> Iterator[tuple[Fit, float]]:
    """Yield the ways in which the settings of sizes may be meant."""
    size: dict[str, int] = setting.get("size") or {}
    shorter = size.get("shortest_edge")
    if shorter is None:
        yield "squash", size.get("height", 0) if setting.get("do_center_crop") else 0
        return
    yield "crop", shorter
    if ratio := setting.get("crop_pct"):
        yield "crop", shorter / ratio
        yield "squash", 0  # ConvNextImageProcessor, from 384 pixels on
    yield "crop", shorter * LEVIT_RATIO


def _settings(processor: Any) -> dict[str, Any]:
    """Return the settings of a processor, without those that are None."""
    setting = {name: value for name, value in vars(processor).items() if value is not None}
    for name in ("size", "crop_size", "pad_size"):
        if name in setting:
            pairs = dict(setting[name]).items()
            setting[name] = {side: value for side, value in pairs if value is not None}
    return setting


def _overridden(
    entry: ModelEntry, stated: ProcessorSettings, size: tuple[int, int], shorter_side: int, fit: Fit
) -> Preprocessing:
    preprocessing = preprocessing_of(
        entry,
        size=size,
        shorter_side=shorter_side,
        mean=stated.mean,
        std=stated.std,
        interpolation=stated.interpolation,
        crop_fit=fit,
    )
    return replace(preprocessing, floored=stated.floored)


def _made(entry: ModelEntry, processor: Any, photo: Image.Image) -> NDArray[np.float32]:
    """Return what a processor makes of a photo, float32 (3, H, W)."""
    try:
        made = np.asarray(processor(photo, return_tensors="pt")["pixel_values"])
    except Exception as error:  # a processor may raise anything
        reason = typed_line(error)
        raise _refusal(entry, processor, f"fails on a photo alone: {reason}") from error
    if made.ndim != 4 or made.shape[:2] != (1, 3):
        raise _refusal(entry, processor, f"makes pixel_values of shape {made.shape} of one photo")
    values: NDArray[np.float32] = made[0]
    return values


def _agree(preprocessing: Preprocessing, photo: Image.Image, made: NDArray[np.float32]) -> bool:
    levels = _levels(preprocessing, preprocessing.apply(photo, "crop").pixels, made)
    return bool(levels.max() <= LEVELS and levels.mean() <= MEAN_LEVELS)


def _levels(
    preprocessing: Preprocessing, pixels: NDArray[np.uint8], made: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the differences of pixels (H, W, 3), normalised, from (3, H, W), in gray levels of
    256."""
    ours = Normalisation(preprocessing, device("cpu"))(pixels[None].copy())[0].numpy()
    std = preprocessing.std[::-1] if preprocessing.reversed else preprocessing.std
    apart: NDArray[np.float32] = np.abs(ours - made) * np.reshape(255 * np.array(std), (3, 1, 1))
    return apart


def _refusal(entry: ModelEntry, processor: Any, sentence: str, remedy: str = REMEDY) -> ConfigError:
    told = {
        name: value
        for name, value in _settings(processor).items()
        if name in TOLD or (name.startswith("do_") and value is True)
    }
    settings = ", ".join(f"{name} {value}" for name, value in told.items()) or "no settings"
    return entry.mistake(
        "source",
        f"the image processor {type(processor).__name__} {sentence}; it has {settings}; {remedy}",
    )
