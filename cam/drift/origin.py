"""What made the maps of a model that is watched."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Origin:
    """What made the maps. Only maps of one origin can be compared."""

    model: str
    """The model's name."""
    weights: str
    """Fingerprint of the model's weights and settings."""
    method: str
    layer: str
    fit: str
    """How photos were fitted to the model's input: "crop", "squash" or "pad"."""
