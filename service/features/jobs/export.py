"""Export of a job's results as one zip or Parquet file, which is produced while it is sent.

Neither the disk nor the memory ever holds the whole file.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import unicodedata
import zipfile
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from service.features.jobs.job_files import Folder
from service.features.jobs.records import Finished, Job
from service.features.jobs.results import (
    ResultStore,
    all_finished,
    line_of,
    maps_of,
    picture_of_explanation,
)
from service.features.tables.rows import Row, picture_path, row_of
from service.pipeline.rendering import encode_values

PAGE: Final = 100
"""Number of rows after which a part of a Parquet file is written."""
PAGE_BYTES: Final = 64_000_000
"""Bytes of maps and overlays after which it is written earlier, so that few large maps are in
memory."""


def zipped(result_store: ResultStore, folder: Folder, job: Job) -> Iterator[bytes]:
    """Yield a zip file: a picture for each map (or an .npy file, if numbers were requested), and
    `results.ndjson` with all other results."""
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        names = _Names()
        for line in _documents(result_store, folder, job):
            for number, explanation in enumerate(line.get("explanations", ())):
                extension, data = _content_of(explanation)
                archive.writestr(names.take(line["item"], number, extension), data)
            yield from sink.taken()
        names = _Names()
        with archive.open("results.ndjson", "w", force_zip64=True) as lines:
            for line in _documents(result_store, folder, job):
                for number, explanation in enumerate(line.get("explanations", ())):
                    extension, _ = _content_of(explanation)
                    explanation["file"] = names.take(line["item"], number, extension)
                    explanation.pop("overlay", None)
                    del explanation["heatmap"]["data"]
                lines.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                yield from sink.taken()
    yield from sink.taken()


def parquet(result_store: ResultStore, folder: Folder, job: Job) -> Iterator[bytes]:
    """Yield a Parquet file: one row for each map, and one for each item that failed."""
    # Few requests need it, and it takes 45 MB in each process.
    import pyarrow as pa
    import pyarrow.parquet as pq

    from service.features.tables.table import SCHEMA, table_of

    sink = _Sink()
    with pq.ParquetWriter(pa.PythonFile(sink, mode="w"), SCHEMA, compression="zstd") as writer:
        rows: list[Row] = []
        size = 0
        for finished in all_finished(result_store, job):
            for row in _rows(folder, job, finished):
                rows.append(row)
                size += len(row.map or b"") + len(row.overlay or b"")
                if len(rows) >= PAGE or size >= PAGE_BYTES:
                    writer.write_table(table_of(rows))
                    rows, size = [], 0
                    yield from sink.taken()
        if rows:
            writer.write_table(table_of(rows))
    yield from sink.taken()


class _Sink(io.RawIOBase):
    """A write-only file that keeps written data until it is taken. It is not seekable."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        return len(piece)

    def taken(self) -> Iterator[bytes]:
        pieces, self._pieces = self._pieces, []
        yield from pieces


def _documents(result_store: ResultStore, folder: Folder, job: Job) -> Iterator[dict[str, Any]]:
    for finished in all_finished(result_store, job):
        yield json.loads(line_of(folder, job, finished))


class _Names:
    """Makes the names of files in an archive unique, without regard to case: on some file systems
    A.png and a.png are the same file."""

    def __init__(self) -> None:
        self._taken: set[bytes] = set()

    def take(self, item: str, number: int, extension: str) -> str:
        path = picture_path(item, number, extension)
        if self._is_taken(path):
            digest = hashlib.blake2b(item.encode("utf-8", "surrogatepass"), digest_size=6)
            path = f"{path.removesuffix(extension)}.{digest.hexdigest()}{extension}"
            self._is_taken(path)
        return path

    def _is_taken(self, path: str) -> bool:
        # For a million names, digests take a tenth of the memory of the names.
        plain = unicodedata.normalize("NFC", path).casefold()
        digest = hashlib.blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        taken = digest in self._taken
        self._taken.add(digest)
        return taken


def _content_of(explanation: dict[str, Any]) -> tuple[str, bytes]:
    """Return the extension and the contents of a map's file."""
    heatmap = explanation["heatmap"]
    picture = picture_of_explanation(explanation)
    if picture is not None:
        return ".png", picture
    values = np.frombuffer(base64.b64decode(heatmap["data"]), "<f4").reshape(heatmap["shape"])
    return ".npy", encode_values(values)


def _rows(folder: Folder, job: Job, finished: Finished) -> Iterator[Row]:
    if finished.problem is not None:
        error, kind = finished.problem["detail"], finished.problem["type"]
        yield Row(id=finished.id, error=error, problem=kind)
        return
    explanations = json.loads(line_of(folder, job, finished))["explanations"]
    for explanation, record in zip(explanations, maps_of(folder, job, finished), strict=True):
        overlay = explanation.get("overlay")
        picture = base64.b64decode(overlay["data"]) if overlay else None
        yield row_of(record, finished.id, overlay=picture)
