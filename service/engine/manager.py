"""The manager of all models: it loads, monitors, adds, removes and drains them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic

from service.backend.interface import NO_MODEL, unknown_model
from service.backend.journal import Journal
from service.backend.watch import MakeWatch
from service.core.disk_cache import DiskCache
from service.core.errors import ConfigError, Conflict, ModelFailed, Unavailable, without_folders
from service.core.metrics import Metrics
from service.core.settings import CoreSettings
from service.engine.fast_path import MakeFastPath, no_fast_path
from service.engine.lifecycle import ModelLifecycle
from service.engine.replicas import Replicas
from service.models.catalog import ModelEntry

LOOK_SECONDS = 0.05

MOST_GIVEN_UP = 3
"""Number of hung workers from which the process must be replaced. Each hung worker keeps its thread
and its model until the process ends."""
log = logging.getLogger(__name__)


class ModelManager:
    """Loads and warms every model of the catalog in the background, one after the other; monitors
    their workers; adds and removes models.

    Use with `async with`. Entering returns at once, so that the port can open and the service can
    report that models are loading. The task `loaded` is done when the catalog's models are ready,
    or raises the ConfigError of the model that could not be loaded. Leaving drains the models:
    every engine finishes its queued items, within the settings' `drain_seconds`.

    Args:
        images: number of images that will be explained; None if that is not known. For a few, no
            runtime is prepared that takes longer than it saves.
        journal: keeps what is added and removed. The models that it names are loaded after those of
            the catalog.
        watches: make who is told the answers to live traffic.
        fast_path: makes what prepares the fast path of a model.
    """

    loaded: asyncio.Task[None]

    def __init__(
        self,
        entries: Sequence[ModelEntry],
        *,
        settings: CoreSettings,
        metrics: Metrics,
        images: int | None = None,
        journal: Journal | None = None,
        watches: Sequence[MakeWatch] = (),
        fast_path: MakeFastPath = no_fast_path,
    ) -> None:
        self._settings = settings
        self._images = images
        self._metrics = metrics
        self._cache = DiskCache(settings.cache)
        self._journal = journal or Journal()
        self._watches = watches
        self._fast_path = fast_path
        self._lifecycles = {
            entry.name: self._lifecycle(entry, essential=True)
            for entry in self._journal.configured(entries)
        }
        for entry, failure in self._journal.added():
            self._lifecycles[entry.name] = self._lifecycle(entry, essential=False)
            self._lifecycles[entry.name].failure = failure
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._one_at_a_time = asyncio.Lock()
        self._given_up = 0
        self._gone: list[ModelLifecycle] = []
        self._listeners: list[Callable[[], None]] = []
        self.draining = False

    @property
    def all_loaded(self) -> bool:
        task = self.loaded
        return task.done() and not task.cancelled() and task.exception() is None

    async def __aenter__(self) -> ModelManager:
        self.draining = False
        self.loaded = asyncio.create_task(self._load(), name="load models")
        # This retrieves the exception, so that asyncio logs no "exception was never retrieved" if
        # nothing awaits the task.
        self.loaded.add_done_callback(lambda task: task.cancelled() or task.exception())
        self.loaded.add_done_callback(lambda task: self._tell())
        return self

    async def __aexit__(self, *raised: object) -> None:
        self.draining = True
        tasks = [self.loaded, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        lifecycles = list(self._lifecycles.values())
        await asyncio.gather(
            *(lifecycle.leave(self._settings.drain_seconds) for lifecycle in lifecycles)
        )

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call a listener whenever the state of a model, or `all_loaded`, has changed."""
        self._listeners.append(listener)

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    @property
    def names(self) -> list[str]:
        return list(self._lifecycles)

    @property
    def ready(self) -> bool:
        """Whether every essential model is ready unless it is being removed, and the service is not
        draining. A model is ready if it is warm and has a live worker. A service without models is
        ready, because a platform loads models only into one that is."""
        return not self.draining and not self._missing

    @property
    def worn_out(self) -> bool:
        """Whether so many workers hung that the process must be replaced."""
        return self.given_up >= MOST_GIVEN_UP

    @property
    def given_up(self) -> int:
        return self._given_up + sum(lifecycle.given_up for lifecycle in self._lifecycles.values())

    @property
    def busy(self) -> bool:
        """Whether a thread hangs or builds a model. Only the end of the process stops such a
        thread."""
        lifecycles = {*self._lifecycles.values(), *self._gone}
        return self.given_up > 0 or any(lifecycle.loading for lifecycle in lifecycles)

    @property
    def _missing(self) -> list[ModelLifecycle]:
        return [lifecycle for lifecycle in self._lifecycles.values() if self._is_missed(lifecycle)]

    @staticmethod
    def _is_missed(lifecycle: ModelLifecycle) -> bool:
        return lifecycle.essential and not lifecycle.ready and not lifecycle.leaving

    def model_ready(self, name: str) -> bool:
        return name in self._lifecycles and self._lifecycles[name].ready

    def why_not_ready(self) -> str:
        if self.draining:
            return "the service is shutting down"
        if not self._lifecycles:
            return NO_MODEL
        missing = self._missing or list(self._lifecycles.values())
        loading = [lifecycle.entry.name for lifecycle in missing if lifecycle.replicas is None]
        if loading:
            return f"still loading: {', '.join(loading)}"
        return "; ".join(
            f"{lifecycle.entry.name} is {lifecycle.why_not_ready}" for lifecycle in missing
        )

    def replicas(self, name: str) -> Replicas:
        """Return the engines of a model.

        Raises:
            UnknownModel: if there is no such model; the message names the models that exist.
            ModelFailed: if the model could not be loaded.
            Unavailable: while the model loads, has no worker or is being removed, or while the
                service drains.
        """
        lifecycle = self._lifecycle_of(name)
        if self.draining:
            raise Unavailable("the service is shutting down; try again")
        if lifecycle.failure and not lifecycle.leaving:
            reason = without_folders(lifecycle.failure).removeprefix(f"model {name!r}: ")
            raise ModelFailed(
                f"model {name!r} could not be loaded: {reason}; DELETE it, and add it again once "
                "that is put right"
            )
        if not lifecycle.ready or not lifecycle.replicas:
            raise Unavailable(f"model {name!r} is {lifecycle.why_not_ready}; try again")
        return lifecycle.replicas

    async def add(self, entry: ModelEntry, *, most: int | None = None) -> None:
        """Load one more model in the background.

        Args:
            most: largest number of models; None sets no limit.

        Raises:
            Conflict: if a model of that name exists, or the number of models is at its maximum.
        """
        if entry.name in self._lifecycles:
            raise Conflict(f"there is a model {entry.name!r} already; DELETE it first")
        if most is not None and len(self._lifecycles) >= most:
            raise Conflict(
                f"the number of models is {len(self._lifecycles)}, which is the maximum; DELETE "
                "one first"
            )
        self._lifecycles[entry.name] = self._lifecycle(entry, essential=False)
        self._journal.add(entry)
        self._begin(entry.name)
        self._tell()

    def _begin(self, name: str) -> None:
        self._tasks[name] = asyncio.create_task(self._join(name), name="add a model")

    async def remove(self, name: str, in_work: Callable[[], int] = lambda: 0) -> None:
        """Refuse new requests for a model, finish the current ones, and unload the model.

        Args:
            in_work: returns the number of the model's images in work, including images that are
                being decoded or are between two passes of a method of many passes.

        Raises:
            UnknownModel: if there is no such model.
            Conflict: if the model is already being unloaded.
        """
        lifecycle = self._lifecycle_of(name)
        if lifecycle.leaving:
            raise Conflict(f"model {name!r} is being unloaded")
        lifecycle.leaving = True
        self._journal.remove(name)
        self._tell()
        if task := self._tasks.pop(name, None):
            task.cancel()
            await asyncio.wait([task])
        latest = monotonic() + self._settings.drain_seconds
        while in_work() and monotonic() < latest:  # noqa: ASYNC110 - there is no event to await
            await asyncio.sleep(LOOK_SECONDS)
        await lifecycle.leave(max(latest - monotonic(), 0))
        self._given_up += lifecycle.given_up
        self._gone.append(lifecycle)
        del self._lifecycles[name]
        self._tell()
        log.info("model %s unloaded", name)

    def measure(self) -> None:
        """Bring the gauges up to date."""
        for name, lifecycle in self._lifecycles.items():
            self._metrics.model_ready.labels(model=name).set(lifecycle.ready)
            self._metrics.queue_depth.labels(model=name).set(
                lifecycle.replicas.waiting if lifecycle.replicas else 0
            )

    def _lifecycle_of(self, name: str) -> ModelLifecycle:
        if name not in self._lifecycles:
            raise unknown_model(name, self._lifecycles)
        return self._lifecycles[name]

    def _lifecycle(self, entry: ModelEntry, *, essential: bool) -> ModelLifecycle:
        if entry.runtime is None:
            entry = entry.model_copy(update={"runtime": self._settings.runtime})
        return ModelLifecycle(
            entry,
            essential=essential,
            max_queue=self._settings.max_queue,
            fitting=partial(self._settings.fitting, "max_queue"),
            patience=self._settings.target_seconds,
            cache_bytes=self._settings.cache_bytes,
            hang_seconds=self._settings.hang_seconds,
            metrics=self._metrics,
            cache=self._cache,
            images=self._images,
            watches=self._watches,
            fast_path=self._fast_path,
            changed=self._tell,
        )

    async def _load(self) -> None:
        essential = {name: each for name, each in self._lifecycles.items() if each.essential}
        # One that cannot be right must not wait until those before it are loaded.
        for lifecycle in essential.values():
            try:
                await lifecycle.check()
            except ConfigError:
                if not lifecycle.leaving:  # a failure does not matter after a removal
                    raise
        for name, lifecycle in essential.items():
            async with self._one_at_a_time:
                if not lifecycle.leaving:
                    try:
                        await lifecycle.load()
                    except Exception:
                        if not lifecycle.leaving:  # a failure does not matter after a removal
                            raise
            if lifecycle.leaving:  # the model was removed before it was ready
                await lifecycle.leave(0)
                continue
            self._tasks[name] = asyncio.create_task(lifecycle.watch(), name=f"watch {name}")
        for name, lifecycle in self._lifecycles.items():  # those of the journal
            waits = not (lifecycle.essential or lifecycle.leaving or lifecycle.failure)
            if waits and name not in self._tasks:
                self._begin(name)

    async def _join(self, name: str) -> None:
        """Load an added model, then monitor its workers until cancelled."""
        lifecycle = self._lifecycles[name]
        try:
            async with self._one_at_a_time:
                with self._journal.loading(name):
                    await lifecycle.load()
        except ConfigError:
            log.warning("model %s could not be loaded: %s", name, lifecycle.failure)
        except Exception:
            log.exception("model %s could not be loaded", name)
        else:
            await lifecycle.watch()
