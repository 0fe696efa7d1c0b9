"""Counts that hold for the whole service, also where several processes receive requests.

Each process adds to its own row of a shared table and reads the sum of all rows. A row has a single
writer, so no lock is needed to count. A process that dies leaves its row to the supervisor, which
clears it.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from mmap import mmap
from pathlib import Path
from time import monotonic
from typing import Final, Protocol

from filelock import FileLock, Timeout

CONNECTIONS: Final = "connections"
"""The number of open connections."""
NAMES: Final = 512
"""Number of names for which there is room in a table."""
CELLS: Final = 16
"""Number of numbers that all processes may write for a name, see `ServiceCounts.cells`."""
NAME_BYTES: Final = 96
NUMBER_BYTES: Final = 8
UNNAMED: Final = bytes(NAME_BYTES)


class Cells(Protocol):
    def __getitem__(self, place: int, /) -> float: ...

    def __setitem__(self, place: int, value: float, /) -> None: ...


class ServiceCounts(Protocol):
    """Numbers by name, each the sum of what all processes of the service have added."""

    shared: bool
    """Whether other processes may change them."""
    processes: int
    """Number of processes that receive requests."""

    def add(self, name: str, amount: int) -> int:
        """Add to this process's share of a number, and return the number."""

    def total(self, name: str) -> int:
        """Return a number; 0 if nothing was added to it."""

    def publish(self, name: str, value: int) -> None:
        """Set this process's share of a number."""

    def least(self, name: str) -> int:
        """Return the smallest share of a number that is not 0; 0 if all are."""

    def cells(self, name: str) -> Cells:
        """Return `CELLS` numbers that all processes read and write; the last writer counts. They
        are 0 until they are written, and exist while this process's share of the name is not 0."""

    def claim(self) -> AbstractContextManager[bool]:
        """Return a context manager, whose value is whether no other process is in such a block."""

    def touch(self) -> None:
        """Record that work has ended now."""

    def touched(self) -> float:
        """Return when work last ended in any process, on the clock of `time.monotonic`."""


class LocalCounts:
    """The numbers of a service of one process: see `ServiceCounts`."""

    shared = False
    processes = 1

    def __init__(self) -> None:
        self._values: Counter[str] = Counter()
        self._cells: dict[str, array[float]] = {}
        self._touched = 0.0

    def add(self, name: str, amount: int) -> int:
        self._values[name] += amount
        return self._values[name]

    def total(self, name: str) -> int:
        return self._values[name]

    def publish(self, name: str, value: int) -> None:
        self._values[name] = value

    def least(self, name: str) -> int:
        return self._values[name]

    def cells(self, name: str) -> Cells:
        return self._cells.setdefault(name, array("d", bytes(CELLS * NUMBER_BYTES)))

    def claim(self) -> AbstractContextManager[bool]:
        return nullcontext(True)

    def touch(self) -> None:
        self._touched = monotonic()

    def touched(self) -> float:
        return self._touched


class SharedCounts:
    """The numbers of several processes, in a file that all of them map into memory. See
    `ServiceCounts`.

    Args:
        file: a file that `make_table` made.
        row: this process's row; no other process writes it.
    """

    shared = True

    def __init__(self, file: Path, row: int) -> None:
        self._rows, self._row = _rows(file), row
        self.processes = self._rows
        values, times = NAMES * self._rows * NUMBER_BYTES, self._rows * NUMBER_BYTES
        cells = NAMES * CELLS * NUMBER_BYTES
        with file.open("r+b") as opened:
            # Single numbers of a memory view are read ten times as fast as those of a NumPy array.
            table = memoryview(mmap(opened.fileno(), 0))
        self._values = table[:values].cast("q")
        """The rows' shares of each name, one name after the other."""
        self._times = table[values : values + times].cast("d")
        self._cells = table[values + times : values + times + cells].cast("d")
        self._names = table[values + times + cells :]
        self._lock, self._claim = (FileLock(f"{file}.{kind}") for kind in ("lock", "claim"))
        self._columns: dict[str, tuple[int, bytes]] = {}

    def add(self, name: str, amount: int) -> int:
        column = self._column(name)
        self._values[column * self._rows + self._row] += amount
        return sum(self._shares(column))

    def total(self, name: str) -> int:
        column = self._found(name)
        return 0 if column is None else sum(self._shares(column))

    def publish(self, name: str, value: int) -> None:
        self._values[self._column(name) * self._rows + self._row] = value

    def least(self, name: str) -> int:
        column = self._found(name)
        if column is None:
            return 0
        return min((share for share in self._shares(column) if share), default=0)

    def cells(self, name: str) -> Cells:
        start = self._column(name) * CELLS
        return self._cells[start : start + CELLS]

    @contextmanager
    def claim(self) -> Iterator[bool]:
        try:
            held = self._claim.acquire(blocking=False)
        except Timeout:
            yield False
            return
        with held:
            yield True

    def touch(self) -> None:
        self._times[self._row] = monotonic()

    def touched(self) -> float:
        return max(self._times)

    def clear(self) -> None:
        """Set the row to 0, after its process has died."""
        for column in range(NAMES):
            self._values[column * self._rows + self._row] = 0

    def _shares(self, column: int) -> memoryview:
        """Return the shares of all processes in the number of a column."""
        return self._values[column * self._rows : (column + 1) * self._rows]

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
                free = [number for number in range(NAMES) if self._name(number) == UNNAMED]
                if not free:  # a column that counts nothing may be used for another name
                    free = [number for number in range(NAMES) if not any(self._shares(number))]
                if not free:
                    raise OverflowError(f"{NAMES} names are counted, and {name!r} is one more")
                column = free[0]
                for cell in range(column * CELLS, (column + 1) * CELLS):
                    self._cells[cell] = 0.0
                self._name(column)[:] = _encoded(name)
        return column

    def _name(self, column: int) -> memoryview:
        return self._names[column * NAME_BYTES : (column + 1) * NAME_BYTES]

    def _found(self, name: str) -> int | None:
        """Return the column of a name; None if nothing was added to it."""
        known = self._columns.get(name)
        if known is not None and self._name(known[0]) == known[1]:
            return known[0]
        encoded = _encoded(name)
        for column in range(NAMES):
            if self._name(column) == encoded:
                self._columns[name] = column, encoded
                return column
        return None


def _encoded(name: str) -> bytes:
    return name.encode()[:NAME_BYTES].ljust(NAME_BYTES, b"\0")


def _rows(file: Path) -> int:
    return (file.stat().st_size - _size(0)) // (_size(1) - _size(0))


def _size(rows: int) -> int:
    """Return the bytes of a table of so many rows."""
    return (rows * (NAMES + 1) + NAMES * CELLS) * NUMBER_BYTES + NAMES * NAME_BYTES


@contextmanager
def table(file: Path, rows: int) -> Iterator[Path]:
    """Make a table of so many rows; its file is removed when the block is left."""
    # Written and not truncated: memory that a full disk cannot hold would kill whoever touches it.
    file.touch(mode=0o600)
    file.write_bytes(bytes(_size(rows)))
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)
