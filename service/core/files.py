"""Files that are whole, or not there at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def written_whole(file: Path, scratch: Path | None = None) -> Iterator[Path]:
    """Another name to write a file under; when the block is left it is on the disk and takes its
    own name, or, after an exception, is gone.

    Args:
        scratch: the folder of that other name, on the same file system; without one the file's.
    """
    temporary = (scratch or file.parent) / f".{file.name}.{os.getpid()}.tmp"
    try:
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        temporary.replace(file)
        sync_folder(file.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Return when the names in a folder are on the disk."""
    with suppress(OSError):  # not every system lets a folder be opened
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
