"""A model and all that explains with it, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Final

from service.core.errors import RETRY_AFTER_SECONDS
from service.core.metrics import Metrics
from service.core.settings import Settings
from service.core.threads import one_each
from service.engine.manager import ModelManager
from service.engine.replicas import Replicas
from service.models.catalog import ModelEntry, read_catalog
from service.models.devices import devices
from service.pipeline.pipeline import Pipeline, make_pipeline

UNBOUNDED: Final = 2**31
REVIVAL_SECONDS: Final = 120.0
"""That a model may take to be loaded anew."""
MOST_COPIES: Final = 4
"""On the CPU: each is loaded, and takes its memory."""


@dataclass(frozen=True, eq=False)
class LocalSession:
    replicas: Replicas
    pipeline: Pipeline

    @property
    def at_once(self) -> int:
        """So many images under way keep every engine in full batches."""
        return 2 * sum(engine.model.max_batch for engine in self.replicas.engines)

    async def revival(self) -> None:
        """Wait until an engine works, where all were given up and are being replaced; not for
        ever."""
        until = monotonic() + REVIVAL_SECONDS
        while not self.replicas.alive and monotonic() < until:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(RETRY_AFTER_SECONDS)


@asynccontextmanager
async def local_session(
    settings: Settings, model: str | None, *, spread: bool = False
) -> AsyncIterator[LocalSession]:
    """Load a model of the catalog, the first unless one is named; leaving finishes its work.

    Args:
        spread: it has all of the machine, unless its entry says where it is: a copy on every
            accelerator, or several that share the cores. Of many images they explain more together
            than one whose threads wait for each other after each layer; a single one takes longer.

    Raises:
        ConfigError, UnknownModel
    """
    # Whoever works here asks for no more at once than there is work for; nobody is turned away.
    settings = settings.model_copy(update={"max_queue": UNBOUNDED})
    entries = read_catalog(settings.models)
    wanted = model or entries[0].name
    chosen = [entry for entry in entries if entry.name == wanted] or list(entries)
    if spread:
        chosen = [_spread(entry) for entry in chosen]
    metrics = Metrics()
    manager = ModelManager(chosen, settings=settings, metrics=metrics)
    pipeline = make_pipeline(settings, metrics)
    with one_each():
        async with pipeline, manager:
            if wanted in manager.names:
                await manager.loaded
            yield LocalSession(manager.replicas(wanted), pipeline)


def _spread(entry: ModelEntry) -> ModelEntry:
    if entry.device != "auto":
        return entry
    found = devices(MOST_COPIES)
    return entry if len(found) < 2 else entry.model_copy(update={"device": found})
