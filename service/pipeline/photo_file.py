"""A photo's file: its bytes, where it is one and not too large."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

from service.core.errors import ImageTooLarge, UndecodableImage, one_line

LARGEST: Final = 256_000_000
"""Bytes of one file, within a zip unpacked: more is a bomb, or no photo."""


def read_file(path: Path) -> bytes:
    """
    Raises:
        UndecodableImage: if it cannot be read.
        ImageTooLarge: if it is too large to be a photo.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would be waited for, a device has no end
            raise UndecodableImage(f"{path} cannot be read: it is no file")
        if status.st_size > LARGEST:
            raise ImageTooLarge(f"{path} has {status.st_size} bytes; at most {LARGEST} are allowed")
        return path.read_bytes()
    except (OSError, ValueError) as error:  # a ValueError of a name with a zero in it
        reason = error.strerror if isinstance(error, OSError) else one_line(error)
        raise UndecodableImage(f"{path} cannot be read: {reason}") from None
