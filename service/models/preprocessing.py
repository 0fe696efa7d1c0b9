"""Preprocessing of photos: resizing and cropping them to the model's input."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cam.drawing.placement import Box

Fit = Literal["crop", "squash", "pad"]
WantedFit = Literal["auto", Fit]


@dataclass(frozen=True)
class ModelInput:
    """The part of one photo that a model sees."""

    pixels: NDArray[np.uint8]
    """RGB pixels (H, W, 3), resized and cropped but not normalised: the engine normalises them on
    its device."""
    box: Box
    """Position of the edges of `pixels` on the photo, in the photo's pixels. Padding lies outside
    the photo."""
    digest: bytes
    """Digest of `pixels`: equal for photos that look the same to the model."""
    fit: Fit = "crop"
    """How the photo was fitted to the model's input."""

    @staticmethod
    def of(pixels: NDArray[np.uint8], box: Box | None = None, fit: Fit = "crop") -> ModelInput:
        """Return pixels with their digest; without a box, they are the whole photo."""
        digest = hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=16).digest()
        whole = Box(0, 0, pixels.shape[1], pixels.shape[0])
        return ModelInput(pixels, box or whole, digest, fit)


@dataclass(frozen=True)
class Preprocessing:
    """A model's evaluation preprocessing: resize, then crop the centre, then normalise.

    Pillow resamples with antialiasing, as in the training and evaluation of the weights; OpenCV's
    bicubic filter skips pixels when it shrinks an image.
    """

    height: int
    width: int
    shorter_side: int
    """Size in pixels to which the photo's shorter side is resized before the centre is cropped, for
    a square input. For other inputs it belongs to the input's shorter side, and the longer side is
    scaled in proportion."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    resampling: Image.Resampling
    crop_fit: Fit = "crop"
    """What the fit `crop` means for this model: a few models were evaluated with squashed or padded
    photos. If `shorter_side` is greater than the input's shorter side, a squashed photo is larger
    than the input in that proportion, and its centre is cropped."""
    floored: bool = False
    """Whether the offset of the crop is rounded down, as transformers does; torchvision and timm
    round it to the nearest even number."""
    reversed: bool = False
    """Whether the model takes the channels in the order blue, green, red. `mean` and `std` are
    always in the order red, green, blue."""
    byte_range: bool = False
    """Whether pixels are in 0 … 255 before they are normalised, not in 0 … 1."""
    default_fit: Fit = field(default="squash", repr=False)
    """What `auto` means for this model. It is not in the representation, and so not in the model's
    fingerprint: what is stored names the fit itself."""

    @property
    def blank(self) -> tuple[int, int, int]:
        """The pixel that is nearest to 0 after preprocessing: the mean colour, red, green, blue."""
        most = 255 if self.byte_range else 1
        red, green, blue = (round(255 * min(max(mean / most, 0), 1)) for mean in self.mean)
        return red, green, blue

    def resolved(self, fit: WantedFit) -> Fit:
        """Return a fit as it is, and what `auto` means for this model."""
        return self.default_fit if fit == "auto" else fit

    def apply(self, photo: Image.Image, wanted: WantedFit) -> ModelInput:
        """Resize and crop an RGB photo.

        `crop` is the model's own evaluation preprocessing; `squash` resizes the whole photo to
        the input's shape; `pad` fits the whole photo in and fills the rest with the mean colour;
        `auto` is one of them, `default_fit`.
        """
        fit = self.resolved(wanted)
        meant = self.crop_fit if fit == "crop" else fit
        if fit == "squash":
            box = Box(0, 0, photo.width, photo.height)
        elif meant == "pad":
            box = self._padded(photo.width, photo.height)
        else:
            box = self._cropped(photo.width, photo.height, squashed=meant == "squash")
        return ModelInput.of(self._pixels(photo, box), box, fit)

    def _cropped(self, width: int, height: int, *, squashed: bool) -> Box:
        """Return the box of the centre crop. Sizes are rounded as in torchvision's Resize and
        CenterCrop; for inputs that are not square, as in timm's ResizeKeepRatio."""
        unit = self.shorter_side / min(self.width, self.height)
        if squashed:
            resized_width, resized_height = (
                int(side * unit + 1e-6) for side in (self.width, self.height)
            )
        else:
            scale = max(round(self.width * unit) / width, round(self.height * unit) / height)
            whole = int if self.width == self.height else round
            # The addition keeps a side that should be a whole number from being rounded down.
            resized_width = whole(width * scale + 1e-6)
            resized_height = whole(height * scale + 1e-6)
        offset = math.floor if self.floored else round
        left = offset((resized_width - self.width) / 2)
        top = offset((resized_height - self.height) / 2)
        x, y = width / resized_width, height / resized_height
        return Box(left * x, top * y, (left + self.width) * x, (top + self.height) * y)

    def _padded(self, width: int, height: int) -> Box:
        scale = min(self.width / width, self.height / height)
        inner_width = max(round(width * scale), 1)
        inner_height = max(round(height * scale), 1)
        left, top = (self.width - inner_width) // 2, (self.height - inner_height) // 2
        x, y = width / inner_width, height / inner_height
        return Box(-left * x, -top * y, (self.width - left) * x, (self.height - top) * y)

    def _pixels(self, photo: Image.Image, box: Box) -> NDArray[np.uint8]:
        left, top = max(box.left, 0), max(box.top, 0)
        right, bottom = min(box.right, photo.width), min(box.bottom, photo.height)
        x = self.width / (box.right - box.left)
        y = self.height / (box.bottom - box.top)
        inner = (max(round((right - left) * x), 1), max(round((bottom - top) * y), 1))
        # Resizing with a box gives the pixels of "resize, then crop" without the large image in
        # between, so a strip of 1 × 10,000 pixels costs no more than any other photo.
        resized = photo.resize(inner, self.resampling, box=(left, top, right, bottom))
        if inner == (self.width, self.height):
            return np.asarray(resized)
        canvas = Image.new("RGB", (self.width, self.height), self.blank)
        canvas.paste(resized, (round((left - box.left) * x), round((top - box.top) * y)))
        return np.asarray(canvas)
