"""The report of an audit: one self-contained HTML page without scripts."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from cam.drawing.overlay import overlay
from cam.drawing.placement import Float, resize
from cam.evaluation.verdict import NAMED
from service.features.audit.plan import name_of
from service.features.audit.records import PhotoRecord
from service.features.audit.schemas import ArmSummary, Audit
from service.features.audit.summary import SHOWS_THE_PHOTO
from service.features.report.clusters import spaced
from service.features.report.page import data_uri, draw_bar, draw_map, page_template

SHOWN: Final = 24
"""Number of photos whose maps the report shows."""


@dataclass(frozen=True)
class ShownPhoto:
    """A photo as the page shows it."""

    record: PhotoRecord
    picture: str
    """The photo with the map over it, as a data URI."""


def audit_page(audit: Audit, records: Sequence[PhotoRecord]) -> Iterator[str]:
    """Yield the report of an audit piece by piece."""
    ordered = sorted(records, key=lambda record: record.index)
    name = name_of(audit.recommendation) if audit.recommendation else None
    arms = sorted(audit.arms, key=_order)
    return page_template(Path(__file__).parent, "audit").generate(
        audit=audit,
        arms=arms,
        best=name,
        name_of=name_of,
        named=NAMED,
        stages=max((len(arm.sanity) for arm in arms), default=0),
        threshold=SHOWS_THE_PHOTO,
        portraits={name_of(arm): _portrait(arm) for arm in arms},
        shown=[shown for record in spaced(ordered, SHOWN) if (shown := _shown(record, name))],
        records=ordered,
        bar=draw_bar(),
    )


def _order(arm: ArmSummary) -> tuple[Any, ...]:
    """Return a key by which the methods with the most points come first, and those that do not show
    the model last."""
    return (
        arm.shows_the_model is False,
        arm.points is None,
        -(arm.points.mean if arm.points else 0),
        arm.method,
    )


def _portrait(arm: ArmSummary) -> str | None:
    return None if arm.mean_map is None else draw_map(np.array(arm.mean_map, np.float32))


def _shown(record: PhotoRecord, arm: str | None) -> ShownPhoto | None:
    """Return a photo with the map of a method over it; None if there is no picture."""
    try:
        with Image.open(BytesIO(base64.b64decode(record.thumbnail or ""))) as picture:
            pixels = np.asarray(picture.convert("RGB"))
    except (OSError, binascii.Error):
        return None
    mine = record.arms.get(arm or "")
    if mine is not None and mine.map is not None:
        values: Float = np.array(mine.map, np.float32)
        pixels = overlay(pixels, resize(values, *pixels.shape[:2]))
    return ShownPhoto(record, data_uri(Image.fromarray(pixels)))
