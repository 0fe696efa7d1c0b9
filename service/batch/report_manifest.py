"""Reading a manifest row by row, in memory that does not grow with its length."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from service.core.errors import ConfigError, one_line
from service.pipeline.rows import SCHEMA, Row

ROWS: Final = 1024
"""Number of rows that are read at a time, without their maps."""
ROWS_WITH_MAPS: Final = 64
"""Number of rows that are read at a time with their maps, which may be as large as photos."""
BYTES: Final = 1 << 20
"""Number of bytes of a column that are read at a time. Without it, a row group is read as a
whole."""


def read_rows(manifest: Path, *, maps: bool = False) -> Iterator[Row]:
    """Yield the rows of a manifest in its order.

    Args:
        maps: whether to read the column `map`, too.

    Raises:
        ConfigError: if the manifest cannot be read or does not have the columns of a manifest.
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
