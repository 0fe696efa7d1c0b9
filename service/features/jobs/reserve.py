"""A file that takes room on the disk, so that jobs can be removed although the disk is full."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from service.core.files import share, written_whole

RESERVE_BYTES: Final = 4_000_000
STEP_BYTES: Final = 1_000_000
"""Bytes that are spent at a time: more than SQLite needs to write down that a job is removed."""


class Reserve:
    """Room for the removal of jobs. Some of it is spent whenever the disk is full, and no job grows
    until it is whole again. All processes that use the folder share it."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def restore(self) -> bool:
        """Return whether the reserve is whole. It is made whole if that leaves room to others."""
        try:
            if self._file.exists() and self._file.stat().st_size == RESERVE_BYTES:
                return True
            if shutil.disk_usage(self._file.parent).free < 2 * RESERVE_BYTES:
                return False
            with written_whole(self._file) as temporary:
                # Noise takes room on file systems that compress, too.
                temporary.write_bytes(os.urandom(RESERVE_BYTES))
                share(temporary)
        except OSError:
            return False
        return True

    def spend(self) -> bool:
        """Give some of the room to what is written next. Return False if there is none left."""
        try:
            left = self._file.stat().st_size
            os.truncate(self._file, max(left - STEP_BYTES, 0))
        except OSError:
            return False
        return left > 0
