"""What a watch for drift is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from cam.drift.origin import Origin
from cam.drift.shift import Comparison
from service.backend.watch import Watch, WatchWork


@dataclass(frozen=True)
class Drift:
    """The comparison of the maps that a model serves with those of its reference."""

    origin: Origin
    """The model, method and layer whose maps are watched."""
    recorded: int
    """Number of maps recorded since the model was loaded, until the comparison."""
    size: int
    """Number of the latest maps of each series that are compared."""
    made: str | None
    """When the reference was made, in ISO 8601; None without a reference."""
    photos: int
    """Number of photos of the reference that are compared; 0 without one."""
    comparison: Comparison | None
    """None without a reference."""


@runtime_checkable
class ComparesDrift(Protocol):
    """A watch that compares what it was told."""

    async def drift(self) -> Drift:
        """Compare the maps that were served lately with those of the reference."""


@dataclass(frozen=True)
class CompareDrift(WatchWork[Drift]):
    """Compares the maps that were served lately with those of the model's reference."""

    async def result(self, watches: Sequence[Watch]) -> Drift:
        (watch,) = (each for each in watches if isinstance(each, ComparesDrift))
        return await watch.drift()
