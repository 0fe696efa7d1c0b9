"""What an engine is given to compute maps faster than by the exact path, which is all it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cam.agreement import Fidelity
from cam.passes.compiled_path import CompiledPath
from service.loading.served_model import ServedModel
from service.models.catalog import ModelEntry


@dataclass(frozen=True, eq=False)
class WarmPath:
    """A compiled path that has been compared with the exact path."""

    path: CompiledPath
    fidelities: dict[str, Fidelity]
    """Method name → fidelity, for each method that could be compared. Methods that could not be
    compared, or whose fidelity is not sufficient, must use the exact path."""
    seconds: float
    """Seconds for one image."""


PrepareFastPath = Callable[[float], WarmPath | None]
"""Prepares the fastest path that may be used, given the seconds that the exact path needs for all
the images; returns None if there is none."""
MakeFastPath = Callable[[ModelEntry, ServedModel], PrepareFastPath | None]
"""Returns what prepares the fast path of an entry's model, or None if the entry allows none. Raises
a ConfigError if the entry asks for what cannot be done."""


def no_fast_path(entry: ModelEntry, model: ServedModel) -> None:
    """Leave a model to the exact path."""
