"""The administration of models, as `service.features.adapters` adds it to the app."""

from __future__ import annotations

from service.features.administration.routes import (
    AdministrationRoutes,
    make_administration_router,
)
from service.http.adapter import Added, AppParts


def administration(parts: AppParts) -> Added:
    """Add the routes that add and remove models."""
    return Added([make_administration_router(AdministrationRoutes(parts))])
