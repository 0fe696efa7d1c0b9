"""Counts that hold for the whole service, also where several processes receive requests.

Each process adds to its own row of a shared table and reads the sum of all rows. A row has a single
writer, so no lock is needed to count. A process that dies leaves its row to the supervisor, which
clears it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Final, Protocol

import numpy as np
from filelock import FileLock

CONNECTIONS: Final = "connections"
"""The number of open connections."""
NAMES: Final = 128
"""Number of names for which there is room in a table."""
NAME_BYTES: Final = 96


class Counts(Protocol):
    """Numbers by name, each the sum of what all processes of the service have added."""

    shared: bool
    """Whether other processes may change them."""

    def add(self, name: str, amount: int) -> int:
        """Add to this process's share of a number, and return the number."""

    def total(self, name: str) -> int:
        """Return a number; 0 if nothing was added to it."""

    def touch(self) -> None:
        """Record that work has ended now."""

    def touched(self) -> float:
        """Return when work last ended in any process, on the clock of `time.monotonic`."""


class LocalCounts:
    """The numbers of a service of one process: see `Counts`."""

    shared = False

    def __init__(self) -> None:
        self._values: Counter[str] = Counter()
        self._touched = 0.0

    def add(self, name: str, amount: int) -> int:
        self._values[name] += amount
        return self._values[name]

    def total(self, name: str) -> int:
        return self._values[name]

    def touch(self) -> None:
        self._touched = monotonic()

    def touched(self) -> float:
        return self._touched


class SharedCounts:
    """The numbers of several processes, in a file that all of them map into memory: see `Counts`.

    Args:
        file: a file that `make_table` made.
        row: this process's row; no other process writes it.
    """

    shared = True

    def __init__(self, file: Path, row: int) -> None:
        rows = _rows(file)
        self._row = row
        self._values = np.memmap(file, np.int64, "r+", 0, (rows, NAMES))
        self._times = np.memmap(file, np.float64, "r+", self._values.nbytes, (rows,))
        self._names = np.memmap(
            file, f"S{NAME_BYTES}", "r+", self._values.nbytes + self._times.nbytes, (NAMES,)
        )
        self._lock = FileLock(f"{file}.lock")
        self._columns: dict[str, int] = {}

    def add(self, name: str, amount: int) -> int:
        column = self._column(name)
        self._values[self._row, column] += amount
        return int(self._values[:, column].sum())

    def total(self, name: str) -> int:
        column = self._found(name)
        return 0 if column is None else int(self._values[:, column].sum())

    def touch(self) -> None:
        self._times[self._row] = monotonic()

    def touched(self) -> float:
        return float(self._times.max())

    def clear(self) -> None:
        """Set the row to 0, after its process has died."""
        self._values[self._row] = 0

    def _column(self, name: str) -> int:
        """Return the column of a name; a new name gets a free one.

        Raises:
            OverflowError: if there is no free column.
        """
        column = self._found(name)
        if column is not None:
            return column
        with self._lock:
            column = self._found(name)
            if column is None:
                free = np.flatnonzero(self._names == b"")
                if len(free) == 0:  # a column that counts nothing may be used for another name
                    free = np.flatnonzero(~self._values.any(axis=0))
                if len(free) == 0:
                    raise OverflowError(f"{NAMES} names are counted, and {name!r} is one more")
                column = int(free[0])
                self._names[column] = name.encode()[:NAME_BYTES]
        return column

    def _found(self, name: str) -> int | None:
        """Return the column of a name; None if nothing was added to it."""
        column, encoded = self._columns.get(name), name.encode()[:NAME_BYTES]
        if column is None or self._names[column] != encoded:
            found = np.flatnonzero(self._names == encoded)
            if len(found) == 0:
                return None
            column = self._columns[name] = int(found[0])
        return column


def _rows(file: Path) -> int:
    return (file.stat().st_size - NAMES * NAME_BYTES) // (8 * NAMES + 8)


@contextmanager
def table(file: Path, rows: int) -> Iterator[Path]:
    """Make a table of so many rows; its file is removed when the block is left."""
    file.touch(mode=0o600)
    os.truncate(file, rows * (8 * NAMES + 8) + NAMES * NAME_BYTES)
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)
