"""Periodic maintenance of jobs: heartbeats, items of dead runners, and expired jobs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic
from typing import Final

from service.core.errors import Problem
from service.core.metrics import Metrics
from service.core.pool import Pool
from service.features.jobs.job_files import Folder
from service.features.jobs.leases import LEASE_SECONDS, Store
from service.features.jobs.listing import Listing
from service.features.jobs.metrics import JobMetrics
from service.features.jobs.runner import Runner

BEAT_SECONDS: Final = LEASE_SECONDS / 4
log = logging.getLogger(__name__)


@contextmanager
def enlisted(name: str, store: Store, folder: Folder) -> Iterator[None]:
    """Register a runner as alive while the block runs. First, the items of dead runners on this
    machine are freed, so that a restarted service continues with them at once."""
    # Only file locks are checked here: if the database was unreachable until now, live runners
    # could not send their heartbeats either.
    bury_dead(name, store, folder, silent=False)
    with folder.alive(name):
        store.enlist(name)
        try:
            yield
        finally:
            with suppress(Problem):  # if this fails, other runners detect that it is dead
                store.dismiss(name)


def bury_dead(name: str, store: Store, folder: Folder, *, silent: bool = True) -> None:
    """Free the items of dead runners and remove their files.

    Args:
        name: the calling runner, which is never treated as dead.
        silent: whether runners without a heartbeat for `LEASE_SECONDS` count as dead, too.
    """
    dead = {neighbour for neighbour in store.neighbours(name) if folder.is_dead(neighbour)}
    if silent:
        dead |= set(store.silent())
    for runner in dead - {name}:
        log.warning("runner %s died; its items are free again", runner)
        store.bury(runner)
        if folder.is_dead(runner):  # a runner without heartbeats may still be writing a file
            folder.clear(runner)
    for runner in set(folder.left_over()) - store.runners() - {name}:
        folder.clear(runner)


class Janitor:
    """Maintains jobs while the `async with` block runs: sends the runner's heartbeats, frees the
    items of dead runners, counts the unfinished jobs, and removes expired jobs.

    Args:
        retention_seconds: seconds after its end at which a job is removed.
        clear_up: called with every removal of expired jobs, for additional cleaning.
    """

    def __init__(
        self,
        runner: Runner,
        store: Store,
        listing: Listing,
        folder: Folder,
        pool: Pool,
        *,
        retention_seconds: float,
        clear_up: Callable[[], None] = lambda: None,
        metrics: Metrics,
    ) -> None:
        self._runner = runner
        self._store = store
        self._listing = listing
        self._folder = folder
        self._pool = pool
        self._retention_seconds = retention_seconds
        self._clear_up = clear_up
        self._metrics = metrics.own(JobMetrics)
        self._heard = self._steady = monotonic()
        """Time of the latest heartbeat, and of the first one since the database was unreachable."""
        self._duties: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> None:
        # Tasks of their own, because to remove a million results takes longer than a heartbeat may.
        duties = (
            partial(self._pool.run, self._look_around),
            partial(self._pool.run, self._tidy_up),
            partial(self._pool.run, self._count),
            self._withdraw,
        )
        self._duties = [asyncio.create_task(_repeat(duty), name="keep jobs") for duty in duties]

    async def __aexit__(self, *raised: object) -> None:
        for duty in self._duties:
            duty.cancel()
        await asyncio.wait(self._duties)

    def _look_around(self) -> None:
        self._store.enlist(self._runner.name)
        before, self._heard = self._heard, monotonic()
        if self._heard - before > LEASE_SECONDS / 2:  # the database was unreachable, also to others
            self._steady = self._heard
        silent = self._heard - self._steady > LEASE_SECONDS
        bury_dead(self._runner.name, self._store, self._folder, silent=silent)

    def _count(self) -> None:
        for state, number in self._listing.unfinished().items():
            self._metrics.jobs.labels(state=state).set(number)

    def _tidy_up(self) -> None:
        self._clear_up()
        ended_before = time.time() - self._retention_seconds
        for job in self._listing.leaving(ended_before):
            if self._listing.expire(job, ended_before):
                try:
                    self._folder.remove(job)
                except Problem as problem:  # the other jobs are still removed
                    log.warning("job %s cannot be removed: %s", job, problem.detail)
                else:
                    self._listing.remove(job)

    async def _withdraw(self) -> None:
        """Withdraw items of jobs that were cancelled through another process."""
        if jobs := self._runner.jobs_in_work:
            for job in await self._pool.run(lambda: self._store.closed(jobs)):
                self._runner.drop(job)


async def _repeat(duty: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await duty()
        except Problem as problem:
            log.warning("maintenance of jobs failed: %s", problem.detail)
        except Exception:
            log.exception("maintenance of jobs failed")
        await asyncio.sleep(BEAT_SECONDS)
