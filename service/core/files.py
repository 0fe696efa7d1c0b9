"""Atomic writing of files: a file is written completely or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def written_whole(file: Path, scratch: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path to write the file at. When the block is left, the file is flushed to
    the disk and renamed; after an exception it is removed.

    Args:
        scratch: the folder of the temporary path, on the same file system; by default the file's.
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


def share(path: Path) -> None:
    """Let the group of a file or folder read and write it, whatever the umask, if the group of the
    folder that it is in may write there. A folder with the sticky bit, as /tmp has, does not count.
    Nothing changes if the file belongs to another user, or the file system has no such rights."""
    around = path.parent.stat().st_mode
    if not around & stat.S_IWGRP or around & stat.S_ISVTX:
        return
    mode = path.stat().st_mode
    more = 0o070 if stat.S_ISDIR(mode) else 0o060
    if mode & more != more:
        with suppress(OSError):
            path.chmod(stat.S_IMODE(mode) | more)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    with suppress(OSError):  # not every system lets a folder be opened
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
