"""All of a job's results in one file, made as it is read: neither the disk nor memory holds it."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from service.batch.rows import picture_path
from service.jobs.errors import UnknownJob
from service.jobs.folder import Folder
from service.jobs.lines import line_of, picture_of_explanation
from service.jobs.outcomes import Outcomes
from service.jobs.records import Job
from service.rendering import encode_values

PAGE: Final = 100
SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("number", pa.int32(), nullable=False),
        pa.field("index", pa.int32()),
        pa.field("label", pa.string()),
        pa.field("probability", pa.float32()),
        pa.field("score", pa.float32()),
        pa.field("method", pa.string()),
        pa.field("layer", pa.string()),
        pa.field("peak_x", pa.int32()),
        pa.field("peak_y", pa.int32()),
        pa.field("height", pa.int32()),
        pa.field("width", pa.int32()),
        pa.field("map", pa.binary()),
        pa.field("map_encoding", pa.string()),
        pa.field("overlay", pa.binary()),
        pa.field("warning", pa.string()),
        pa.field("error", pa.string()),
        pa.field("problem", pa.string()),
    ]
)
"""`map` is a PNG or float32, as `map_encoding` says; `overlay` a PNG."""


def zipped(outcomes: Outcomes, folder: Folder, job: Job) -> Iterator[bytes]:
    """A zip: a picture for each map (or .npy, where numbers were asked for), and `results.ndjson`
    with all that is said of them."""
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        for line in _documents(outcomes, folder, job):
            for number, explanation in enumerate(line.get("explanations", ())):
                name, data = _file_of(line["item"], number, explanation)
                archive.writestr(name, data)
            yield from sink.taken()
        with archive.open("results.ndjson", "w", force_zip64=True) as lines:
            for line in _documents(outcomes, folder, job):
                for number, explanation in enumerate(line.get("explanations", ())):
                    explanation["file"] = _file_of(line["item"], number, explanation)[0]
                    explanation.pop("overlay", None)
                    del explanation["heatmap"]["data"]
                lines.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                yield from sink.taken()
    yield from sink.taken()


def parquet(outcomes: Outcomes, folder: Folder, job: Job) -> Iterator[bytes]:
    """A Parquet file: a row for each map, and for each item that failed."""
    sink = _Sink()
    with pq.ParquetWriter(pa.PythonFile(sink, mode="w"), SCHEMA, compression="zstd") as writer:
        rows: list[dict[str, Any]] = []
        for line in _documents(outcomes, folder, job):
            rows += _rows(line)
            if len(rows) >= PAGE:
                writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
                rows = []
                yield from sink.taken()
        if rows:
            writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
    yield from sink.taken()


class _Sink(io.RawIOBase):
    """Keeps what is written until it is taken. It cannot go back, and says so."""

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


def _documents(outcomes: Outcomes, folder: Folder, job: Job) -> Iterator[dict[str, Any]]:
    after = 0
    while page := outcomes.results(job, after, PAGE):
        for finished in page:
            yield json.loads(line_of(folder, job, finished))
        after = page[-1].cursor
    if after < job.settled:
        raise UnknownJob(f"job {job.id} was removed while its results were read")


def _file_of(item: str, number: int, explanation: dict[str, Any]) -> tuple[str, bytes]:
    heatmap = explanation["heatmap"]
    picture = picture_of_explanation(explanation)
    if picture is not None:
        return picture_path(item, number, ".png"), picture
    values = np.frombuffer(base64.b64decode(heatmap["data"]), "<f4").reshape(heatmap["shape"])
    return picture_path(item, number, ".npy"), encode_values(values)


def _rows(line: dict[str, Any]) -> list[dict[str, Any]]:
    if "error" in line:
        problem = line["problem"]["type"]
        return [{"id": line["item"], "number": 0, "error": line["error"], "problem": problem}]
    rows = []
    for number, each in enumerate(line["explanations"]):
        target, heatmap, peak = each["target"], each["heatmap"], each.get("peak") or {}
        overlay = each.get("overlay")
        rows.append(
            {
                "id": line["item"],
                "number": number,
                "index": target.get("index"),
                "label": target.get("label"),
                "probability": target.get("probability"),
                "score": target["score"],
                "method": each["method"],
                "layer": each["layer"],
                "peak_x": peak.get("x"),
                "peak_y": peak.get("y"),
                "height": heatmap["shape"][0],
                "width": heatmap["shape"][1],
                "map": base64.b64decode(heatmap["data"]),
                "map_encoding": heatmap["encoding"],
                "overlay": base64.b64decode(overlay["data"]) if overlay else None,
                "warning": "; ".join(each["warnings"]) or None,
            }
        )
    return rows
