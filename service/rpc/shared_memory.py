"""Memory by which a process gives the engine its pixels.

The process that receives requests makes the memory, writes arrays into it, and tells the number of
its file descriptor. The engine opens that descriptor, and copies each array out as soon as it is
told where the array lies. The kernel frees the memory when both have ended, however they end.
"""

from __future__ import annotations

import os
from bisect import insort
from mmap import PROT_READ, mmap
from typing import Final

SIZE: Final = 1 << 26
"""Bytes of the memory of one process: three batches of 128 images of 224 × 224 pixels are 58 MB."""
PAGE: Final = 4096
"""Arrays begin at multiples of so many bytes."""
STEP: Final = 1 << 22
"""Bytes that are taken from the system at a time, once they are needed."""


class SharedMemory:
    """Memory of this process that another one can read. Its size is sealed, so that whoever reads
    it cannot be stopped by its end.

    `close` it.

    Raises:
        OSError: if the system has no such memory.
    """

    def __init__(self) -> None:
        import fcntl  # on Windows there is none

        if not hasattr(os, "memfd_create"):
            raise OSError("this system makes no anonymous files")
        self.descriptor = os.memfd_create("gradcam", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, SIZE)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)
            self._mapped = mmap(self.descriptor, SIZE)
        except BaseException:
            os.close(self.descriptor)
            raise
        self._there = 0
        """Bytes from the beginning that the system has given."""
        self._unused = [(0, SIZE)]
        """Beginnings and ends of the parts without an array, in their order."""
        self._ends: dict[int, int] = {}
        """Beginning of each array → its end."""

    def close(self) -> None:
        """Give the memory back."""
        self._mapped.close()
        os.close(self.descriptor)

    @property
    def used(self) -> int:
        """Number of arrays."""
        return len(self._ends)

    def put(self, array: memoryview) -> int | None:
        """Copy an array's bytes to the first place that is large enough; return where it begins,
        or None if there is no place."""
        size = array.nbytes + -array.nbytes % PAGE
        found = next((part for part in self._unused if part[1] - part[0] >= size), None)
        if found is None or not self._has(found[0] + size):
            return None
        begin, end = found
        self._unused.remove(found)
        if end - begin > size:
            insort(self._unused, (begin + size, end))
        self._mapped[begin : begin + array.nbytes] = array
        self._ends[begin] = begin + size
        return begin

    def free(self, begin: int) -> None:
        """Forget the array that begins there."""
        insort(self._unused, (begin, self._ends.pop(begin)))
        joined: list[tuple[int, int]] = []
        for part in self._unused:
            if joined and joined[-1][1] == part[0]:
                part = (joined.pop()[0], part[1])
            joined.append(part)
        self._unused = joined

    def _has(self, end: int) -> bool:
        """Take memory from the system up to a place; return whether there is so much. Without this,
        a write to memory that the system cannot give would end the process."""
        if end > self._there:
            there = min(end + -end % STEP, SIZE)
            try:
                os.posix_fallocate(self.descriptor, 0, there)
            except OSError:
                return False
            self._there = there
        return True


class OthersMemory:
    """The memory of another process, to read. `close` it."""

    def __init__(self, process: int, descriptor: int) -> None:
        """Open another process's `SharedMemory`.

        Raises:
            OSError: if this process cannot open it, or if its size may change.
        """
        import fcntl

        opened = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDONLY)
        try:
            if not fcntl.fcntl(opened, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise OSError("the memory may become smaller")
            self._mapped = mmap(opened, SIZE, prot=PROT_READ)
        except ValueError as error:  # it is smaller
            raise OSError(str(error)) from None
        finally:
            os.close(opened)

    def close(self) -> None:
        """Close the memory."""
        self._mapped.close()

    def copy(self, begin: int, size: int) -> bytearray:
        """Return a copy of an array's bytes.

        Raises:
            ValueError: if they do not lie in the memory.
        """
        if not 0 <= begin <= begin + size <= SIZE:
            raise ValueError(f"{size} bytes from {begin} on do not lie in {SIZE} bytes")
        return bytearray(memoryview(self._mapped)[begin : begin + size])
