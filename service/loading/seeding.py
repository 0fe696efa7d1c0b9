"""A decorator for loading models one at a time, so that random weights depend only on their seed.

torch has a single random generator for the CPU in the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, Final, ParamSpec, TypeVar

import torch

from service.models.catalog import ModelEntry

Made = TypeVar("Made")
Rest = ParamSpec("Rest")
LONGEST: Final = 600.0
"""Seconds that loading a model waits for another model, which may have to be downloaded."""
_one_at_a_time = threading.Lock()


def seeded(
    load: Callable[Concatenate[ModelEntry, Rest], Made],
) -> Callable[Concatenate[ModelEntry, Rest], Made]:
    """Wrap `load` so that only one wrapped function runs at a time, and so that the random
    generator has the same state afterwards as before.

    Raises:
        ConfigError: (the wrapped function) if another one is still running after `LONGEST` seconds.
    """

    @wraps(load)
    def alone(entry: ModelEntry, /, *given: Rest.args, **named: Rest.kwargs) -> Made:
        if not _one_at_a_time.acquire(timeout=LONGEST):
            raise entry.mistake("source", "another model has been loading for too long")
        try:
            with torch.random.fork_rng(devices=[]):
                return load(entry, *given, **named)
        finally:
            _one_at_a_time.release()

    return alone
