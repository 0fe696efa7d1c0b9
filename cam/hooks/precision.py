"""Switch autocast off where cam computes maps, and restore it where the model runs.

with torch.autocast("cuda"):                 # set by the caller
    with full_precision():
        ...                                  # float32
        with callers_precision():
            logits = model(images)           # autocast again
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, TypeVar

import torch

_DEVICES: Final = ("cpu", "cuda", "mps", "xpu")
_callers = threading.local()

Yielded = TypeVar("Yielded")
Returned = TypeVar("Returned")


@contextmanager
def full_precision() -> Iterator[None]:
    """Switch autocast off in this block and thread, except in its `callers_precision` blocks."""
    before = getattr(_callers, "autocasts", [])
    enabled = [
        (device, torch.get_autocast_dtype(device))
        for device in _DEVICES
        if torch.is_autocast_enabled(device)
    ]
    _callers.autocasts = enabled or before
    try:
        with ExitStack() as scope:
            for device, _ in enabled:
                scope.enter_context(torch.autocast(device, enabled=False))
            yield
    finally:
        _callers.autocasts = before


@contextmanager
def callers_precision() -> Iterator[None]:
    """Restore the autocast that was active around the outermost `full_precision` block."""
    with ExitStack() as scope:
        for device, dtype in getattr(_callers, "autocasts", []):
            scope.enter_context(torch.autocast(device, dtype=dtype))
        yield


def steps_in_full_precision(
    steps: Generator[Yielded, None, Returned],
) -> Generator[Yielded, None, Returned]:
    """Yield from the generator and run each of its steps in `full_precision`."""
    while True:
        with full_precision():
            try:
                progress = next(steps)
            except StopIteration as stop:
                returned: Returned = stop.value
                return returned
        yield progress
