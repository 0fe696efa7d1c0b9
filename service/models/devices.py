"""With which devices, and how many cores, torch computes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import torch

_BINDING = Lock()


def usable() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def accelerators() -> list[str]:
    """Every accelerator that there is, as torch names it: "cuda:0" …"""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return []
    return [f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count())]


def devices(most_shares: int) -> list[str]:
    """Every accelerator that there is, or else "cpu" for each share of the cores."""
    return accelerators() or ["cpu"] * min(len(usable()), most_shares)


def bind(cores: Sequence[int] | None) -> None:
    """Let this thread, and those that torch starts from it, compute with some cores alone; else the
    threads of several engines would each expect to have all of them.

    Every other thread, now or later, keeps the count and the cores that it would have had.

    Args:
        cores: their numbers; None for all that the process computes with.
    """
    # torch.set_num_threads sets the calling thread's count, and the one that every thread takes on
    # when it first computes. Until that is put back no other thread may take it on.
    with _BINDING:
        torch.get_num_threads()  # takes it on, which later would undo what is set here
        if cores is None:
            return
        with ThreadPoolExecutor(1) as unbound:
            before = unbound.submit(torch.get_num_threads).result()
            torch.set_num_threads(len(cores))
            unbound.submit(torch.set_num_threads, before).result()
    if hasattr(os, "sched_setaffinity"):  # not on macOS
        os.sched_setaffinity(0, cores)


def use_all() -> None:
    """Compute with every core, where there is no accelerator to do it; whatever the host said."""
    if not torch.accelerator.is_available():
        torch.set_num_threads(os.cpu_count() or 1)
