"""The app with its engine in the same process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fastapi import FastAPI

from service.core.metrics import Metrics
from service.engine.manager import ModelManager
from service.features import adapters, journals, operations, watches
from service.http.app import make_app
from service.models.catalog import EMBEDDED, ModelEntry
from service.runtimes.warming import fast_path
from service.settings import Settings

OPERATIONS, ADAPTERS = operations(), adapters()


def create_app(
    settings: Settings,
    entries: Sequence[ModelEntry] = (EMBEDDED,),
    *,
    again: bool = False,
    folder: Path | None = None,
) -> FastAPI:
    """Create the app that serves these models. They load when the app starts, not before;
    `app.state.manager` reports their state.

    Args:
        again: whether it replaces one whose process has died.
        folder: the folder of what outlives the process; without it, nothing does.
    """
    metrics = Metrics()
    if again:
        metrics.count_restart(entry.name for entry in entries)
    journal = next((make(folder) for make in journals() if folder), None)
    manager = ModelManager(
        entries,
        settings=settings,
        metrics=metrics,
        journal=journal,
        watches=watches(),
        fast_path=fast_path,
    )
    return make_app(
        settings,
        entries,
        operations=OPERATIONS,
        adapters=ADAPTERS,
        manager=manager,
        metrics=metrics,
    )
