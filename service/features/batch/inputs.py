"""The images of a batch, from a folder, a pattern, a zip or a table of paths."""

from __future__ import annotations

import csv
import json
import math
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from cam.counts import counted
from service.core.errors import ConfigError, ImageTooLarge, UndecodableImage, one_line
from service.features.batch.folders import (
    SUFFIXES,
    WILDCARDS,
    Search,
    is_image,
    is_shown,
    of_other_kinds,
)
from service.pipeline.images import LARGEST, read_file

Place = TypeVar("Place")
COLUMNS: Final = ("path", "id", "target")
Cells = dict[str, str | None]
"""One row: name of each column → text of its cell, or None."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """The images of a batch, which are read only on demand."""

    ids: list[str]
    """Unique ids of the images, in a fixed order."""
    read: Callable[[str], bytes]
    """Function that takes an id and returns the image's bytes. It blocks, and raises a Problem if
    the image cannot be read."""
    targets: Mapping[str, str] = field(default_factory=dict)
    """Id → target, for the images that have a target of their own."""
    warning: str = ""
    """What was passed over: folders that could not be searched, and files that are not images;
    empty if there are none."""

    @property
    def wanted(self) -> list[str | None]:
        """Target of each image, in the order of the ids; None for images without their own."""
        return [self.targets.get(name) for name in self.ids]

    @property
    def folders(self) -> dict[str, str]:
        """Id → the first folder of its path, for the images that lie in one."""
        parts = ((name, name.partition("/")) for name in self.ids)
        return {name: folder for name, (folder, slash, _) in parts if slash}

    def of_classes(self) -> Inputs:
        """Return the same images, with the first folder of each one's path as its target.

        Raises:
            ConfigError: if an image lies in no folder.
        """
        folders = self.folders
        if beside := [name for name in self.ids if name not in folders]:
            raise ConfigError(
                f"--true-classes takes the folder of each image for its class, and {beside[0]!r} "
                f"({len(beside)} of {counted(len(self.ids), 'image')}) lies in none"
            )
        return replace(self, targets=folders)


@contextmanager
def open_inputs(source: str, besides: Path | None = None) -> Iterator[Inputs]:
    """Open the images that `source` names. Their ids are paths relative to the folder (or to the
    part of a pattern without wildcards), names in the zip, or the ids of the table. The images can
    be read while the block is open.

    Args:
        source: a folder, a pattern, a zip, a .csv or .parquet table, or one image.
        besides: for a folder or a pattern, a folder whose images are left out: the output folder
            of the batch.

    Raises:
        ConfigError: if there are no images, or `source` is not one of these.
    """
    if not source:
        raise ConfigError("INPUT is empty; the folder that you are in is called .")
    path = Path(source)
    kind = path.suffix.lower()
    is_file = os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises if access is denied
    search = Search(besides)
    with ExitStack() as scope:
        if os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises if a name is too long
            inputs = _of_files(search.images(path), search.warning)
            what = f"the folder {source} has no images ({_suffixes()})"
        elif is_file and kind == ".zip":
            archive = scope.enter_context(_zip(path))
            inputs, what = _of_zip(archive), f"the zip {source} has no images ({_suffixes()})"
        elif is_file and kind in (".csv", ".parquet"):
            inputs, what = _of_table(path), f"the table {source} has no rows"
        elif is_file and kind in SUFFIXES:
            inputs, what = Inputs([path.name], lambda name: read_file(path)), ""
        elif any(sign in source for sign in WILDCARDS):
            inputs = _of_files(search.fitting(source), search.warning)
            what = f"no image fits {source} ({_suffixes()})"
        else:
            raise ConfigError(
                f"{source} is neither a folder, a pattern like 'photos/**/*.jpg', a .zip, nor a "
                ".csv or .parquet with a column 'path'"
            )
        if not inputs.ids:
            out = f"what is below {besides} is left out" if search.left_out else ""
            raise ConfigError("; ".join(filter(None, (what, out, search.warning))))
        yield inputs


def _known(places: Mapping[str, Place], name: str) -> Place:
    """Return the entry of an image.

    Raises:
        UndecodableImage: if there is none. Another process may have listed the image before it was
            removed.
    """
    if name not in places:
        raise UndecodableImage(f"{name} is not there any more")
    return places[name]


def _suffixes() -> str:
    return ", ".join(SUFFIXES)


def _of_files(paths: Mapping[str, Path], warning: str) -> Inputs:
    return Inputs(sorted(paths), lambda name: read_file(_known(paths, name)), warning=warning)


def _zip(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except Exception as error:  # zipfile raises many kinds of errors for a broken archive
        raise ConfigError(f"{path} is not a readable zip: {one_line(error)}") from None


def _of_zip(archive: zipfile.ZipFile) -> Inputs:
    entries = {entry.filename: entry for entry in archive.infolist() if not entry.is_dir()}
    images = {name for name in entries if is_image(name)}
    others = {name for name in entries if is_shown(name)} - images
    return Inputs(
        sorted(images), partial(_unpacked, archive, entries), warning=of_other_kinds(others)
    )


def _unpacked(archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo], name: str) -> bytes:
    entry = _known(entries, name)
    if entry.file_size > LARGEST:
        raise ImageTooLarge(f"{name} has {entry.file_size} bytes; at most {LARGEST} are allowed")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # With bzip2, about 600 bytes unpack to a gigabyte before the first byte can be read.
        raise UndecodableImage(
            f"{name} cannot be unpacked: its compression is neither none nor deflate"
        )
    try:
        with archive.open(entry) as file:
            return file.read(LARGEST)
    except Exception as error:  # broken data, encryption or an unknown method
        raise UndecodableImage(f"{name} cannot be unpacked: {one_line(error)}") from None


def _of_table(table: Path) -> Inputs:
    paths: dict[str, str] = {}
    targets = {}
    for number, row in enumerate(rows_of(table), start=1):
        path = row["path"]
        if path is None:
            raise ConfigError(f"row {number} of {table} has no path")
        name = row["id"] or path
        if name in paths:
            raise ConfigError(f"row {number} of {table} has the id {name!r} for a second time")
        paths[name] = path
        if row["target"] is not None:
            targets[name] = row["target"]
    # An absolute path is not changed by the join.
    return Inputs(list(paths), lambda name: read_file(table.parent / _known(paths, name)), targets)


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
        plain = {name: _plain(cell) for name, cell in value.items()}
        return {name: cell for name, cell in plain.items() if cell is not None}
    if isinstance(value, list):
        return [_plain(cell) for cell in value]
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
