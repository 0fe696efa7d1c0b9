"""Atomic writing of files, completely or not at all, and why a file cannot be read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

LFS: Final = b"version https://git-lfs.github.com/spec/"
"""The first bytes of a file that stands for another one, which Git LFS has not fetched."""


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


def why_unreadable(file: Path) -> str | None:
    """Return why the content of a file cannot be read, as half a sentence; None if it can. This
    never waits: what is not a regular file, such as a FIFO, is not opened."""
    try:
        mode = file.stat().st_mode
        if not stat.S_ISREG(mode):
            return "it is a directory" if stat.S_ISDIR(mode) else "it is not a regular file"
        with file.open("rb") as opened:
            first = opened.read(len(LFS))
    except PermissionError:
        return f"Permission denied{_whose(file)}"
    except (OSError, ValueError) as error:  # a ValueError: its name has a null character
        return getattr(error, "strerror", None) or str(error)
    if not first:
        return "it is empty"
    if first == LFS:
        return "it is a pointer of Git LFS in place of the file; run git lfs pull"
    return None


def _whose(file: Path) -> str:
    """Return to whom a file belongs that this process may not read, as the end of a sentence."""
    try:
        seen = file.stat()
        us = os.geteuid()
    except (OSError, AttributeError):  # a folder above it is closed; Windows has other rights
        return " to a folder above it"
    return (
        f": it belongs to user {seen.st_uid} with mode {stat.S_IMODE(seen.st_mode):04o}, and the "
        f"service runs as user {us}; safetensors and transformers write files that only their "
        "owner may read, so allow others to read it (chmod a+r)"
    )
