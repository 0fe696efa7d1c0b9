"""Stability: how alike the maps of the same image mirrored, cropped and compressed are."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from cam.agreement import spearman
from cam.drawing.placement import Box, Region, place_inside
from cam.errors import CamError, MethodUnsuited
from cam.evaluation.metrics import CROP, JPEG_QUALITY
from cam.evaluation.scorer import Forwards, Judged, Scorer
from cam.explanation import Map
from cam.targets import ClassTarget, Target, mirrored

Parts = tuple[float | None, dict[str, float | None]]


def stability(scorer: Scorer, judged: Judged) -> Forwards[Parts]:
    """Return the mean Spearman correlation, −1 … 1, of the map with the maps of the changed images,
    brought back to the image.

    A view has no value if one of the maps is constant, or if the changed image does not show the
    target; the mean is over the views that have one. JPEG is left out if the image's pixels before
    preprocessing are not known.
    """
    if judged.again is None:
        raise MethodUnsuited("the map of another image cannot be made")
    height, width = scorer.size
    crop = crop_of(height, width)
    image = scorer.image
    part = image[(slice(None), *crop.slices)]
    views: list[tuple[str, Tensor, Target]] = [
        ("flip", image.flip(-1), mirrored(scorer.target, width)),
        (
            "crop",
            interpolate(part[None], size=(height, width), mode="bilinear")[0],
            cropped(scorer.target, crop, height, width),
        ),
    ]
    if scorer.pixels is not None and scorer.normalise is not None:
        compressed = scorer.normalise(compress(scorer.pixels)[None])[0]
        views.append(("jpeg", compressed.to(image), scorer.target))
    images = torch.stack([view for _, view, _ in views])
    maps = yield from judged.again(images, [target for _, _, target in views])
    parts: dict[str, float | None] = {}
    for (name, _, _), map_ in zip(views, maps, strict=True):
        parts[name] = None if isinstance(map_, CamError) else _alike(judged, name, map_, crop)
    known = [correlation for correlation in parts.values() if correlation is not None]
    return (float(np.mean(known)) if known else None), parts


def _alike(judged: Judged, view: str, map_: Map, crop: Region) -> float | None:
    if view == "flip":
        return spearman(judged.small, np.ascontiguousarray(map_[:, ::-1]))
    if view == "jpeg":
        return spearman(judged.small, map_)
    edges = Box(crop.left, crop.top, crop.left + crop.width, crop.top + crop.height)
    inside, _ = place_inside(map_, edges, *judged.values.shape)
    return spearman(np.ascontiguousarray(judged.values[crop.slices]), inside)


def compress(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the pixels, RGB (H, W, 3), after JPEG compression."""
    quality = [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]
    _, file = cv2.imencode(".jpg", np.ascontiguousarray(pixels[..., ::-1]), quality)
    back = cv2.imdecode(file, cv2.IMREAD_COLOR)
    assert back is not None  # it was encoded just now
    return np.ascontiguousarray(back[..., ::-1]).astype(np.uint8, copy=False)


def crop_of(height: int, width: int) -> Region:
    """Return the central part that the crop keeps."""
    rows, columns = (max(round(CROP * size), 1) for size in (height, width))
    return Region((width - columns) // 2, (height - rows) // 2, columns, rows)


def cropped(target: Target, crop: Region, height: int, width: int) -> Target:
    """Return the same target for the crop, enlarged to the height and width of the image."""
    if not isinstance(target, ClassTarget):
        return target
    box, mask = target.box, target.mask
    across, down = width / crop.width, height / crop.height
    if box is not None:
        left, top, right, bottom = box
        box = (
            (left - crop.left) * across,
            (top - crop.top) * down,
            (right - crop.left) * across,
            (bottom - crop.top) * down,
        )
    if mask is not None:  # of the segments' size
        y, x = (
            ((start + (np.arange(cells) + 0.5) * kept / cells) * cells / size).astype(int)
            for cells, start, kept, size in (
                (mask.shape[0], crop.top, crop.height, height),
                (mask.shape[1], crop.left, crop.width, width),
            )
        )
        mask = mask[y][:, x]
    return replace(target, box=box, mask=mask)
