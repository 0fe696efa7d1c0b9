"""A manifest read row by row, in the same little memory however long it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from service.core.errors import ConfigError, one_line
from service.pipeline.rows import SCHEMA, Row

ROWS: Final = 1024
"""Read at a time without their maps."""
ROWS_WITH_MAPS: Final = 64
"""And with them, which may be as large as photos."""
BYTES: Final = 1 << 20
"""Of a column read at a time, wherever its row group ends: without it a group is read whole."""


def read_rows(manifest: Path, *, maps: bool = False) -> Iterator[Row]:
    """The rows of a manifest, in its order; without their `map` unless it is asked for.

    Raises:
        ConfigError: if it cannot be read, or has not the columns of a manifest.
    """
    columns = [name for name in SCHEMA.names if maps or name != "map"]
    at_a_time = ROWS_WITH_MAPS if maps else ROWS
    try:
        with pq.ParquetFile(manifest, pre_buffer=False, buffer_size=BYTES) as file:
            _check(manifest, file.schema_arrow)
            for batch in file.iter_batches(batch_size=at_a_time, columns=columns):
                for record in batch.to_pylist():
                    yield Row(**record)
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{manifest} cannot be read as a manifest: {one_line(error)}") from None


def _check(manifest: Path, schema: pa.Schema) -> None:
    missing = [name for name in SCHEMA.names if name not in schema.names]
    if missing:
        raise ConfigError(
            f"{manifest} is not the manifest of a batch: it has no column {', '.join(missing)}"
        )
    for field in SCHEMA:
        if schema.field(field.name).type != field.type:
            raise ConfigError(
                f"{manifest} is not the manifest of a batch: its column {field.name} is "
                f"{schema.field(field.name).type}, not {field.type}"
            )
