"""The decoding stage of a batch on Ray, which needs no model and starts without loading torch."""

from __future__ import annotations

from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from service.core.errors import Problem
from service.features.batch.inputs import open_inputs
from service.pipeline.images import decode

MOST_PIXELS: Final = 4_000_000
"""Largest number of pixels of a photo that is passed on decoded. Larger photos are passed on
encoded, because their pixels would fill Ray's object store."""
DECODED: Final = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("target", pa.string()),
        pa.field("image", pa.large_binary()),
        pa.field("error", pa.string()),
        pa.field("problem", pa.string()),
    ]
)


class Decoder:
    """A Ray actor on CPUs that reads images and decodes them."""

    def __init__(self, source: str, besides: Path, max_pixels: int) -> None:
        self._scope = ExitStack()  # stays open as long as the actor lives
        self._inputs = self._scope.enter_context(open_inputs(source, besides))
        self._max_pixels = max_pixels

    def __call__(self, block: pa.Table) -> pa.Table:
        return pa.Table.from_pylist([self._decoded(row) for row in block.to_pylist()], DECODED)

    def _decoded(self, row: dict[str, Any]) -> dict[str, Any]:
        try:
            image = self._inputs.read(row["id"])
            photo = decode(image, max_pixels=self._max_pixels)
        except Problem as problem:
            return {**row, "error": problem.detail, "problem": problem.type()}
        if photo.width * photo.height <= MOST_PIXELS:
            plain = BytesIO()
            photo.save(plain, "BMP")  # lossless, at the cost of a copy
            image = plain.getvalue()
        return {**row, "image": image}
