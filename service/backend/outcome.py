"""A result of the engine, with its times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True)
class Outcome(Generic[Value]):
    """A result, with the time that its item waited and the time that it ran."""

    value: Value
    queued_seconds: float
    run_seconds: float
    """Run time of the whole batch."""
    batch_size: int
