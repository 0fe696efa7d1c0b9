"""Drift, as `service.features.adapters` adds it to the app."""

from __future__ import annotations

from service.features.drift.routes import make_drift_router
from service.http.adapter import Added, AppParts


def drift(parts: AppParts) -> Added:
    """Add the route that compares the maps of a live model with its reference."""
    return Added([make_drift_router(parts.manager)])
