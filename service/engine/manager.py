"""All models, from loading to drained."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic
from types import TracebackType

from service.core.errors import (
    RETRY_AFTER_SECONDS,
    ConfigError,
    Conflict,
    ModelFailed,
    Unavailable,
    UnknownModel,
)
from service.core.metrics import Metrics
from service.core.settings import Settings
from service.engine.lifecycle import Berth
from service.engine.replicas import Crew
from service.models.catalog import ModelEntry

LOOK_SECONDS = 0.05

MOST_GIVEN_UP = 3
"""Hung workers, each a thread and a model that stay until the process ends."""
log = logging.getLogger(__name__)


class Fleet:
    """Loads and warms every model of the catalog in the background, one after the other; watches
    over their workers; adds and removes models.

    Use with `async with`. Entering returns at once, so the port can open and say "loading";
    `loaded` is done when the catalog's models are ready, or raises the ConfigError that kept one
    from it. Leaving drains: every engine finishes what is queued.
    """

    loaded: asyncio.Task[None]

    def __init__(
        self, entries: Sequence[ModelEntry], *, settings: Settings, metrics: Metrics
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._berths = {entry.name: self._berth(entry, essential=True) for entry in entries}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._one_at_a_time = asyncio.Lock()
        self._given_up = 0
        self._gone: list[Berth] = []
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
        tasks = [self.loaded, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        berths = list(self._berths.values())
        await asyncio.gather(*(berth.leave(self._settings.drain_seconds) for berth in berths))

    @property
    def names(self) -> list[str]:
        return list(self._berths)

    @property
    def ready(self) -> bool:
        """Whether every essential model is warm, its worker alive, or any other where there is none
        of these, and nothing is being drained."""
        able = any(berth.ready for berth in self._berths.values())
        return able and not self.draining and not self._missing

    @property
    def worn_out(self) -> bool:
        """Whether so many workers hung that only a new process helps."""
        return self.given_up >= MOST_GIVEN_UP

    @property
    def given_up(self) -> int:
        return self._given_up + sum(berth.given_up for berth in self._berths.values())

    @property
    def busy(self) -> bool:
        """Whether a thread is still at work, which nothing ends but the end of the process."""
        berths = {*self._berths.values(), *self._gone}
        return self.given_up > 0 or any(berth.loading for berth in berths)

    @property
    def _missing(self) -> list[Berth]:
        return [each for each in self._berths.values() if self._is_missed(each)]

    @staticmethod
    def _is_missed(berth: Berth) -> bool:
        return berth.essential and not berth.ready and not berth.leaving

    def model_ready(self, name: str) -> bool:
        return name in self._berths and self._berths[name].ready

    def why_not_ready(self) -> str:
        if self.draining:
            return "the service is shutting down"
        if not self._berths:
            return "there is no model: each was removed"
        missing = self._missing or list(self._berths.values())
        loading = [each.entry.name for each in missing if each.crew is None]
        if loading:
            return f"still loading: {', '.join(loading)}"
        return "; ".join(f"{each.entry.name} is {each.why_not_ready}" for each in missing)

    def crew(self, name: str) -> Crew:
        """The engines of a model.

        Raises:
            UnknownModel: naming the models that there are.
            ModelFailed: if it could not be loaded.
            Unavailable: while it loads, has no worker, leaves, or the service drains.
        """
        berth = self._berth_of(name)
        if self.draining:
            raise Unavailable(
                "the service is shutting down; try again", retry_after=RETRY_AFTER_SECONDS
            )
        if berth.failure and not berth.leaving:
            raise ModelFailed(
                f"model {name!r} could not be loaded: "
                f"{berth.failure.removeprefix(f'model {name!r}: ')}; DELETE it, and add it again "
                "once that is put right"
            )
        if not berth.ready or not berth.crew:
            raise Unavailable(
                f"model {name!r} is {berth.why_not_ready}; try again",
                retry_after=RETRY_AFTER_SECONDS,
            )
        return berth.crew

    def add(self, entry: ModelEntry) -> None:
        """Load one more model in the background.

        Raises:
            Conflict: if there is one of that name, or as many as there may be.
        """
        if entry.name in self._berths:
            raise Conflict(f"there is a model {entry.name!r} already; DELETE it first")
        if len(self._berths) >= self._settings.max_models:
            raise Conflict(
                f"there are {len(self._berths)} models, as many as may be; DELETE one first"
            )
        self._berths[entry.name] = self._berth(entry, essential=False)
        self._tasks[entry.name] = asyncio.create_task(self._join(entry.name), name="add a model")

    async def remove(self, name: str, in_work: Callable[[], int] = lambda: 0) -> None:
        """Take no new requests for a model, finish those that there are, and let it go.

        Args:
            in_work: images of it, those too that are decoded, or between two of many passes.

        Raises:
            UnknownModel, Conflict: if it is not there, or on its way out.
        """
        berth = self._berth_of(name)
        if berth.leaving:
            raise Conflict(f"model {name!r} is being unloaded")
        berth.leaving = True
        if task := self._tasks.pop(name, None):
            task.cancel()
            await asyncio.wait([task])
        latest = monotonic() + self._settings.drain_seconds
        while in_work() and monotonic() < latest:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(LOOK_SECONDS)
        await berth.leave(max(latest - monotonic(), 0))
        self._given_up += berth.given_up
        self._gone.append(berth)
        del self._berths[name]
        self._metrics.forget(name)
        log.info("model %s unloaded", name)

    def measure(self) -> None:
        """Bring the gauges up to date."""
        for berth in self._gone:  # a request that ended late may have brought its series back
            if berth.entry.name not in self._berths:
                self._metrics.forget(berth.entry.name)
        for name, berth in self._berths.items():
            self._metrics.model_ready.labels(model=name).set(berth.ready)
            self._metrics.queue_depth.labels(model=name).set(
                berth.crew.waiting if berth.crew else 0
            )

    def _berth_of(self, name: str) -> Berth:
        if name not in self._berths:
            if not self._berths:
                raise UnknownModel("the service has no model: each was removed")
            raise UnknownModel(
                f"there is no model {name[:80]!r}; the models are {', '.join(self._berths)}"
            )
        return self._berths[name]

    def _berth(self, entry: ModelEntry, *, essential: bool) -> Berth:
        return Berth(
            entry,
            essential=essential,
            max_queue=self._settings.max_queue,
            cache_bytes=self._settings.cache_bytes,
            hang_seconds=self._settings.hang_seconds,
            metrics=self._metrics,
        )

    async def _load(self) -> None:
        for name, berth in list(self._berths.items()):
            async with self._one_at_a_time:
                if not berth.leaving:
                    try:
                        await berth.load()
                    except Exception:
                        if not berth.leaving:  # meanwhile; then nobody misses it
                            raise
            if berth.leaving:  # it was removed before it was there
                await berth.leave(0)
                continue
            self._tasks[name] = asyncio.create_task(berth.watch(), name=f"watch {name}")

    async def _join(self, name: str) -> None:
        """The life of an added model."""
        berth = self._berths[name]
        try:
            async with self._one_at_a_time:
                await berth.load()
        except ConfigError:
            log.warning("model %s could not be loaded: %s", name, berth.failure)
        except Exception:
            log.exception("model %s could not be loaded", name)
        else:
            await berth.watch()
