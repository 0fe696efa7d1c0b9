"""With which devices, and how many cores, torch computes."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch


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


def bind(cores: Sequence[int]) -> None:
    """This thread, and those that torch starts from it, to some cores; else the threads of several
    engines would each expect to have all of them."""
    if hasattr(os, "sched_setaffinity"):  # not on macOS
        os.sched_setaffinity(0, cores)
    torch.set_num_threads(len(cores))


def use_all() -> None:
    """Compute with every core, where there is no accelerator to do it; whatever the host said."""
    if not torch.accelerator.is_available():
        torch.set_num_threads(os.cpu_count() or 1)
