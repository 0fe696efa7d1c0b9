"""The Parquet table of a folder's manifest, and of a job's results: a column for each field of a
row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any, Final, get_args, get_type_hints

import pyarrow as pa

from service.core.glossary import TERMS
from service.features.tables.rows import Row

OWN_TERMS: Final = {
    "used": (
        "In the table of `gradcam batch`: what the model used. This is the contribution of each "
        "channel of the layer to `target_score`, Σ A_k ∂y/∂A_k over the positions, as "
        "little-endian float16; the report groups photos by it. Absent for methods without a "
        "gradient at the layer or of many passes, and for fused maps."
    ),
    "picture": (
        "The picture's path below the output folder; absent if none was drawn, and in a job's "
        "file, which has `overlay` instead."
    ),
    "overlay": "The picture itself, a PNG, if the job's `output` asks for one.",
}
"""Columns that answers have not → their definitions: see `TERMS`."""
_DEFINED: Final = TERMS | OWN_TERMS

TYPES: Final[dict[Any, pa.DataType]] = {
    str: pa.string(),
    bytes: pa.binary(),
    int: pa.int32(),
    float: pa.float32(),
    bool: pa.bool_(),
    list[tuple[str, float]]: pa.map_(pa.string(), pa.float32()),
    list[tuple[str, float | None]]: pa.map_(pa.string(), pa.float32()),
}
"""Type of a row's value → type of the column."""


def _column(name: str, kind: Any) -> pa.Field:
    told = _DEFINED.get(name) or _DEFINED[name.rpartition("_")[0]]  # peak_x is described by peak
    nullable = type(None) in get_args(kind)
    type_ = TYPES[get_args(kind)[0] if nullable else kind]
    return pa.field(name, type_, nullable, {"description": told})


_OF_ROW = get_type_hints(Row)
SCHEMA: Final = pa.schema([_column(each.name, _OF_ROW[each.name]) for each in fields(Row)])
"""`TERMS` and `OWN_TERMS` say what each column is."""


def table_of(rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist([asdict(row) for row in rows], schema=SCHEMA)
