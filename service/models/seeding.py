"""Random weights that depend on their seed alone: torch has one generator in the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Final, TypeVar

import torch

from service.models.catalog import ModelEntry

Made = TypeVar("Made")
LONGEST: Final = 600.0
"""Seconds that a model waits to be loaded for another one, which may have to be downloaded."""
_one_at_a_time = threading.Lock()


def seeded(load: Callable[[ModelEntry], Made]) -> Callable[[ModelEntry], Made]:
    """A function that draws from the generator while no other such function does, and leaves it as
    found.

    Raises:
        ConfigError: if another one does not end.
    """

    @wraps(load)
    def alone(entry: ModelEntry) -> Made:
        if not _one_at_a_time.acquire(timeout=LONGEST):
            raise entry.mistake("source", "another model has been loading for too long")
        try:
            with torch.random.fork_rng(devices=[]):
                return load(entry)
        finally:
            _one_at_a_time.release()

    return alone
