"""Works on jobs when nobody waits for the models; each item is a transaction of its own."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import Final, TypeVar

from service.core.concurrency import explain_many
from service.core.errors import InsufficientStorage, Problem, Unavailable
from service.core.pool import Pool
from service.engine.manager import ModelManager
from service.jobs.executor import ItemExecutor, Withdrawn
from service.jobs.folder import Folder
from service.jobs.in_flight import InFlight
from service.jobs.records import Leased
from service.jobs.store import Store
from service.limits.admission import Admission

LEASE_ITEMS: Final = 16
LOOK_SECONDS: Final = 1.0
"""How often to look for items where nobody said that there are some."""
PAUSE_SECONDS: Final = 5.0
"""After the disk was full, or the database away."""
HEADSTART_SECONDS: Final = 1.0
"""Of a new process, in which it tells that it is there: one that an item kills over and over is
replaced for as long as it did."""
YIELD_SECONDS: Final = 2.0
"""Longest that an item waits for the others to be done; so many others there may be that they are
never."""
CALM_SECONDS: Final = 0.02
"""For which there has been nobody else, before an item is begun."""
TICK_SECONDS: Final = 0.005
log = logging.getLogger(__name__)
Result = TypeVar("Result")


class Runner:
    """Use with `async with`: leaving it withdraws what is under way; it is begun anew later.

    Args:
        admission: of those who come before jobs.
        pool: for what blocks.
    """

    def __init__(
        self,
        name: str,
        *,
        store: Store,
        folder: Folder,
        executor: ItemExecutor,
        manager: ModelManager,
        admission: Admission,
        pool: Pool,
    ) -> None:
        self.name = name
        self._store = store
        self._folder = folder
        self._manager = manager
        self._admission = admission
        self._pool = pool
        self._wake = asyncio.Event()
        self._under_way = InFlight()
        self._executor = executor
        self._doubtful = False
        self._dropped: set[str] = set()
        self._pause_until = 0.0
        self._headstart = HEADSTART_SECONDS
        self.stalled: str | None = None
        """Why nothing goes on."""

    async def __aenter__(self) -> Runner:
        self._working = asyncio.create_task(self._work(), name="work on jobs")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._working.cancel()
        await asyncio.wait([self._working])

    def wake(self) -> None:
        """There may be something to do."""
        self._wake.set()

    def drop(self, job: str) -> None:
        """Withdraw what is under way of a job."""
        self._dropped.add(job)
        self._under_way.cancel(job)
        self._executor.forget(job)

    async def _work(self) -> None:
        while True:
            try:
                async with explain_many(
                    self._leased(),  # no more than there is room for
                    self._finish,
                    at_once=sys.maxsize,
                ) as finished:
                    async for _, result in finished:
                        assert not isinstance(result, Problem), result
            except Exception:
                log.exception("the work on jobs failed; it begins anew")
                self._under_way.clear()
                self._doubtful = True
                await asyncio.sleep(LOOK_SECONDS)

    async def _leased(self) -> AsyncGenerator[Leased]:
        await asyncio.wait([self._manager.loaded])
        await asyncio.sleep(self._headstart)
        self._headstart = 0.0
        while True:
            await asyncio.sleep(max(self._pause_until - monotonic(), 0))
            self._wake.clear()
            self._dropped.clear()
            for item in await self._lease():
                if item.alone:
                    await self._under_way.until_none()
                await self._until_calm()
                if item.job in self._dropped:
                    await self._release(item)
                    continue
                if self._under_way.has(item):  # it was taken for dead, and went on
                    continue
                self._under_way.begin(item)
                yield item
                if item.alone:
                    await self._under_way.until_none()

    async def _lease(self) -> list[Leased]:
        """Items to work on; waits a while where there are none."""
        leased: list[Leased] = []
        if self._doubtful:
            await self._let_go()
        ready = [
            name
            for name in self._manager.names
            if self._manager.model_ready(name) and self._under_way.room(name) >= LEASE_ITEMS
        ]
        if ready and not self._manager.draining:
            models = [(name, self._manager.replicas(name).model.fingerprint) for name in ready]
            try:
                leased = await self._run(lambda: self._store.lease(self.name, models, LEASE_ITEMS))
                if not leased:
                    self.stalled = None
            except Problem as problem:
                self._doubtful = True  # they may be leased all the same
                self._stall(problem)
        if not leased:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), LOOK_SECONDS)
        return leased

    async def _let_go(self) -> None:
        """Return what the store says that this runner has and it has not."""
        held = self._under_way.held()
        self._doubtful = False
        try:
            await self._run(lambda: self._store.keep_only(self.name, held))
        except Problem:
            self._doubtful = True

    async def _until_calm(self) -> None:
        """Wait until those who wait for an answer have it, for a moment at least."""
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
            self._under_way.end(item)
            if self._under_way.room(item.model) == LEASE_ITEMS:
                self.wake()  # there was not room enough

    async def _answered(self, item: Leased) -> bytes | Problem:
        """
        Raises:
            Withdrawn: if its job was cancelled, or it may fare better later.
        """
        task = asyncio.create_task(self._executor.answer(item))
        self._under_way.answer(item, task)
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
            if isinstance(result, Problem):
                return self._store.settle(self.name, item, result, 0)
            self._folder.write_result(item.job, item.number, result)
            return self._store.settle(self.name, item, None, len(result))

        await self._run(keep)
        self.stalled = None

    async def _release(self, leased: Leased, *, blamed: bool = False) -> None:
        try:
            await self._run(lambda: self._store.release(self.name, leased, blamed=blamed))
        except Problem:
            self._doubtful = True

    def _stall(self, problem: Problem) -> None:
        if self.stalled != problem.detail:
            log.warning("jobs wait: %s", problem.detail)
        self.stalled = problem.detail
        self._pause_until = monotonic() + PAUSE_SECONDS

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await self._pool.run(work)
