"""What a notebook shows of an explanation: the map with its target, its method and a colour bar."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cam.drawing.heatmap import minmax, symmetric
from cam.drawing.overlay import USUAL, USUAL_SIGNED, Picture, colorize, overlay
from cam.drawing.panel import GAP, panel
from cam.drawing.placement import Float, resize

SIDE = 224
"""Length in pixels of the longer side of a map that is shown without a photo."""


@dataclass(frozen=True)
class InputPicture:
    """The input that a map covers, while whoever gave it keeps it: nothing here keeps it alive.

    A pickle and a deep copy of an explanation have none.
    """

    read: Callable[[], NDArray[np.float32] | None]
    """Returns the model's input, float (C, H, W), or None if it is gone."""

    def __reduce__(self) -> tuple[type[InputPicture], tuple[Callable[[], None]]]:
        return InputPicture, (_gone,)

    def picture(self) -> Picture | None:
        """Return the input as RGB uint8 (H, W, 3), scaled to its own minimum and maximum, because
        nothing says how it was normalised; None if it is gone or has no colours."""
        values = self.read()
        if values is None or values.shape[0] not in (1, 3):
            return None
        scaled = minmax(values.astype(np.float32)).transpose(1, 2, 0) * 255
        return np.broadcast_to(scaled, (*scaled.shape[:2], 3)).round().astype(np.uint8)


def _gone() -> None:
    """Return no input."""


def drawn(
    values: Float, photo: Picture | None, *, signed: bool, title: str, lines: Sequence[str]
) -> Picture:
    """Draw a map beside the photo that it covers, or alone if there is none, with a colour bar and
    words.

    Args:
        values: float32 (h, w), of any scale; below 0 only if signed.
        photo: RGB uint8 (H, W, 3).

    Returns:
        RGB uint8 (H', W', 3) on white.
    """
    colormap, ends = bar_of(signed=signed)
    shown = heated(values, photo, signed=signed)
    return panel(photo, shown, title=title, lines=lines, colormap=colormap, ends=ends)


def bar_of(*, signed: bool) -> tuple[str, tuple[str, str]]:
    """Return the colour map of maps for which none is chosen, and the captions of its colour
    bar."""
    return (USUAL_SIGNED, ("for", "against")) if signed else (USUAL, ("high", "low"))


def heated(values: Float, photo: Picture | None, *, signed: bool) -> Picture:
    """Draw a map over the photo that it covers, or alone if there is none: see `drawn`."""
    colormap, _ = bar_of(signed=signed)
    factor = SIDE / max(values.shape)
    alone = tuple(max(round(factor * side), 1) for side in values.shape)
    height, width = alone if photo is None else photo.shape[:2]
    large = resize(values, height, width)
    heat: Float = symmetric(large) * np.float32(0.5) + np.float32(0.5) if signed else minmax(large)
    return colorize(heat, colormap) if photo is None else overlay(photo, heat, colormap=colormap)


def below_each_other(pictures: Sequence[Picture]) -> Picture:
    """Return pictures below each other on white, at least one."""
    width = max(picture.shape[1] for picture in pictures)
    padded = [
        cv2.copyMakeBorder(
            picture,
            0,
            GAP,
            0,
            width - picture.shape[1],
            cv2.BORDER_CONSTANT,
            value=(255, 255, 255),
        )
        for picture in pictures
    ]
    return np.concatenate(padded).astype(np.uint8, copy=False)


def png(picture: Picture) -> bytes:
    """Encode an RGB picture as PNG."""
    file = BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()


def mime_bundle(picture: bytes, words: str) -> dict[str, str]:
    """Return what `_repr_mimebundle_` of Jupyter returns: words, and a PNG in base64."""
    return {"text/plain": words, "image/png": base64.b64encode(picture).decode()}
