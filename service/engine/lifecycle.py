"""The lifecycle of one model: loading it, replacing workers that hang or end, and unloading it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from time import perf_counter

from cam.errors import NothingDetected
from service.backend.watch import MakeWatch, Watch
from service.core.disk_cache import OFF, DiskCache
from service.core.errors import ConfigError, one_line
from service.core.metrics import Metrics
from service.core.pool import in_own_thread
from service.engine.engine import Engine
from service.engine.fast_path import MakeFastPath, PrepareFastPath, no_fast_path
from service.engine.replicas import Replicas
from service.loading.devices import bind, usable
from service.loading.served_model import ServedModel, check, load
from service.models.catalog import ModelEntry

LOOK_SECONDS = 0.25
AGAIN_SECONDS = 5.0
"""Seconds between a failed attempt to replace a worker and the next one."""
log = logging.getLogger(__name__)


class ModelLifecycle:
    """Loads a model, monitors its workers, and unloads it.

    Args:
        essential: whether the service is ready only if this model is ready.
        max_queue: largest number of images that wait for the model, on all devices together.
        fitting: returns the number of images that may wait for a device although `max_queue` is
            smaller, by the size of its largest batch.
        patience: seconds that an image may wait before the newest ones are taken first.
        cache_bytes: size of the cache of answers, in bytes.
        hang_seconds: seconds after which a batch that still runs counts as hung.
        cache: keeps what is found out about the model for the next start.
        images: number of images that will be explained; None if that is not known.
        watches: make who is told the answers to live traffic.
        fast_path: makes what prepares the model's fast path.
        changed: called when the model is loaded, or cannot be, and when a worker has ended or been
            replaced.
    """

    def __init__(
        self,
        entry: ModelEntry,
        *,
        essential: bool,
        max_queue: int,
        fitting: Callable[[int], int] = lambda batch: 0,
        patience: float = 0.0,
        cache_bytes: int,
        hang_seconds: float,
        metrics: Metrics,
        cache: DiskCache = OFF,
        images: int | None = None,
        watches: Sequence[MakeWatch] = (),
        fast_path: MakeFastPath = no_fast_path,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.entry = entry
        self.essential = essential
        self.replicas: Replicas | None = None
        self.failure: str | None = None
        """Reason why the model could not be loaded; None if there is none."""
        self.leaving = False
        self.given_up = 0
        """Number of workers that hung. Each keeps its thread and a copy of the model until the
        process ends."""
        self.loading = False
        """Whether a thread builds the model, even if its result is no longer needed."""
        self._loader = f"load {entry.name}"
        """Name of the thread that builds the model."""
        self._queue = -(-max_queue // len(entry.copies))
        self._fitting = fitting
        self._patience = patience
        self._cache_bytes = cache_bytes
        self._hang_seconds = hang_seconds
        self._metrics = metrics
        # A counter that appears with its first event has no increase, and its alert stays silent.
        metrics.worker_restarts.labels(model=entry.name)
        self._cache = cache
        self._make_watches = watches
        self._make_fast_path = fast_path
        self._watches: list[Watch] = []
        self._changed = changed
        self._images = images
        self._open: dict[Engine, AsyncExitStack] = {}
        """Engine → its own exit stack, so that an engine that hangs does not keep the others from
        closing."""
        self._chosen: dict[str, dict[str, str]] = {}
        """Kind of device → memory layout and runtime of the first copy on it. All copies on that
        kind of device use these; otherwise the last bits of a map would depend on the copy that
        computed it."""

    @property
    def ready(self) -> bool:
        return self.replicas is not None and self.replicas.alive and not self.leaving

    @property
    def why_not_ready(self) -> str:
        """Reason, worded as the end of the sentence "model 'x' is …"."""
        if self.leaving:
            return "being unloaded"
        return "still loading" if self.replicas is None else "getting a new worker"

    async def check(self) -> None:
        """Check the model's entry, without building the model.

        Raises:
            ConfigError: if the entry cannot be right; the message names its key.
        """
        try:
            await in_own_thread(self._loader, partial(check, self.entry))
        except ConfigError as error:
            self.failure = one_line(error)
            raise

    async def load(self) -> None:
        """Load the model on each of its devices, one after the other, and warm it.

        Raises:
            ConfigError: if the model cannot be loaded; the message names the key of its entry.
        """
        started = perf_counter()
        log.info("loading model %s", self.entry.name)
        try:
            engines = [
                await self._engine(turn, copy) for turn, copy in enumerate(self.entry.copies)
            ]
        except Exception as error:
            self.failure = one_line(error)
            self._changed()
            raise
        self.replicas = Replicas(
            engines,
            cache_bytes=self._cache_bytes,
            metrics=self._metrics,
            watches=self._watches,
        )
        self._changed()
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
                hangs = engine.batcher.running_seconds > self._hang_seconds
                if engine.batcher.alive and not hangs:
                    continue
                if engine in self._open:  # else it is abandoned already, but not replaced yet
                    await self._give_up(engine, hangs=hangs)
                try:
                    self.replicas.replace(turn, await self._engine(turn, self.entry.copies[turn]))
                except Exception:
                    log.exception("model %s: its worker cannot be replaced", self.entry.name)
                    await asyncio.sleep(AGAIN_SECONDS)
                else:
                    self._changed()

    async def _give_up(self, engine: Engine, *, hangs: bool) -> None:
        log.error(
            "a worker of model %s %s; it is replaced",
            self.entry.name,
            f"hangs for {engine.batcher.running_seconds:.0f} s" if hangs else "has ended",
        )
        self.given_up += hangs
        await engine.batcher.abandon()
        self._changed()
        await self._open.pop(engine).aclose()
        self._metrics.worker_restarts.labels(model=self.entry.name).inc()

    async def leave(self, seconds: float) -> None:
        """Refuse new items, finish the queued items and end the workers. Workers that are not done
        after `seconds` are abandoned."""
        self.leaving = True
        if self.replicas is not None:
            await self.replicas.close()
        leaving = {asyncio.create_task(scope.aclose()): e for e, scope in self._open.items()}
        late = (await asyncio.wait(leaving, timeout=seconds))[1] if leaving else set()
        for task in late:
            self.given_up += leaving[task].batcher.running_seconds > 0
            await leaving[task].batcher.abandon()
        await asyncio.gather(*leaving)
        self._open.clear()
        self.replicas = None

    async def _engine(self, turn: int, copy: ModelEntry) -> Engine:
        model, fast_path = await in_own_thread(self._loader, partial(self._load, copy))
        if not self._watches:  # before the warm-up, so that a mistake in the entry shows soon
            for make in self._make_watches:
                watch = partial(make, self.entry, model, self._metrics)
                self._watches.append(await in_own_thread(self._loader, watch))
        engine = Engine(
            model,
            max_queue=max(self._queue, self._fitting(model.max_batch)),
            patience=self._patience,
            metrics=self._metrics,
            cores=_cores(self.entry)[turn],
            images=self._images,
            fast_path=fast_path,
            changed=self._changed,
        )
        scope = self._open[engine] = AsyncExitStack()
        await scope.enter_async_context(engine)
        try:
            await engine.warm()
            self._chosen.setdefault(_kind(copy), {})["runtime"] = engine.runtime
        except Exception as error:  # on cancellation, `leave` closes it, within a time limit
            await self._open.pop(engine).aclose()
            if not isinstance(error, NothingDetected):
                raise
            raise self.entry.mistake(
                "min_score",
                f"{error}, a drawing that warms it up; set a lower one, such as 0.001, or one of "
                "the module itself if it leaves boxes out",
            ) from None
        return engine

    def _load(self, copy: ModelEntry) -> tuple[ServedModel, PrepareFastPath | None]:
        kind = _kind(copy)
        chosen = self._chosen.get(kind, {})
        copy = copy.model_copy(
            update={key: chosen[key] for key in chosen if getattr(copy, key) == "auto"}
        )
        bind(None)  # layout "auto" is measured with all threads of the process
        self.loading = True
        try:
            model = load(copy, self._cache)
            fast_path = self._make_fast_path(copy, model)
        finally:
            self.loading = False
        layout = "channels-last" if model.channels_last else "contiguous"
        self._chosen.setdefault(kind, {})["layout"] = layout
        return model, fast_path


def _kind(copy: ModelEntry) -> str:
    """Return the kind of device that a copy names."""
    assert isinstance(copy.device, str)  # a copy has a single device
    return copy.device.split(":")[0]


def _cores(entry: ModelEntry) -> list[list[int] | None]:
    """Return, for each copy of an entry, the cores to which it is bound. If several copies run on
    the CPU, the cores are divided among them; every other copy gets None, for all cores.

    Raises:
        ConfigError: if there are fewer cores than copies on the CPU.
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
    return [next(shares) if is_on_cpu else None for is_on_cpu in on_cpu]
