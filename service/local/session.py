"""A model and the pipeline that explains images with it, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Final

from service.core.errors import RETRY_AFTER_SECONDS
from service.core.metrics import Metrics
from service.core.settings import CoreSettings
from service.core.threads import one_each
from service.engine.manager import ModelManager
from service.engine.replicas import Replicas
from service.loading.devices import devices
from service.models.catalog import ModelEntry, read_catalog
from service.pipeline.pipeline import Pipeline, make_pipeline
from service.runtimes.warming import fast_path

UNBOUNDED: Final = 2**31
REVIVAL_SECONDS: Final = 120.0
"""Longest wait for a model to be loaded again."""
MOST_COPIES: Final = 4
"""Maximum number of copies of a model on the CPU; each is loaded and takes its own memory."""


@dataclass(frozen=True, eq=False)
class LocalSession:
    replicas: Replicas
    pipeline: Pipeline

    @property
    def at_once(self) -> int:
        """Number of images in progress that keeps the batches of every engine full."""
        return 2 * self.replicas.copies * self.replicas.model.max_batch

    async def revival(self) -> None:
        """Wait until an engine is alive, at most `REVIVAL_SECONDS`, while abandoned engines are
        replaced."""
        until = monotonic() + REVIVAL_SECONDS
        while not self.replicas.alive and monotonic() < until:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(RETRY_AFTER_SECONDS)


@asynccontextmanager
async def local_session(
    settings: CoreSettings, model: str | None, *, spread: bool = False, images: int | None = None
) -> AsyncIterator[LocalSession]:
    """Load a model of the catalog, by default the first one. Leaving the block finishes its work.
    The model is not watched, so that its reference is not read, which may not be there yet.

    Args:
        spread: whether the model uses the whole machine, unless its catalog entry names a device:
            with a copy on every accelerator, or several copies on the CPU that share the cores.
            Several copies explain many images faster than one whose threads wait for each other
            after each layer; a single image takes longer.
        images: number of images that will be explained; None if that is not known.

    Raises:
        ConfigError, UnknownModel
    """
    # The users of a session limit the images in progress themselves, so the queue refuses none; and
    # the cache of answers is useless, because no question is asked twice.
    settings = settings.model_copy(update={"max_queue": UNBOUNDED, "cache_bytes": 0})
    entries = read_catalog(settings.models, name=settings.only_name())
    wanted = model or entries[0].name
    chosen = [entry for entry in entries if entry.name == wanted] or list(entries)
    chosen = [entry.model_copy(update={"reference": None}) for entry in chosen]
    if spread:
        chosen = [_spread(entry) for entry in chosen]
    metrics = Metrics()
    manager = ModelManager(
        chosen,
        settings=settings,
        metrics=metrics,
        images=images,
        fast_path=fast_path,
    )
    pipeline = make_pipeline(settings, metrics)
    with one_each():
        async with pipeline, manager:
            if wanted in manager.names:
                await manager.loaded
            yield LocalSession(manager.replicas(wanted), pipeline)


def _spread(entry: ModelEntry) -> ModelEntry:
    if entry.device != "auto":
        return entry
    names = devices(MOST_COPIES)
    return entry if len(names) < 2 else entry.model_copy(update={"device": names})
