"""The app with its engine in the same process."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI

from service.core.metrics import Metrics
from service.core.settings import Settings
from service.engine.manager import ModelManager
from service.http.app import make_app
from service.models.catalog import EMBEDDED, ModelEntry


def create_app(
    settings: Settings, entries: Sequence[ModelEntry] = (EMBEDDED,), *, again: bool = False
) -> FastAPI:
    """Create the app that serves these models. They load when the app starts, not before;
    `app.state.manager` reports their state.

    Args:
        again: whether it replaces one whose process has died.
    """
    metrics = Metrics()
    if again:
        metrics.count_restart(entry.name for entry in entries)
    manager = ModelManager(entries, settings=settings, metrics=metrics)
    return make_app(settings, entries, manager=manager, metrics=metrics)
