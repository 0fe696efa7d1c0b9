"""The app with its engine in the same process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fastapi import FastAPI

from service.core.metrics import Metrics
from service.engine.manager import ModelManager
from service.features import adapters, operations
from service.http.app import make_app
from service.models.catalog import EMBEDDED, ModelEntry
from service.models.journal import Journal
from service.settings import Settings

OPERATIONS, ADAPTERS = operations(), adapters()


def create_app(
    settings: Settings,
    entries: Sequence[ModelEntry] = (EMBEDDED,),
    *,
    again: bool = False,
    journal: Path | None = None,
) -> FastAPI:
    """Create the app that serves these models. They load when the app starts, not before;
    `app.state.manager` reports their state.

    Args:
        again: whether it replaces one whose process has died.
        journal: the file of the models that are added and removed while the service runs.
    """
    metrics = Metrics()
    if again:
        metrics.count_restart(entry.name for entry in entries)
    manager = ModelManager(entries, settings=settings, metrics=metrics, journal=Journal(journal))
    return make_app(
        settings,
        entries,
        operations=OPERATIONS,
        adapters=ADAPTERS,
        manager=manager,
        metrics=metrics,
    )
