"""The devices and CPU cores that torch computes with, and the errors that their memory is full."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import torch

_BINDING = Lock()
NO_MEMORY = "can't allocate memory"
"""Part of the RuntimeError's message by which torch's CPU allocator reports that memory is
exhausted."""


def usable() -> list[int]:
    """Return the numbers of the CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # macOS does not have it
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def accelerators() -> list[str]:
    """Return the name of every available accelerator, as torch names it: "cuda:0" …"""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return []
    return [f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count())]


def devices(most_shares: int) -> list[str]:
    """Return the names of all available accelerators; without any, "cpu" once for each share of
    the cores, at most `most_shares` times."""
    return accelerators() or ["cpu"] * min(len(usable()), most_shares)


def bind(cores: Sequence[int] | None) -> None:
    """Restrict this thread, and the threads that torch starts from it, to some CPU cores. Without
    this, each of several engines would start as many threads as there are cores.

    Every other thread, now or later, keeps the thread count and the cores that it would have had.

    Args:
        cores: numbers of the cores; None for no restriction.
    """
    # torch.set_num_threads sets two counts: that of the calling thread, and the default that every
    # thread adopts when it first computes. No other thread may adopt the default before it is
    # restored.
    with _BINDING:
        torch.get_num_threads()  # adopts the default now; adopting it later would undo the setting
        if cores is None:
            return
        with ThreadPoolExecutor(1) as unbound:
            before = unbound.submit(torch.get_num_threads).result()
            torch.set_num_threads(len(cores))
            unbound.submit(torch.set_num_threads, before).result()
    if hasattr(os, "sched_setaffinity"):  # macOS does not have it
        os.sched_setaffinity(0, cores)


def use_all() -> None:
    """Set torch's number of threads to the number of cores if there is no accelerator, whatever the
    environment sets."""
    if not torch.accelerator.is_available():
        torch.set_num_threads(os.cpu_count() or 1)


def is_of_memory(error: Exception) -> bool:
    """Return whether the error says that memory is exhausted."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or NO_MEMORY in str(error)
