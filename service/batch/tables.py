"""Reading .csv and .parquet tables of paths, ids and targets."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from service.core.errors import ConfigError, one_line

COLUMNS: Final = ("path", "id", "target")
Cells = dict[str, str | None]
"""One row: name of each column → text of its cell, or None."""


def rows_of(table: Path) -> Iterator[Cells]:
    """Yield the rows of a table in its order.

    Raises:
        ConfigError: if the table cannot be read, has no column `path`, or has an invalid cell.
    """
    return _of_csv(table) if table.suffix.lower() == ".csv" else _of_parquet(table)


def _of_csv(path: Path) -> Iterator[Cells]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            reader.fieldnames = [name.strip() for name in reader.fieldnames or []]
            _require_path(path, reader.fieldnames)
            for row in reader:
                yield {name: row.get(name) or None for name in COLUMNS}
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path} is not a readable CSV file: {one_line(error)}") from None


def _of_parquet(path: Path) -> Iterator[Cells]:
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            _require_path(path, schema.names)
            columns = [name for name in COLUMNS if name in schema.names]
            for name in columns:
                # Python has no type for nanoseconds, so reading them depends on whether pandas is
                # installed.
                if getattr(schema.field(name).type, "unit", None) == "ns":
                    raise ValueError(f"its column {name} is {schema.field(name).type}")
            number = 0
            for batch in file.iter_batches(columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    where = f"row {number} of {path}"
                    yield {name: _text(row.get(name), name, where) for name in COLUMNS}
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: text is not UTF-8
        raise ConfigError(f"{path} is not a readable Parquet file: {one_line(error)}") from None


def _text(value: Any, column: str, where: str) -> str | None:
    """Return a cell as text, as a CSV file has it.

    Raises:
        ConfigError: if the cell is a list or an unsuitable struct; the message names the row.
    """
    value = _plain(value)
    if isinstance(value, dict) and column == "target":
        return json.dumps(value) if value else None
    if isinstance(value, dict | list):
        kind = "list" if isinstance(value, list) else "struct"
        allowed = 'one class: its index, its label, or a struct like {"class": …, "minus": …}'
        should = allowed if column == "target" else "text or a number"
        raise ConfigError(f"{where} has a {kind} as its {column}; it should be {should}")
    return None if value is None else str(value) or None


def _plain(value: Any) -> Any:
    """Return a value as JSON has it, without missing entries. NaN counts as missing and whole
    floats become integers, because pandas turns a column of integers with a missing one into
    floats with NaN."""
    if isinstance(value, dict):
        plain = {name: _plain(each) for name, each in value.items()}
        return {name: each for name, each in plain.items() if each is not None}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return int(value) if value.is_integer() else value
    return value.decode() if isinstance(value, bytes) else value


def _require_path(table: Path, columns: Sequence[str]) -> None:
    if "path" not in columns:
        raise ConfigError(
            f"{table} has no column 'path'; it has {', '.join(map(repr, columns[:20])) or 'none'}"
        )
