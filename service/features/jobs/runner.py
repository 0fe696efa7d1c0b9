"""The runner, which processes jobs while no interactive requests are in progress.

Each item is settled in a transaction of its own.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Final

from service.backend.interface import Backend
from service.core.concurrency import explain_many
from service.core.errors import Blamed, InsufficientStorage, Problem, Unavailable
from service.core.metrics import Metrics
from service.core.pool import Pool
from service.features.jobs.executor import ItemExecutor, Withdrawn
from service.features.jobs.job_files import Folder
from service.features.jobs.leases import Store
from service.features.jobs.metrics import JobMetrics
from service.features.jobs.records import Leased
from service.limits.admission import Admission
from service.pipeline.resolve import takes_many_passes

LEASE_ITEMS: Final = 16
LOOK_SECONDS: Final = 1.0
"""Seconds between two searches for items, if `wake` is not called."""
PAUSE_SECONDS: Final = 5.0
"""Seconds to pause after the disk was full or the database was unreachable."""
HEADSTART_SECONDS: Final = 1.0
"""Seconds before the first item after the models of a new process are loaded, so that the process
can report that it is ready. A supervisor keeps replacing a process that an item kills only if each
new process became ready."""
YIELD_SECONDS: Final = 2.0
"""Longest time that an item waits for interactive requests to finish. Under constant load they
might never all be finished."""
CALM_SECONDS: Final = 0.02
"""Seconds without interactive requests before an item is started."""
TICK_SECONDS: Final = 0.005
log = logging.getLogger(__name__)
AT_ONCE: Final = 32
"""Largest number of items of each model at once: enough for full batches while other items are
decoded and drawn. The limit is per model, so that no model waits for a slow one. An item of many
passes counts as several: see `Runner`."""


class Runner:
    """Processes the items of jobs.

    Use with `async with`: leaving it withdraws the items in progress, which are started anew later.

    Items that need many passes gain nothing from being processed together, and all that are in
    progress when the process is killed start anew. So each takes as many of the `AT_ONCE` places as
    leave room for two of them for each copy of the model: one is computed, and the next is decoded.

    Args:
        admission: counts the interactive requests, which take precedence over jobs.
        pool: threads for blocking calls.
    """

    def __init__(
        self,
        name: str,
        *,
        store: Store,
        folder: Folder,
        executor: ItemExecutor,
        manager: Backend,
        admission: Admission,
        pool: Pool,
        metrics: Metrics,
    ) -> None:
        self.name = name
        self._store = store
        self._folder = folder
        self._manager = manager
        self._admission = admission
        self._pool = pool
        self._metrics = metrics.own(JobMetrics)
        self._wake = asyncio.Event()
        self._in_flight = InFlight()
        self._executor = executor
        self._doubtful = False
        self._dropped: set[str] = set()
        self._pause_until = 0.0
        self._behind = True
        """Whether the models' process may not have reported yet that it is ready."""
        self.stalled: str | None = None
        """Reason why no items are processed; None while they are."""

        self._working: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Runner:
        self._working = asyncio.create_task(self._work(), name="work on jobs")
        return self

    async def __aexit__(self, *raised: object) -> None:
        if self._working:
            self._working.cancel()
            await asyncio.wait([self._working])
            self._working = None

    def wake(self) -> None:
        """Search for items now, because there may be new ones."""
        self._wake.set()

    @property
    def jobs_in_work(self) -> set[str]:
        """Ids of the jobs that have items in progress."""
        return {job for job, _ in self._in_flight.held()}

    def drop(self, job: str) -> None:
        """Withdraw the items of a job that are in progress. If another process works on jobs, its
        janitor does that soon."""
        if self._working is None:
            return
        self._dropped.add(job)
        self._in_flight.cancel(job)
        self._executor.forget(job)

    async def _work(self) -> None:
        while True:
            try:
                async with explain_many(
                    self._leased(),  # leases only as many items as there is room for
                    self._finish,
                    at_once=sys.maxsize,
                ) as finished:
                    async for _, result in finished:
                        assert not isinstance(result, Problem), result
            except Exception:
                log.exception("processing of jobs failed and is restarted")
                self._in_flight.clear()
                self._doubtful = True
                await asyncio.sleep(LOOK_SECONDS)

    async def _leased(self) -> AsyncGenerator[Leased]:
        while True:
            await self._until_loaded()
            await asyncio.sleep(max(self._pause_until - monotonic(), 0))
            self._wake.clear()
            self._dropped.clear()
            for item in await self._lease():
                if item.alone:
                    await self._in_flight.until_none()
                await self._until_loaded()
                await self._until_calm()
                if item.job in self._dropped:
                    await self._release(item)
                    continue
                if self._in_flight.has(item):  # this runner was considered dead but still has it
                    continue
                self._in_flight.begin(item, self._places(item))
                yield item
                if item.alone:
                    await self._in_flight.until_none()

    async def _lease(self) -> list[Leased]:
        """Lease items to process. Wait up to `LOOK_SECONDS` if there are none."""
        leased: list[Leased] = []
        if self._doubtful:
            await self._let_go()
        ready = [
            name
            for name in self._manager.names
            if self._manager.model_ready(name) and self._in_flight.room(name) >= LEASE_ITEMS
        ]
        if ready and not self._manager.draining:
            models = [(name, self._manager.replicas(name).model.fingerprint) for name in ready]
            try:
                kinds = {
                    kind.name: LEASE_ITEMS
                    if kind.at_once is None
                    else kind.at_once - self._in_flight.of_kind(kind.name)
                    for kind in self._executor.kinds.values()
                }
                leased = await self._pool.run(
                    lambda: self._store.lease(self.name, models, LEASE_ITEMS, kinds, self._places)
                )
                if not leased:
                    self.stalled = None
            except Problem as problem:
                self._doubtful = True  # the items may be leased although the call failed
                self._stall(problem)
        if not leased:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), LOOK_SECONDS)
        return leased

    def _places(self, item: Leased) -> int:
        """Return how many of the model's `AT_ONCE` places an item takes."""
        try:
            replicas = self._manager.replicas(item.model)
        except Problem:
            return 1  # the item is withdrawn at once
        if self._apart(item):
            return 0
        many = takes_many_passes(replicas.model, item.parameters)
        return max(LEASE_ITEMS // replicas.copies, 1) if many else 1

    def _apart(self, item: Leased) -> bool:
        """Return whether items of this kind are limited apart from the places of their model."""
        return self._executor.kinds[item.kind].at_once is not None

    async def _let_go(self) -> None:
        """Release the items that the store has leased to this runner but that it is not
        processing."""
        held = self._in_flight.held()
        self._doubtful = False
        try:
            await self._pool.run(lambda: self._store.keep_only(self.name, held))
        except Problem:
            self._doubtful = True

    async def _until_loaded(self) -> None:
        """Wait until all models are loaded, and after that for `HEADSTART_SECONDS`."""
        while self._behind or not self._manager.all_loaded:
            while not self._manager.all_loaded:  # noqa: ASYNC110 - there is no event to await
                await asyncio.sleep(TICK_SECONDS)
            await asyncio.sleep(HEADSTART_SECONDS)
            self._behind = False

    async def _until_calm(self) -> None:
        """Wait until there have been no interactive requests for `CALM_SECONDS`, but at most
        `YIELD_SECONDS`."""
        if self._admission.at_rest and not self._admission.lately(CALM_SECONDS):
            return
        latest = monotonic() + YIELD_SECONDS
        while monotonic() < latest:
            await asyncio.sleep(TICK_SECONDS)
            if self._admission.at_rest and not self._admission.lately(CALM_SECONDS):
                return

    async def _finish(self, item: Leased) -> None:
        try:
            await self._settle(item, await self._answered(item))
        except Withdrawn as withdrawn:
            await self._release(item, blamed=withdrawn.blamed)
        except (InsufficientStorage, Unavailable) as problem:
            self._stall(problem)
            await self._release(item)
        finally:
            before = self._in_flight.room(item.model)
            self._in_flight.end(item)
            if self._apart(item) or before < LEASE_ITEMS <= self._in_flight.room(item.model):
                self.wake()  # there was not enough room for a lease before

    async def _answered(self, item: Leased) -> bytes | Problem:
        """Return the answer of an item, or its problem.

        Raises:
            Withdrawn: if the item's job was cancelled, or the item should be tried again later.
        """
        task = asyncio.create_task(self._executor.answer(item))
        self._in_flight.answer(item, task)
        try:
            return await task
        except asyncio.CancelledError:
            task.cancel()
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                await asyncio.wait([task])
                raise
            raise Withdrawn from None

    async def _settle(self, item: Leased, result: bytes | Problem) -> None:
        def keep() -> bool:
            self._store.require_room()
            if isinstance(result, Problem):
                return self._store.settle(self.name, item, result, 0)
            self._folder.write_result(item.job, item.number, result)
            return self._store.settle(self.name, item, None, len(result))

        if await self._pool.run(keep):
            outcome = "failed" if isinstance(result, Problem) else "done"
            self._metrics.items.labels(outcome=outcome).inc()
        self.stalled = None

    async def _release(self, leased: Leased, *, blamed: Blamed | None = None) -> None:
        try:
            await self._pool.run(lambda: self._store.release(self.name, leased, blamed=blamed))
        except Problem:
            self._doubtful = True

    def _stall(self, problem: Problem) -> None:
        if self.stalled != problem.detail:
            log.warning("jobs wait: %s", problem.detail)
        self.stalled = problem.detail
        self._pause_until = monotonic() + PAUSE_SECONDS


@dataclass
class ItemInFlight:
    model: str
    kind: str
    places: int
    task: asyncio.Task[bytes | Problem] | None = None
    """The task that computes the answer, once it is started."""


class InFlight:
    def __init__(self) -> None:
        self._items: dict[tuple[str, int], ItemInFlight] = {}
        self._none = asyncio.Event()
        self._none.set()

    def begin(self, item: Leased, places: int) -> None:
        self._items[item.job, item.number] = ItemInFlight(item.model, item.kind, places)
        self._none.clear()

    def answer(self, item: Leased, task: asyncio.Task[bytes | Problem]) -> None:
        """Set the task that computes an item's answer. `cancel` cancels this task."""
        self._items[item.job, item.number].task = task

    def end(self, item: Leased) -> None:
        del self._items[item.job, item.number]
        if not self._items:
            self._none.set()

    def clear(self) -> None:
        self._items.clear()
        self._none.set()

    def has(self, item: Leased) -> bool:
        return (item.job, item.number) in self._items

    def room(self, model: str) -> int:
        """Return how many of a model's places are free."""
        return AT_ONCE - sum(item.places for item in self._items.values() if item.model == model)

    def of_kind(self, kind: str) -> int:
        """Return the number of items of jobs of a kind."""
        return sum(item.kind == kind for item in self._items.values())

    def held(self) -> list[tuple[str, int]]:
        """Return the job and the number of each item."""
        return list(self._items)

    def cancel(self, job: str) -> None:
        """Cancel the tasks of a job's items."""
        for (of, _), item in self._items.items():
            if of == job and item.task is not None:
                item.task.cancel()

    async def until_none(self) -> None:
        await self._none.wait()
