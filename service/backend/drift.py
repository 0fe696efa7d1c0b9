"""How the maps of a live model compare with those of its reference, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from cam.drift.reference import Origin
from cam.drift.shift import Comparison


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
