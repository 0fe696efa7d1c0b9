"""The engines of all models, from loading to drained."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from time import perf_counter
from types import TracebackType

from service.catalog import ModelEntry
from service.crew import Crew
from service.engine import RETRY_AFTER_SECONDS, Engine
from service.errors import Unavailable, UnknownModel
from service.metrics import Metrics
from service.registry import load

log = logging.getLogger(__name__)


class Fleet:
    """Loads and warms every model of the catalog in the background, one after the other.

    Use with `async with`. Entering returns at once, so the port can open and say "loading";
    `loaded` is done when all models are ready, or raises the ConfigError that kept one from it.
    Leaving drains: every engine finishes what is queued.
    """

    loaded: asyncio.Task[None]

    def __init__(
        self,
        entries: Sequence[ModelEntry],
        *,
        max_queue: int,
        metrics: Metrics,
        cache_bytes: int = 0,
    ) -> None:
        self._entries = {entry.name: entry for entry in entries}
        self._max_queue = max_queue
        self._cache_bytes = cache_bytes
        self._metrics = metrics
        self._crews: dict[str, Crew] = {}
        self._scope = AsyncExitStack()
        self.draining = False

    async def __aenter__(self) -> Fleet:
        self.draining = False
        self.loaded = asyncio.create_task(self._load(), name="load models")
        # Whoever waits gets the exception; if nobody does, it is not "never retrieved".
        self.loaded.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.draining = True
        self.loaded.cancel()
        await asyncio.wait([self.loaded])
        await self._scope.aclose()
        self._crews.clear()

    @property
    def names(self) -> list[str]:
        return list(self._entries)

    @property
    def ready(self) -> bool:
        """Whether every model is warm, its worker alive, and nothing is being drained."""
        return not self.draining and all(self.model_ready(name) for name in self._entries)

    def model_ready(self, name: str) -> bool:
        return name in self._crews and self._crews[name].alive

    def why_not_ready(self) -> str:
        if self.draining:
            return "the service is shutting down"
        loading = [name for name in self._entries if name not in self._crews]
        if loading:
            return f"still loading: {', '.join(loading)}"
        ended = [name for name in self._entries if not self.model_ready(name)]
        return f"the worker has ended: {', '.join(ended)}" if ended else "ready"

    def crew(self, name: str) -> Crew:
        """The engines of a model.

        Raises:
            UnknownModel: naming the models that there are.
            Unavailable: while it loads or the service drains.
        """
        if name not in self._entries:
            raise UnknownModel(
                f"there is no model {name[:80]!r}; the models are {', '.join(self._entries)}"
            )
        if self.draining:
            raise Unavailable(
                "the service is shutting down; try again", retry_after=RETRY_AFTER_SECONDS
            )
        if not self.model_ready(name):
            raise Unavailable(
                f"model {name!r} is still loading; try again", retry_after=RETRY_AFTER_SECONDS
            )
        return self._crews[name]

    def measure(self) -> None:
        """Bring the gauges up to date."""
        for name in self._entries:
            self._metrics.model_ready.labels(model=name).set(self.model_ready(name))
            depth = self._crews[name].waiting if name in self._crews else 0
            self._metrics.queue_depth.labels(model=name).set(depth)

    async def _load(self) -> None:
        for name, entry in self._entries.items():
            started = perf_counter()
            engines = []
            copies = entry.copies
            for copy, cores in zip(copies, _cores(entry), strict=True):
                model = await asyncio.to_thread(load, copy)
                engine = Engine(
                    model,
                    max_queue=-(-self._max_queue // len(copies)),
                    metrics=self._metrics,
                    cores=cores,
                )
                await self._scope.enter_async_context(engine)
                await engine.warm()
                engines.append(engine)
            crew = Crew(engines, cache_bytes=self._cache_bytes, metrics=self._metrics)
            self._crews[name] = crew
            log.info(
                "model %s ready on %s after %.1f s, default layer %s",
                name,
                crew.devices,
                perf_counter() - started,
                crew.model.default_layer,
            )


def _cores(entry: ModelEntry) -> list[list[int] | None]:
    """For each of an entry's copies the cores that it is bound to: one of several on the CPU gets
    its share of them, any other all.

    Raises:
        ConfigError: if there are not enough.
    """
    on_cpu = [copy.device == "cpu" for copy in entry.copies]
    if sum(on_cpu) < 2:
        return [None] * len(on_cpu)
    affinity = getattr(os, "sched_getaffinity", None)
    cores = sorted(affinity(0)) if affinity else list(range(os.cpu_count() or 1))
    if len(cores) < sum(on_cpu):
        raise entry.mistake(
            "device", f"{sum(on_cpu)} copies on the CPU need as many cores; there are {len(cores)}"
        )
    shares = iter([cores[turn :: sum(on_cpu)] for turn in range(sum(on_cpu))])
    return [next(shares) if each else None for each in on_cpu]
