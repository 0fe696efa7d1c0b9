"""The statistics of the maps of good photos, which those of a live model are compared with."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cam.drift.map_statistics import OPTIONAL, STATISTICS, MapStatistics, row_of
from cam.drift.origin import Origin
from cam.drift.photo_statistics import PHOTO_STATISTICS
from cam.drift.window import NO_CLASS, Classes, Rows, distinct, evenly
from cam.errors import InvalidReference

KEY: Final = b"gradcam-reference"
"""Key of the description in the file's metadata."""
SCHEMA: Final = pa.schema(
    [("class", pa.int32()), *((name, pa.float32()) for name in STATISTICS)],
)
NEWER: Final = PHOTO_STATISTICS
"""Columns that files may lack which were written before there were such statistics. They are then
not compared."""
MOST: Final = 1_000_000
"""Largest number of photos in a file: 72 MB in memory."""
ENOUGH: Final = 2_000
"""Largest number of photos of one class that are compared."""
ROUNDING: Final = 1e-4
"""How far a statistic may lie outside 0 … 1."""


@dataclass(frozen=True, eq=False)
class Reference:
    """The statistics of the maps of good photos, each photo's once."""

    origin: Origin
    made: datetime
    """When the reference was made, with a time zone."""
    classes: Classes
    """Explained class of each photo: int32 (n), `NO_CLASS` for a target that is not a class."""
    rows: Rows
    """float32 (n, s), in the order of `STATISTICS`. A photo whose map has no statistics has NaN in
    all columns, and one that lacks a statistic in `OPTIONAL` has NaN there."""

    def thinned(self, most: int = ENOUGH) -> Reference:
        """Return a reference with at most `most` photos of each class, evenly spaced ones of more.

        A comparison with 500 live maps gains next to nothing from more, and its time grows with
        their number.
        """
        indices, groups = np.unique(self.classes, return_inverse=True)
        chosen = evenly(groups, np.full(len(indices), most))
        return replace(self, classes=self.classes[chosen], rows=self.rows[chosen])

    def write(self, file: Path) -> None:
        """Write the reference as Parquet: a row for each photo with its class and its statistics,
        null where there is none, and a description in the metadata.

        Raises:
            OSError: if the file cannot be written.
        """
        columns = [pa.array(self.classes, mask=self.classes == NO_CLASS)]
        columns += [pa.array(column, mask=np.isnan(column)) for column in self.rows.T]
        told = {**asdict(self.origin), "photos": len(self.rows), "made": self.made.isoformat()}
        schema = SCHEMA.with_metadata({KEY: json.dumps(told)})
        pq.write_table(pa.Table.from_arrays(columns, schema=schema), file)


def reference_of(
    maps: Iterable[tuple[int | None, MapStatistics | None]], origin: Origin
) -> Reference:
    """Make a reference of the maps of good photos: at least 50 of each class to be watched, taken
    as the live ones are. A photo that repeats counts once, as it does among the live ones: see
    `window.distinct`.

    Args:
        maps: the explained class of each photo, None for a target that is not a class; and the
            statistics of its map.

    Raises:
        InvalidReference: if there are no maps, more than a million, or none that has statistics.
    """
    classes, rows = [], []
    for index, statistics in maps:
        classes.append(NO_CLASS if index is None else index)
        rows.append(row_of(statistics))
    shaped = np.array(rows, np.float32).reshape(len(rows), len(STATISTICS))
    kept = distinct(shaped)
    shaped, indices = shaped[kept], np.array(classes, np.int32)[kept]
    if problem := _problem(indices, shaped):
        raise InvalidReference(f"a reference cannot be made: {problem}")
    return Reference(origin, datetime.now(UTC), indices, shaped)


def read_reference(file: Path) -> Reference:
    """Read a reference that `Reference.write` wrote.

    Raises:
        InvalidReference: if the file cannot be read, is not a reference, or has values that
            statistics cannot have.
    """
    try:
        # The number of rows is in the file's footer: a file of too many is not unpacked.
        with pq.ParquetFile(file) as opened:
            schema, count = opened.schema_arrow, opened.metadata.num_rows
            problem = _foreign(schema) or _miscounted(count)
            names = [name for name in SCHEMA.names if name in schema.names]
            table = None if problem else opened.read(columns=names)
    except (pa.ArrowException, OSError, ValueError) as error:
        said = " ".join(str(error).split())
        raise InvalidReference(f"{file} cannot be read as a reference: {said:.200}") from None
    if table is None:
        raise InvalidReference(f"{file} is not a reference: {problem}")
    told = _description(schema.metadata)
    if told is None:
        raise InvalidReference(
            f"{file} is not a reference: its metadata {KEY.decode()!r} does not tell the model, "
            "weights, method, layer, fit and time of a reference; make it anew with `gradcam "
            "reference`"
        )
    for name in SCHEMA.names:
        if name not in names:  # of a file that is older than the statistic
            table = table.append_column(name, pa.nulls(len(table), pa.float32()))
    classes, *columns = (table.column(name) for name in SCHEMA.names)
    if any(_has_nan(column) for column in columns):
        raise InvalidReference(f"{file} is not a reference: it has a NaN; a missing value is null")
    rows = np.stack([column.to_numpy().astype(np.float32) for column in columns], axis=1)
    indices = classes.fill_null(NO_CLASS).to_numpy().astype(np.int32)
    if problem := _problem(indices, rows):
        raise InvalidReference(f"{file} is not a reference: {problem}")
    origin, made = told
    return Reference(origin, made, indices, rows)


def _foreign(schema: pa.Schema) -> str | None:
    """Return what is wrong with the columns of a file."""
    for field in SCHEMA:
        if field.name in NEWER and field.name not in schema.names:
            continue
        if schema.names.count(field.name) != 1:
            return f"it has {schema.names.count(field.name)} columns {field.name!r}, not one"
        if (kind := schema.field(field.name).type) != field.type:
            return f"its column {field.name!r} is {kind}, not {field.type}"
    return None


def _miscounted(count: int) -> str | None:
    """Return what is wrong with a number of photos."""
    return None if 1 <= count <= MOST else f"it has {count:,} photos; it can have 1 to {MOST:,}"


def _problem(classes: Classes, rows: Rows) -> str | None:
    """Return what is wrong with the values of a reference."""
    if problem := _miscounted(len(rows)):
        return problem
    if (low := int(classes.min())) < NO_CLASS:
        return f"it has class {low}; classes are numbered from 0"
    missing = np.isnan(rows)
    flat = missing.all(axis=1)
    if flat.all():
        return "none of its maps has statistics"
    needed = missing[:, : -len(OPTIONAL)]
    if (half := (needed.any(axis=1) & ~flat)).any():
        return f"its row {int(half.argmax())} lacks some of the statistics of a map"
    for name, column in zip(STATISTICS, rows.T, strict=True):
        outside = (column < -ROUNDING) | (column > 1 + ROUNDING)
        if outside.any():
            value = float(column[outside][0])
            return f"it has {value:g} as {name}; statistics are 0 … 1"
    return None


def _has_nan(column: pa.ChunkedArray) -> bool:
    """Return whether a column has a NaN, which is another thing than a null."""
    values = column.to_numpy()
    return bool(np.isnan(values).sum() != column.null_count)


def _description(metadata: dict[bytes, bytes] | None) -> tuple[Origin, datetime] | None:
    """Return what a file's metadata says of the reference; None if it does not say it."""
    try:
        told: dict[str, Any] = json.loads((metadata or {})[KEY])
        words = [told[field.name] for field in fields(Origin)]
        made = datetime.fromisoformat(told["made"])
    except (KeyError, TypeError, ValueError, RecursionError):  # deep lists are a RecursionError
        return None
    if not all(isinstance(word, str) for word in words) or made.tzinfo is None:
        return None
    return Origin(*words), made
