"""Settings of glibc's allocator that keep the memory of one batch for the next one, and of Python's
garbage collection.

By default glibc returns large blocks to the system at once and requests new ones. The system clears
every page of these again: half a million page faults for a batch of 32, a third of its run time.
"""

from __future__ import annotations

import ctypes
import gc
import platform

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
"""Parameters of mallopt(3)."""
KEPT_BYTES = 2**31 - 1
"""Most free bytes that the allocator keeps for the next batch: the largest value that mallopt
accepts."""

NEW_OBJECTS = 10_000
"""Number of new objects after which the engine's process searches them for garbage. By default it
is 700: where hundreds of images are in progress, that takes a quarter of its time and finds
nothing."""


def keep_memory() -> bool:
    """Make the process's allocator keep freed memory, permanently. Call this before threads start.

    Returns:
        Whether it succeeded; only glibc supports these settings.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # Large blocks get no mapping of their own; all threads share one heap, since the heaps of
    # single threads hold at most 64 MB; and the top of the heap is not returned.
    told = [mallopt(M_MMAP_MAX, 0), mallopt(M_ARENA_MAX, 1), mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)]
    return all(told)


def give_back_memory() -> None:
    """Return free memory to the system. Call this when the process is idle; otherwise it would keep
    the gigabyte that a single photo of 50 megapixels needed."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def settle(*, seldom: bool = False) -> None:
    """Leave the objects of now, which stay alive, out of garbage collection. Each collection that
    searched the models' objects would delay every request by a third of a second.

    Args:
        seldom: whether the new ones are searched less often. Not where photos are decoded: what an
            error leaves in a cycle may be as large as a photo.
    """
    gc.collect()
    gc.freeze()
    if seldom:
        gc.set_threshold(NEW_OBJECTS)
