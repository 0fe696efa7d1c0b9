"""Where the images of a batch come from: a folder, a pattern, a zip, a table of paths."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from service.batch.tables import rows_of
from service.errors import ConfigError, ImageTooLarge, UndecodableImage, one_line
from service.photo_file import LARGEST, read_file

JPEG: Final = (".jpg", ".jpeg", ".jpe", ".jfif")
SUFFIXES: Final = (*JPEG, ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif")
WILDCARDS: Final = "*?["


@dataclass(frozen=True, eq=False)
class Inputs:
    """Images that are still where they are."""

    ids: list[str]
    """Each image's own, in a fixed order."""
    read: Callable[[str], bytes]
    """The bytes of an id's image; blocks, and raises a Problem where they cannot be had."""
    targets: Mapping[str, str] = field(default_factory=dict)
    """Of those that have their own."""


@contextmanager
def open_inputs(source: str) -> Iterator[Inputs]:
    """The images that `source` names. Their ids are paths below the folder (or below the part of a
    pattern that has no wildcard), names in the zip, or what the table says. While the block is open
    they can be read.

    Raises:
        ConfigError: if there is nothing to explain, or it is none of these.
    """
    path = Path(source)
    kind = path.suffix.lower()
    is_file = _is_file(path)
    with ExitStack() as scope:
        if os.path.isdir(path):  # noqa: PTH112 - Path's own raises where a name is too long
            found, what = _of_folder(path), f"the folder {source} has no images ({_suffixes()})"
        elif is_file and kind == ".zip":
            archive = scope.enter_context(_zip(path))
            found, what = _of_zip(archive), f"the zip {source} has no images ({_suffixes()})"
        elif is_file and kind in (".csv", ".parquet"):
            found, what = _of_table(path), f"the table {source} has no rows"
        elif is_file and kind in SUFFIXES:
            found, what = Inputs([path.name], lambda name: read_file(path)), ""
        elif any(sign in source for sign in WILDCARDS):
            found, what = _of_pattern(source), f"no image fits {source} ({_suffixes()})"
        else:
            raise ConfigError(
                f"{source} is neither a folder, a pattern like 'photos/**/*.jpg', a .zip, nor a "
                ".csv or .parquet with a column 'path'"
            )
        if not found.ids:
            raise ConfigError(what)
        yield found


def _suffixes() -> str:
    return ", ".join(SUFFIXES)


def _is_image(name: str) -> bool:
    """By its name; those that the system hides are none."""
    *folders, last = name.replace("\\", "/").split("/")
    hidden = any(part[0:1] == "." and part not in (".", "..") for part in (*folders, last))
    return not hidden and "__MACOSX" not in folders and Path(last).suffix.lower() in SUFFIXES


def _is_file(path: Path) -> bool:
    """False too of what may not be looked at."""
    return os.path.isfile(path)  # noqa: PTH113 - Path's own raises there


def _of_folder(folder: Path) -> Inputs:
    # Links to folders are not followed, so there is no way in a circle.
    return _of_files(folder, folder.rglob("*"))


def _of_pattern(pattern: str) -> Inputs:
    fixed = Path(pattern)
    while any(sign in str(fixed) for sign in WILDCARDS):
        fixed = fixed.parent
    try:
        return _of_files(fixed, fixed.glob(str(Path(pattern).relative_to(fixed))))
    except ValueError as error:  # of ** beside other signs
        raise ConfigError(f"{pattern} is not a pattern: {one_line(error)}") from None


def _of_files(folder: Path, files: Iterable[Path]) -> Inputs:
    paths: dict[str, Path] = {}
    for file in files:
        name = file.relative_to(folder).as_posix()
        if not _is_image(name) or not _is_file(file):
            continue
        # A name that is no UTF-8 could stand in no table.
        name = os.fsencode(name).decode(errors="backslashreplace")
        if paths.setdefault(name, file) != file:
            raise ConfigError(f"two files of {folder} are called {name}; rename one of them")
    return Inputs(sorted(paths), lambda name: read_file(paths[name]))


def _zip(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except Exception as error:  # a broken one's directory makes zipfile raise nearly anything
        raise ConfigError(f"{path} is not a readable zip: {one_line(error)}") from None


def _of_zip(archive: zipfile.ZipFile) -> Inputs:
    names = {entry.filename for entry in archive.infolist() if not entry.is_dir()}
    return Inputs(sorted(filter(_is_image, names)), partial(_unpacked, archive))


def _unpacked(archive: zipfile.ZipFile, name: str) -> bytes:
    entry = archive.getinfo(name)
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
    return Inputs(list(paths), lambda name: read_file(table.parent / paths[name]), targets)
