"""A model from loading to unloading: ready, its worker given up and replaced, leaving."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from time import perf_counter

from service.core.errors import one_line
from service.core.metrics import Metrics
from service.engine.engine import Engine
from service.engine.replicas import Replicas
from service.models.catalog import ModelEntry
from service.models.devices import bind, usable
from service.models.registry import ServedModel, load

LOOK_SECONDS = 0.25
AGAIN_SECONDS = 5.0
"""Before a worker is made once more that could not be."""
log = logging.getLogger(__name__)


class ModelLifecycle:
    """Loads a model, watches over its workers, and lets it go.

    Args:
        essential: the service is not ready without it.
        max_queue: images waiting for it.
        hang_seconds: that a forward pass may take.
    """

    def __init__(
        self,
        entry: ModelEntry,
        *,
        essential: bool,
        max_queue: int,
        cache_bytes: int,
        hang_seconds: float,
        metrics: Metrics,
    ) -> None:
        self.entry = entry
        self.essential = essential
        self.replicas: Replicas | None = None
        self.failure: str | None = None
        """Why it could not be loaded."""
        self.leaving = False
        self.given_up = 0
        """Workers that hung: each is a thread, and a copy of the model, until the process ends."""
        self.loading = False
        """Whether a thread builds the model, even for nobody any more."""
        self._queue = -(-max_queue // len(entry.copies))
        self._cache_bytes = cache_bytes
        self._hang_seconds = hang_seconds
        self._metrics = metrics
        self._open: dict[Engine, AsyncExitStack] = {}
        """Each engine in its own scope: one that hangs keeps no other from leaving."""
        self._layouts: dict[str, str] = {}
        """Of copies on each kind of device: the first one's. Else the last bits of a map would
        depend on which of them computed it."""

    @property
    def ready(self) -> bool:
        return self.replicas is not None and self.replicas.alive and not self.leaving

    @property
    def why_not_ready(self) -> str:
        """A sentence's end: model 'x' is …"""
        if self.leaving:
            return "being unloaded"
        return "still loading" if self.replicas is None else "getting a new worker"

    async def load(self) -> None:
        """
        Raises:
            ConfigError: naming what in the entry is wrong.
        """
        started = perf_counter()
        log.info("loading model %s", self.entry.name)
        try:
            engines = [
                await self._engine(turn, copy) for turn, copy in enumerate(self.entry.copies)
            ]
        except Exception as error:
            self.failure = one_line(error)
            raise
        self.replicas = Replicas(engines, cache_bytes=self._cache_bytes, metrics=self._metrics)
        log.info(
            "model %s ready on %s after %.1f s, default layer %s",
            self.entry.name,
            self.replicas.devices,
            perf_counter() - started,
            self.replicas.model.default_layer,
        )

    async def watch(self) -> None:
        """Replace workers that have ended, or whose forward pass hangs, until cancelled."""
        assert self.replicas
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for turn, engine in enumerate(self.replicas.engines):
                hangs = engine.running_seconds > self._hang_seconds
                if engine.alive and not hangs:
                    continue
                if engine in self._open:  # or it is given up, and there is no other one yet
                    await self._give_up(engine, hangs=hangs)
                try:
                    self.replicas.replace(turn, await self._engine(turn, self.entry.copies[turn]))
                except Exception:
                    log.exception("model %s: its worker cannot be replaced", self.entry.name)
                    await asyncio.sleep(AGAIN_SECONDS)

    async def _give_up(self, engine: Engine, *, hangs: bool) -> None:
        log.error(
            "a worker of model %s %s; it is replaced",
            self.entry.name,
            f"hangs for {engine.running_seconds:.0f} s" if hangs else "has ended",
        )
        self.given_up += hangs
        await engine.abandon()
        await self._open.pop(engine).aclose()
        self._metrics.worker_restarts.labels(model=self.entry.name).inc()

    async def leave(self, seconds: float) -> None:
        """Take nothing new, finish what is queued, for so long at most; then end the workers."""
        self.leaving = True
        leaving = {asyncio.create_task(scope.aclose()): e for e, scope in self._open.items()}
        late = (await asyncio.wait(leaving, timeout=seconds))[1] if leaving else set()
        for task in late:
            self.given_up += leaving[task].running_seconds > 0
            await leaving[task].abandon()
        await asyncio.gather(*leaving)
        self._open.clear()
        self.replicas = None

    async def _engine(self, turn: int, copy: ModelEntry) -> Engine:
        engine = Engine(
            await asyncio.to_thread(self._load, copy),
            max_queue=self._queue,
            metrics=self._metrics,
            cores=_cores(self.entry)[turn],
        )
        scope = self._open[engine] = AsyncExitStack()
        await scope.enter_async_context(engine)
        try:
            await engine.warm()
        except Exception:  # one who is cancelled leaves it to `leave`, which does not wait for ever
            await self._open.pop(engine).aclose()
            raise
        return engine

    def _load(self, copy: ModelEntry) -> ServedModel:
        assert isinstance(copy.device, str)
        kind = copy.device.split(":")[0]
        if copy.layout == "auto" and kind in self._layouts:
            copy = copy.model_copy(update={"layout": self._layouts[kind]})
        bind(None)  # "auto" tries layouts with as many threads as the process has
        self.loading = True
        try:
            model = load(copy)
        finally:
            self.loading = False
        self._layouts[kind] = "channels-last" if model.channels_last else "contiguous"
        return model


def _cores(entry: ModelEntry) -> list[list[int] | None]:
    """For each of an entry's copies the cores that it is bound to: one of several on the CPU gets
    its share of them, any other all.

    Raises:
        ConfigError: if there are not enough.
    """
    on_cpu = [copy.device == "cpu" for copy in entry.copies]
    if sum(on_cpu) < 2:
        return [None] * len(on_cpu)
    cores = usable()
    if len(cores) < sum(on_cpu):
        raise entry.mistake(
            "device", f"{sum(on_cpu)} copies on the CPU need as many cores; there are {len(cores)}"
        )
    shares = iter([cores[turn :: sum(on_cpu)] for turn in range(sum(on_cpu))])
    return [next(shares) if each else None for each in on_cpu]
