"""A small map becomes numbers and pictures on the photo's pixels."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from io import BytesIO

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cam import Explanation
from cam.heatmap import Box, Region, minmax, place
from cam.overlay import Float, Picture, colorize, grayscale, overlay
from service import schemas
from service.errors import NotAcceptable
from service.labels import Labels
from service.parameters import Parameters
from service.preprocessing import ModelInput

EXTENSIONS = {"image/png": ".png", "image/jpeg": ".jpg", "image/webp": ".webp"}
QUALITY = {
    ".jpg": [cv2.IMWRITE_JPEG_QUALITY, 90],
    ".webp": [cv2.IMWRITE_WEBP_QUALITY, 90],
    ".png": [],
}
UNSEEN_GRAY = 128


@dataclass(frozen=True, eq=False)
class Drawing:
    """One map on the pixels that were asked for."""

    values: Float
    """float32 (H, W): the method's own numbers, 0 outside `region`."""
    scaled: Float
    """The same, min-max scaled to 0 … 1 within `region`."""
    region: Region
    background: Picture
    """RGB uint8 (H, W, 3)."""

    def picture(self, kind: str, colormap: str, opacity: float) -> Picture:
        """RGB (H, W, 3), or grayscale (H, W) where `kind` is "mask". What the model did not see
        keeps the photo's own colours in an overlay, and is gray in a heatmap."""
        if kind == "mask":
            return grayscale(self.scaled)
        seen = self.region.slices
        if kind == "overlay":
            drawn = self.background.copy()
            drawn[seen] = overlay(
                np.ascontiguousarray(self.background[seen]),
                self.scaled[seen],
                colormap=colormap,
                opacity=opacity,
            )
        else:
            drawn = np.full_like(self.background, UNSEEN_GRAY)
            drawn[seen] = colorize(self.scaled[seen], colormap)
        return drawn


def draw(photo: Image.Image, seen: ModelInput, explanation: Explanation, size: str) -> Drawing:
    """Put a map onto the pixels of `size`: the photo's, the model input's or its own."""
    if size == "image":
        background, box = np.asarray(photo), seen.box
    else:
        height, width = explanation.map.shape if size == "layer" else seen.view.shape[:2]
        background = seen.view
        if size == "layer":
            background = _shrunk(seen.view, height, width)
        box = Box(0, 0, width, height)
    height, width = background.shape[:2]
    values, region = place(explanation.map, box, height, width)
    return Drawing(values, minmax(values, region), region, background)


def encode(picture: Picture, media_type: str) -> bytes:
    """An RGB or grayscale picture as PNG, JPEG or WebP.

    Raises:
        NotAcceptable: if the format cannot hold a picture of that size.
    """
    extension = EXTENSIONS[media_type]
    blue_first = cv2.cvtColor(picture, cv2.COLOR_RGB2BGR) if picture.ndim == 3 else picture
    try:
        done, encoded = cv2.imencode(extension, blue_first, QUALITY[extension])
    except cv2.error:
        done = False
    if not done:
        height, width = picture.shape[:2]
        raise NotAcceptable(
            f"a picture of {width} × {height} pixels does not fit {media_type}; ask for image/png"
        )
    return encoded.tobytes()


def encode_values(values: Float) -> bytes:
    """A map as a NumPy .npy file: float32 (H, W)."""
    file = BytesIO()
    np.save(file, values)
    return file.getvalue()


def describe(
    drawing: Drawing,
    explanation: Explanation,
    labels: Labels,
    parameters: Parameters,
    *,
    instance: int,
    name: str | None,
) -> schemas.Explanation:
    """One explanation as JSON has it."""
    kind = parameters.output or "mask"
    height, width = drawing.values.shape
    raw = parameters.normalize == "none"
    if kind == "values" or raw:
        numbers = drawing.values if raw else drawing.scaled
        encoding, data = "float32", numbers.astype("<f4").tobytes()
    else:
        encoding, data = "png", encode(grayscale(drawing.scaled), "image/png")
    picture = None
    if kind in ("overlay", "heatmap"):
        drawn = drawing.picture(kind, parameters.colormap, parameters.opacity)
        picture = schemas.Overlay(
            content_type="image/png", data=_base64(encode(drawn, "image/png"))
        )
    target = target_of(labels, explanation)
    flat = not drawing.scaled.any()
    return schemas.Explanation(
        instance=instance,
        id=name,
        target=target,
        method=explanation.method,
        layer=explanation.layer,
        region=schemas.Region(
            left=drawing.region.left,
            top=drawing.region.top,
            width=drawing.region.width,
            height=drawing.region.height,
        ),
        heatmap=schemas.Heatmap(
            shape=(height, width),
            encoding="png" if encoding == "png" else "float32",
            data=_base64(data),
        ),
        overlay=picture,
        peak=None if flat else _peak(drawing.scaled),
        warnings=[_flat_warning(drawing, explanation, target)] if flat else [],
    )


def target_of(labels: Labels, explanation: Explanation) -> schemas.ExplainedTarget:
    """What a map explains, as JSON has it."""
    target = explanation.target
    index = target.index or 0  # filled in, where there is a map
    minus = target.minus
    return schemas.ExplainedTarget(
        index=index,
        label=labels.name(index),
        score=explanation.score,
        probability=explanation.probability,
        minus=None if minus is None else schemas.NamedClass(index=minus, label=labels.name(minus)),
        against=target.against or None,
        of="probability" if target.of == "probability" else None,
    )


def top_classes(
    logits: NDArray[np.float32], labels: Labels, count: int
) -> list[schemas.ScoredClass]:
    """The `count` best classes of one image's logits (C,), best first."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max())
    probabilities = exponentials / exponentials.sum()
    best = np.argsort(-logits, kind="stable")[:count]
    return [
        schemas.ScoredClass(
            index=int(index),
            label=labels.name(int(index)),
            score=float(logits[index]),
            probability=float(probabilities[index]),
        )
        for index in best
    ]


def _flat_warning(drawing: Drawing, explanation: Explanation, target: schemas.ScoredClass) -> str:
    if explanation.map.max() > explanation.map.min():
        return "the model saw too few of these pixels to show the map on them; try another size"
    what = "zero" if not drawing.values.any() else "the same"
    return (
        f"the map is {what} everywhere: {explanation.method} finds nothing at layer "
        f"{explanation.layer!r} that speaks for class {target.index}"
    )


def _peak(scaled: Float) -> schemas.Point:
    y, x = np.unravel_index(int(scaled.argmax()), scaled.shape)
    return schemas.Point(x=int(x), y=int(y))


def _shrunk(view: Picture, height: int, width: int) -> Picture:
    small = cv2.resize(view, (width, height), interpolation=cv2.INTER_AREA)
    return small.astype(np.uint8, copy=False)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
