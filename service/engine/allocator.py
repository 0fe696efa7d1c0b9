"""Memory that a batch gives back is kept for the next one.

glibc returns large blocks to the system at once and asks for them anew, and the system clears every
page of them again: half a million page faults for a batch of 32, a third of its time.
"""

from __future__ import annotations

import ctypes
import platform

import torch

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
"""Of mallopt(3)."""
KEPT_BYTES = 2**31 - 1
"""Most that is kept free for the next batch: as much as mallopt can be told."""
NO_MEMORY = "can't allocate memory"
"""How torch's allocator for the CPU says so, in a RuntimeError."""


def keep_memory() -> bool:
    """Tell the process's allocator so, for good; call it before threads start.

    Returns:
        Whether it could be told: only glibc knows how.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # No block of its own for what is large; one heap for all threads, since those of single
    # threads hold no more than 64 MB; and its top stays.
    told = [mallopt(M_MMAP_MAX, 0), mallopt(M_ARENA_MAX, 1), mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)]
    return all(told)


def give_back_memory() -> None:
    """Return what is free to the system, for when nothing is to be done: one photo of fifty
    megapixels would else be remembered by its gigabyte."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def is_of_memory(error: Exception) -> bool:
    """Whether it says that there is none left."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or NO_MEMORY in str(error)
