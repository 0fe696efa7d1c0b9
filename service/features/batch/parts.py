"""The finished rows of a batch, stored in files that are either complete or absent.

While a batch runs, its rows are in `parts/*.parquet`; at its end they become `manifest.parquet`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from service.core.errors import ConfigError, InsufficientStorage, one_line
from service.core.files import written_whole
from service.features.tables.rows import Row
from service.features.tables.table import SCHEMA, table_of

MANIFEST: Final = "manifest.parquet"
PARTS: Final = "parts"
COMPRESSION: Final = "zstd"
RUN: Final = "gradcam-service"
"""Key of the batch's record in the manifest's metadata."""
LEFTOVERS: Final = ".*.tmp"
"""Pattern of the files that `written_whole` leaves behind if the process is killed."""
ROWS: Final = 500
"""Number of rows that are read at a time."""
BLOCK_BYTES: Final = 16 << 20
"""Approximate size of the blocks in which rows are sorted, in uncompressed bytes."""
BYTES: Final = 1 << 20
"""Number of bytes of a column that are read at a time. Without it, a row group is read as a
whole."""


class Parts:
    """The finished rows of a batch, stored below its output folder."""

    def __init__(self, output: Path) -> None:
        self._folder = output / PARTS
        self.manifest = output / MANIFEST

    def add(self, rows: list[Row]) -> None:
        """Store some rows. Rows of the same set of images replace the earlier ones.

        Raises:
            InsufficientStorage: if the rows cannot be written; rows stored before are kept.
        """
        if not rows:
            return
        names = json.dumps(sorted({row.id for row in rows}))
        digest = hashlib.blake2b(names.encode(), digest_size=12)
        file = self._folder / f"{digest.hexdigest()}.parquet"
        with _written(file) as temporary, _writer(temporary) as writer:
            writer.write_table(table_of(rows))

    def finished(self) -> set[str]:
        """Return the ids of all images that are done, including those that failed.

        Raises:
            ConfigError: if a file with rows cannot be read.
        """
        return {name for (name,) in self._cells("id")}

    def failed(self) -> set[str]:
        """Return the ids of the images that failed.

        Raises:
            ConfigError: if a file with rows cannot be read.
        """
        return {name for name, error in self._cells("id", "error") if error is not None}

    def asked_otherwise(self, targets: Mapping[str, str]) -> set[str]:
        """Return the ids of the images that were explained for another target than `targets` names
        now, or for one although it names none.

        Raises:
            ConfigError: if a file with rows cannot be read.
        """
        cells = self._cells("id", "asked")
        return {name for name, asked in cells if asked != targets.get(name)}

    def forget(self, names: Set[str]) -> None:
        """Remove the rows of some images, so that the images are explained again.

        Raises:
            ConfigError: if a file with rows cannot be read.
            InsufficientStorage: if the remaining rows cannot be rewritten; no rows are lost.
        """
        for file in self._files() if names else []:
            with _written(file) as temporary, _writer(temporary) as writer:
                for rows in _batches(file):
                    kept = [name not in names for name in rows.column("id").to_pylist()]
                    writer.write_batch(rows.filter(pa.array(kept, pa.bool_())))

    def merge(self, record: str | None = None) -> None:
        """Write all rows to `manifest.parquet`, those of each image once, and delete the parts.

        Args:
            record: the batch's record in JSON, for the metadata of the table.

        Raises:
            ConfigError: if a file with rows cannot be read.
            InsufficientStorage: if the manifest cannot be written; the parts are kept.
        """
        files = self._files()
        if files != [self.manifest]:
            self._write_manifest(files, record)
        parts = [file for file in files if file != self.manifest]
        for folder in (self._folder, self.manifest.parent):
            parts += folder.glob(LEFTOVERS)
        for file in parts:
            file.unlink(missing_ok=True)
        with suppress(OSError):
            self._folder.rmdir()

    def _write_manifest(self, files: list[Path], record: str | None) -> None:
        """Write the manifest, sorted by id and number, so that the same images give the same table
        in whatever order they were finished. Rows are sorted block by block; row groups without ids
        of the block are not read."""
        owner: dict[str, int] = {}
        size = 0
        for turn, file in enumerate(files):
            for rows in _batches(file):
                size += rows.nbytes
                for name in rows.column("id").to_pylist():
                    owner.setdefault(name, turn)
        names = sorted(owner)
        block = max(len(names) * BLOCK_BYTES // max(size, 1), 1)
        schema = SCHEMA.with_metadata({RUN: record}) if record else SCHEMA
        with _written(self.manifest) as temporary, _writer(temporary, schema) as writer:
            for start in range(0, len(names), block):
                wanted = set(names[start : start + block])
                span = names[start], names[min(start + block, len(names)) - 1]
                parts = [
                    rows.filter(
                        pa.array(
                            name in wanted and owner[name] == turn
                            for name in rows.column("id").to_pylist()
                        )
                    )
                    for turn, file in enumerate(files)
                    for rows in _batches(file, span=span)
                ]
                table = pa.Table.from_batches(parts, SCHEMA).cast(schema)
                configuration = [("id", "ascending"), ("number", "ascending")]
                writer.write_table(table.sort_by(configuration), row_group_size=ROWS)

    def _cells(self, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield the cells that each row has in some columns, which are in the schema's order."""
        for file in self._files():
            for batch in _batches(file, [*columns]):
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def _files(self) -> list[Path]:
        earlier = [self.manifest] if self.manifest.exists() else []
        return [*earlier, *sorted(self._folder.glob("*.parquet"))]


@contextmanager
def _written(file: Path) -> Iterator[Path]:
    """Write a file with `written_whole`, creating its folder if necessary.

    Raises:
        InsufficientStorage: if the file cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(file) as temporary:
            yield temporary
    except OSError as error:
        raise InsufficientStorage(f"{file} cannot be written: {one_line(error)}") from None


@contextmanager
def _writer(file: Path, schema: pa.Schema = SCHEMA) -> Iterator[pq.ParquetWriter]:
    # If the disk is full, pyarrow does not close a file that it opened itself.
    with file.open("wb") as opened, pq.ParquetWriter(opened, schema, compression=COMPRESSION) as to:
        yield to


def _batches(
    file: Path, columns: list[str] | None = None, *, span: tuple[str, str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Read a file of rows in batches.

    Args:
        columns: names of the columns to read; None for all.
        span: the first and the last id to read. Row groups outside this range are skipped; the
            others are read as a whole.

    Raises:
        ConfigError: if the file cannot be read, or has other columns than a batch's file.
    """
    try:
        with pq.ParquetFile(file, pre_buffer=False, buffer_size=BYTES) as opened:
            if not opened.schema_arrow.equals(SCHEMA):
                raise ConfigError(f"{file} cannot be read: it is not a batch's; move it away")
            groups = [
                group
                for group in range(opened.num_row_groups)
                if span is None or _overlaps(opened.metadata.row_group(group), span)
            ]
            yield from opened.iter_batches(batch_size=ROWS, row_groups=groups, columns=columns)
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{file} cannot be read: {one_line(error)}; move it away") from None


def _overlaps(group: pq.RowGroupMetaData, span: tuple[str, str]) -> bool:
    ids = group.column(SCHEMA.get_field_index("id")).statistics
    return ids is None or not ids.has_min_max or bool(ids.min <= span[1] and ids.max >= span[0])
