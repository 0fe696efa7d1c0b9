"""Where the images of a batch come from: a folder, a pattern, a zip, a table of paths."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from service.batch.folders import SUFFIXES, WILDCARDS, Search, is_image
from service.batch.tables import rows_of
from service.core.errors import ConfigError, ImageTooLarge, UndecodableImage, one_line
from service.pipeline.images import LARGEST, read_file

Place = TypeVar("Place")


@dataclass(frozen=True, eq=False)
class Inputs:
    """Images that are still where they are."""

    ids: list[str]
    """Each image's own, in a fixed order."""
    read: Callable[[str], bytes]
    """The bytes of an id's image; blocks, and raises a Problem where they cannot be had."""
    targets: Mapping[str, str] = field(default_factory=dict)
    """Of those that have their own."""
    warning: str = ""
    """What a person should know of them."""

    @property
    def wanted(self) -> list[str | None]:
        """The target of each that has its own, else None."""
        return [self.targets.get(name) for name in self.ids]


@contextmanager
def open_inputs(source: str, besides: Path | None = None) -> Iterator[Inputs]:
    """The images that `source` names. Their ids are paths below the folder (or below the part of a
    pattern that has no wildcard), names in the zip, or what the table says. While the block is open
    they can be read.

    Args:
        besides: of a folder or a pattern, a folder whose images are left out: those that a batch
            draws itself.

    Raises:
        ConfigError: if there is nothing to explain, or it is none of these.
    """
    if not source:
        raise ConfigError("INPUT is empty; the folder that you are in is called .")
    path = Path(source)
    kind = path.suffix.lower()
    is_file = os.path.isfile(path)  # noqa: PTH113 - Path's own raises where it is forbidden
    search = Search(besides)
    with ExitStack() as scope:
        if os.path.isdir(path):  # noqa: PTH112 - Path's own raises where a name is too long
            found = _of_files(search.images(path), search.warning)
            what = f"the folder {source} has no images ({_suffixes()})"
        elif is_file and kind == ".zip":
            archive = scope.enter_context(_zip(path))
            found, what = _of_zip(archive), f"the zip {source} has no images ({_suffixes()})"
        elif is_file and kind in (".csv", ".parquet"):
            found, what = _of_table(path), f"the table {source} has no rows"
        elif is_file and kind in SUFFIXES:
            found, what = Inputs([path.name], lambda name: read_file(path)), ""
        elif any(sign in source for sign in WILDCARDS):
            found = _of_files(search.fitting(source), search.warning)
            what = f"no image fits {source} ({_suffixes()})"
        else:
            raise ConfigError(
                f"{source} is neither a folder, a pattern like 'photos/**/*.jpg', a .zip, nor a "
                ".csv or .parquet with a column 'path'"
            )
        if not found.ids:
            out = f"what is below {besides} is left out" if search.left_out else ""
            raise ConfigError("; ".join(filter(None, (what, out, search.warning))))
        yield found


def _known(found: Mapping[str, Place], name: str) -> Place:
    """
    Raises:
        UndecodableImage: if it is not among them: somebody else saw it, and it has gone since.
    """
    if name not in found:
        raise UndecodableImage(f"{name} is not there any more")
    return found[name]


def _suffixes() -> str:
    return ", ".join(SUFFIXES)


def _of_files(paths: Mapping[str, Path], warning: str) -> Inputs:
    return Inputs(sorted(paths), lambda name: read_file(_known(paths, name)), warning=warning)


def _zip(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except Exception as error:  # a broken one's directory makes zipfile raise nearly anything
        raise ConfigError(f"{path} is not a readable zip: {one_line(error)}") from None


def _of_zip(archive: zipfile.ZipFile) -> Inputs:
    entries = {entry.filename: entry for entry in archive.infolist() if not entry.is_dir()}
    return Inputs(sorted(filter(is_image, entries)), partial(_unpacked, archive, entries))


def _unpacked(archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo], name: str) -> bytes:
    entry = _known(entries, name)
    if entry.file_size > LARGEST:
        raise ImageTooLarge(f"{name} has {entry.file_size} bytes; at most {LARGEST} are allowed")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # Some six hundred bytes of bzip2 unpack to a gigabyte before the first of them is read.
        raise UndecodableImage(
            f"{name} cannot be unpacked: its compression is neither none nor deflate"
        )
    try:
        with archive.open(entry) as file:
            return file.read(LARGEST)
    except Exception as error:  # zlib's, of encryption, of a method that it does not know
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
    # An absolute path stays one.
    return Inputs(list(paths), lambda name: read_file(table.parent / _known(paths, name)), targets)
