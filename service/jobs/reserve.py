"""A file that takes room on the disk, so that jobs can be removed although the disk is full."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from service.core.files import share, written_whole

RESERVE_BYTES: Final = 4_000_000
"""Size of the file: more than SQLite needs to write a removal down before it does it."""


class Reserve:
    """Room for the removal of jobs. It is spent when the disk is full, and no job grows until it is
    there again. All processes that use the folder share it."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def restore(self) -> bool:
        """Return whether the reserve is there. It is made again if that leaves as much room."""
        if self._file.exists():
            return True
        try:
            if shutil.disk_usage(self._file.parent).free < 2 * RESERVE_BYTES:
                return False
            with written_whole(self._file) as temporary:
                # Noise takes room on file systems that compress, too.
                temporary.write_bytes(os.urandom(RESERVE_BYTES))
                share(temporary)
        except OSError:
            return False
        return True

    def spend(self) -> None:
        """Give the room to what is written next."""
        self._file.unlink(missing_ok=True)
