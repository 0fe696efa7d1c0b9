"""Conversion of boxes and masks between the photo's and the model input's pixels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cam.drawing.placement import Box
from cam.targets import pixels_in
from service.core.errors import InvalidRegion, InvalidTarget, Problem
from service.models.preprocessing import ModelInput
from service.pipeline.images import picture_of
from service.pipeline.targets import RegionObject

Edges = tuple[float, float, float, float]


def box_on_input(box: Edges, photo: Image.Image, seen: ModelInput) -> Edges:
    """Convert a box from the photo's pixels to the input's pixels.

    Raises:
        InvalidTarget: if the box reaches outside the photo, or lies outside the part of it that the
            model sees.
    """
    left, top, right, bottom = box
    if left < 0 or top < 0 or right > photo.width or bottom > photo.height:
        raise InvalidTarget(
            f"the box {_plain(box)} reaches outside the photo, which has {photo.width} × "
            f"{photo.height} pixels"
        )
    if not (
        left < seen.box.right
        and right > seen.box.left
        and top < seen.box.bottom
        and bottom > seen.box.top
    ):
        raise InvalidTarget(
            f"the box {_plain(box)} lies where the model does not look; use fit=squash or fit=pad"
        )
    x, y = _scale(seen)
    return (
        (left - seen.box.left) * x,
        (top - seen.box.top) * y,
        (right - seen.box.left) * x,
        (bottom - seen.box.top) * y,
    )


def box_on_photo(box: Edges, seen: ModelInput) -> Box:
    """Convert a box from the input's pixels to the photo's pixels."""
    x, y = _scale(seen)
    left, top, right, bottom = box
    return Box(
        left / x + seen.box.left,
        top / y + seen.box.top,
        right / x + seen.box.left,
        bottom / y + seen.box.top,
    )


def mask_on_input(mask: Image.Image, photo: Image.Image, seen: ModelInput) -> NDArray[np.bool_]:
    """Convert a mask over the photo to a bool array (H, W) over the input, True where it is white.

    Raises:
        InvalidTarget: if the mask's size is not the photo's, or the model sees no white pixel.
    """
    if mask.size != photo.size:
        raise InvalidTarget(
            f"the mask has {mask.width} × {mask.height} pixels; it needs the photo's "
            f"{photo.width} × {photo.height}"
        )
    white = np.asarray(mask.convert("L")) > 127
    height, width = seen.pixels.shape[:2]
    x, y = _scale(seen)
    columns = np.floor((np.arange(width) + 0.5) / x + seen.box.left).astype(np.int64)
    rows = np.floor((np.arange(height) + 0.5) / y + seen.box.top).astype(np.int64)
    inside = ((rows >= 0) & (rows < photo.height))[:, None] & (
        (columns >= 0) & (columns < photo.width)
    )
    placed = white[rows.clip(0, photo.height - 1)][:, columns.clip(0, photo.width - 1)] & inside
    if not placed.any():
        raise InvalidTarget("the mask has no white pixel that the model sees")
    seen_: NDArray[np.bool_] = placed
    return seen_


def region_on_input(
    region: RegionObject, photo: Image.Image, seen: ModelInput, *, max_pixels: int
) -> NDArray[np.bool_]:
    """Return the pixels of the model's input that lie in a region of the photo, bool (H, W).

    Raises:
        InvalidRegion: if the region is not on the photo, or the model sees nothing of it.
    """
    try:
        if region.mask is not None:
            white = picture_of(region.mask.b64, "region's mask", max_pixels=max_pixels)
            return mask_on_input(white, photo, seen)
        assert region.box is not None
        inside = pixels_in(box_on_input(region.box, photo, seen), *seen.pixels.shape[:2])
    except Problem as problem:
        raise InvalidRegion(problem.detail) from None
    if not inside.any():
        raise InvalidRegion("the box has no pixel that the model sees")
    return inside


def _scale(seen: ModelInput) -> tuple[float, float]:
    height, width = seen.pixels.shape[:2]
    return (
        width / (seen.box.right - seen.box.left),
        height / (seen.box.bottom - seen.box.top),
    )


def _plain(box: Edges) -> str:
    return "(" + ", ".join(f"{edge:g}" for edge in box) + ")"
