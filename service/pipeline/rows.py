"""A map of an image as one row of a table."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from service.core.errors import Problem
from service.pipeline.json_records import title_of
from service.pipeline.record import MapRecord, agreement_mean

HALVES: Final = np.dtype("<f2")
"""Type of the numbers in the column `used`. A row may have more than a thousand of them, and
float32 would take twice the bytes."""
MOST_HALF: Final = float(np.finfo(np.float16).max)
DECODER: Final = "the decoder says: "
"""Before each of its warnings."""
PICTURES: Final = "pictures"
LONGEST_NAME: Final = 200
"""Maximum bytes of a folder's or a picture's name before a suffix is appended; file systems allow
255."""
LONGEST_PATH: Final = 1000


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the table: a map of an image, or, with `error`, an image without a map."""

    id: str
    number: int = 0
    asked: str | None = None
    predicted_index: int | None = None
    predicted_label: str | None = None
    predicted_probability: float | None = None
    correct: bool | None = None
    target: str | None = None
    target_index: int | None = None
    target_label: str | None = None
    target_probability: float | None = None
    target_score: float | None = None
    method: str | None = None
    layer: str | None = None
    reason: int | None = None
    peak_x: int | None = None
    peak_y: int | None = None
    mass: float | None = None
    concentration: float | None = None
    border: float | None = None
    mode: str | None = None
    agreement: list[tuple[str, float]] | None = None
    agreement_mean: float | None = None
    scores: list[tuple[str, float | None]] | None = None
    width: int | None = None
    height: int | None = None
    covers_left: float | None = None
    covers_top: float | None = None
    covers_right: float | None = None
    covers_bottom: float | None = None
    map: bytes | None = None
    map_encoding: str | None = None
    map_height: int | None = None
    map_width: int | None = None
    used: bytes | None = None
    picture: str | None = None
    overlay: bytes | None = None
    warning: str | None = None
    error: str | None = None
    problem: str | None = None


def row_of(
    record: MapRecord,
    item: str,
    *,
    picture: str | None = None,
    overlay: bytes | None = None,
    used: NDArray[np.float32] | None = None,
    more_warnings: Sequence[str] = (),
) -> Row:
    """Return the row of a map.

    Args:
        item: id of the map's image.
        picture: the path of the map's picture below the output folder, or None.
        overlay: the picture itself, or None.
        used: what the model used (`cam.Explanation.used`), float32 (K,), or None.
        more_warnings: warnings about the image, beside those about the map.
    """
    facts, predicted, covers = record.facts, record.predicted, record.covers
    target, peak = facts.target, facts.peak
    return Row(
        id=item,
        number=record.number,
        predicted_index=predicted.index if predicted else None,
        predicted_label=predicted.label if predicted else None,
        predicted_probability=predicted.probability if predicted else None,
        correct=facts.correct,
        target=title_of(target),
        target_index=target.index,
        target_label=target.label,
        target_probability=target.probability,
        target_score=target.score,
        method=facts.method,
        layer=facts.layer,
        reason=facts.reason,
        peak_x=peak.x if peak else None,
        peak_y=peak.y if peak else None,
        mass=facts.mass,
        concentration=facts.concentration,
        border=facts.border,
        mode=facts.mode,
        agreement=[*facts.agreement.items()] if facts.agreement else None,
        agreement_mean=agreement_mean(facts.agreement),
        scores=[(name, score.value) for name, score in (facts.scores or {}).items()] or None,
        width=record.picture_shape[1],
        height=record.picture_shape[0],
        covers_left=covers.left,
        covers_top=covers.top,
        covers_right=covers.right,
        covers_bottom=covers.bottom,
        map=record.numbers,
        map_encoding="float32",
        map_height=record.shape[0],
        map_width=record.shape[1],
        used=None if used is None else _halves(used),
        picture=picture,
        overlay=overlay,
        warning="; ".join((*facts.warnings, *more_warnings)) or None,
    )


def _halves(numbers: NDArray[np.float32]) -> bytes:
    """Return numbers as float16, little-endian; what is too large for them is their largest."""
    return numbers.clip(-MOST_HALF, MOST_HALF).astype(HALVES).tobytes()


def failed_row(name: str, problem: Problem, asked: str | None) -> Row:
    """Return the row of an image that has no map."""
    return Row(id=name, asked=asked, error=problem.detail, problem=problem.type())


def picture_path(name: str, number: int, extension: str) -> str:
    """Return the path of a map's picture, relative to the output folder.

    The path never leaves that folder, whatever the image's id is. Different ids and numbers have
    different paths, and no path is a folder of another one.
    """
    parts = [part for part in re.split(r"[/\\]", name) if part not in ("", ".")]
    *folders, last = parts or ["_"]
    path = _safe(last)
    for folder in map(_safe, reversed(folders)):
        longer = f"{folder}{'_' if folder.endswith(extension) else ''}/{path}"
        if len(longer.encode()) > LONGEST_PATH:
            break
        path = longer
    # A digest keeps a changed name distinct from every other name, and a name that ends like a
    # number or a digest distinct from names with such a suffix.
    if path != name or re.search(r"\.(\d+|[0-9a-f]{12})$", path):
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=6)
        path += f".{digest.hexdigest()}"
    return f"{PICTURES}/{path}{f'.{number}' if number else ''}{extension}"


def _safe(part: str) -> str:
    """Return one component of a path, with characters that some file systems refuse replaced."""
    cleaned = re.sub(r'[\x00-\x1f<>:"|?*\x7f\ud800-\udfff]', "_", part)
    cut = cleaned.encode()[:LONGEST_NAME].decode(errors="ignore")
    return cut.rstrip(". ") or "_" * min(len(cut), 9)
