"""What a method of many passes reports: its progress, the passes it made, and its completeness."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True)
class Progress:
    """Progress of a method, in forward passes of one image."""

    done: int
    total: int
    method: str | None = None
    """Name of the method, if several methods explain the image."""


@dataclass(frozen=True)
class Completeness:
    """Whether attributions add up to what they explain."""

    attributed: float
    """Sum of all attributions, positive and negative."""
    difference: float
    """Value that the sum should have: the score, minus that of the baseline if there is one."""


@dataclass(frozen=True)
class Passes:
    """Number of passes that a method of many passes has made."""

    made: int
    of: int
    """Number of passes that the formula needs; a method of channels then uses all channels."""
    stopped: bool = False
    """Whether the time ran out before the budget was used."""
    chosen: str | None = None
    """What the passes are made for if the budget is too small for all."""

    @property
    def warning(self) -> str | None:
        """Warning that passes are missing; None if all were made."""
        if self.made >= self.of:
            return None
        share = f"{self.made} of the {self.of} passes that the method takes were made"
        if self.stopped:
            return f"{share}, because the time ran out; a job has no time limit"
        choice = f", for the {self.chosen}" if self.chosen else ""
        return f"{share}{choice}; a larger budget allows more"


def finish(steps: Generator[Progress, None, Value]) -> Value:
    """Run all steps and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            value: Value = stop.value
            return value
