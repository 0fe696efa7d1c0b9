"""A map of an image as one row of a table."""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from cam import Explanation
from cam.heatmap import concentration
from service.descriptions import caption_of, describe_target
from service.errors import Problem
from service.explainer import Explained
from service.registry import ServedModel
from service.rendering import Drawing

SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("number", pa.int32(), nullable=False),
        pa.field("asked", pa.string()),
        pa.field("index", pa.int32()),
        pa.field("label", pa.string()),
        pa.field("probability", pa.float32()),
        pa.field("score", pa.float32()),
        pa.field("method", pa.string()),
        pa.field("layer", pa.string()),
        pa.field("peak_x", pa.int32()),
        pa.field("peak_y", pa.int32()),
        pa.field("mass", pa.float32()),
        pa.field("concentration", pa.float32()),
        pa.field("width", pa.int32()),
        pa.field("height", pa.int32()),
        pa.field("picture", pa.string()),
        pa.field("map", pa.binary()),
        pa.field("map_height", pa.int32()),
        pa.field("map_width", pa.int32()),
        pa.field("warning", pa.string()),
        pa.field("error", pa.string()),
        pa.field("problem", pa.string()),
    ]
)
PICTURES: Final = "pictures"
LONGEST_NAME: Final = 200
"""Bytes of a folder's or a picture's name, before what is appended to it; 255 are allowed."""
LONGEST_PATH: Final = 1000


@dataclass(frozen=True, kw_only=True)
class Row:
    """One map of one image, or, with `error`, an image that has none."""

    id: str
    number: int = 0
    """Which of the image's maps."""
    asked: str | None = None
    """The target that a table named for this image, as it did."""
    index: int | None = None
    label: str | None = None
    """Of what is explained, in words."""
    probability: float | None = None
    score: float | None = None
    method: str | None = None
    layer: str | None = None
    peak_x: int | None = None
    """In the photo's pixels, as are `peak_y`, `width`, `height`; in those of another size where
    `size` asks for one."""
    peak_y: int | None = None
    mass: float | None = None
    """The mean of the scaled map over what the model saw, 0 … 1; of a signed map −1 … 1."""
    concentration: float | None = None
    """The share of the heat that the hottest tenth of the map holds: 0.1 … 1."""
    width: int | None = None
    height: int | None = None
    picture: str | None = None
    """Path below the output folder."""
    map: bytes | None = None
    """float32, little-endian, (map_height, map_width): the method's own numbers at the layer."""
    map_height: int | None = None
    map_width: int | None = None
    warning: str | None = None
    error: str | None = None
    """Why there is no map."""
    problem: str | None = None
    """What kind of error: urn:gradcam-service:…"""


def row_of(
    name: str,
    number: int,
    explained: Explained,
    explanation: Explanation,
    drawing: Drawing,
    model: ServedModel,
    picture: str | None,
) -> Row:
    """The row of one map.

    Args:
        name: the image's id.
        drawing: on the photo's pixels.
        picture: where it was written, below the output folder.
    """
    target = describe_target(explanation, model.labels, explained.seen)
    inside = drawing.scaled[drawing.region.slices]
    warning = _warning(drawing, explanation)
    even = explanation.map.max() == explanation.map.min()
    cold = drawing.scaled.max() <= 0
    peak_y, peak_x = np.unravel_index(int(drawing.scaled.argmax()), drawing.scaled.shape)
    height, width = drawing.values.shape
    return Row(
        id=name,
        number=number,
        index=target.index,
        label=caption_of(explanation, target, model).title,
        probability=target.probability,
        score=target.score,
        method=explanation.method,
        layer=explanation.layer,
        peak_x=None if cold else int(peak_x),
        peak_y=None if cold else int(peak_y),
        mass=float(inside.mean()),
        concentration=None if warning and even else concentration(explanation.map),
        width=width,
        height=height,
        picture=picture,
        map=explanation.map.astype("<f4").tobytes(),
        map_height=explanation.map.shape[0],
        map_width=explanation.map.shape[1],
        warning=warning,
    )


def _warning(drawing: Drawing, explanation: Explanation) -> str | None:
    if drawing.scaled.any():
        return None
    if explanation.map.max() > explanation.map.min():
        return "the model saw too few pixels to show the map on them"
    return f"the map is {'the same' if explanation.map.any() else 'zero'} everywhere"


def failed_row(name: str, problem: Problem, asked: str | None) -> Row:
    """The row of an image that has no map."""
    return Row(id=name, asked=asked, error=problem.detail, problem=problem.type())


def table_of(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist([asdict(row) for row in rows], schema=SCHEMA)


def picture_path(name: str, number: int, extension: str) -> str:
    """Where the picture of a map goes, below the output folder: always below it, whatever the
    image is called. Different ids and numbers have different paths, and none of them is a folder
    of another's."""
    parts = [part for part in re.split(r"[/\\]", name) if part not in ("", ".")]
    *folders, last = [_safe(part) for part in parts] or ["_"]
    path = last
    for folder in reversed(folders):
        longer = f"{folder}{'_' if folder.endswith(extension) else ''}/{path}"
        if len(longer.encode()) > LONGEST_PATH:
            break
        path = longer
    # Two names must not become one, nor a name one with a number, or with what is appended here.
    if path != name or re.search(r"\.(\d+|[0-9a-f]{12})$", path):
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=6)
        path += f".{digest.hexdigest()}"
    return f"{PICTURES}/{path}{f'.{number}' if number else ''}{extension}"


def _safe(part: str) -> str:
    """One component of a path, harmless in every file system."""
    cleaned = re.sub(r'[\x00-\x1f<>:"|?*\x7f\ud800-\udfff]', "_", part)
    cut = cleaned.encode()[:LONGEST_NAME].decode(errors="ignore")
    return cut.rstrip(". ") or "_" * min(len(cut), 9)
