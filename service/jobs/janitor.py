"""Periodic maintenance of jobs: heartbeats, items of dead runners, and expired jobs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from time import monotonic
from typing import Final

from service.core.errors import InsufficientStorage, Problem
from service.core.metrics import Metrics
from service.core.pool import Pool
from service.jobs.job_files import Folder
from service.jobs.leases import LEASE_SECONDS, Store
from service.jobs.listing import Listing
from service.jobs.runner import Runner

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
    dead = {each for each in store.neighbours(name) if folder.is_dead(each)}
    if silent:
        dead |= set(store.silent())
    for each in dead - {name}:
        log.warning("runner %s died; its items are free again", each)
        store.bury(each)
        if folder.is_dead(each):  # a runner without heartbeats may still be writing a file
            folder.clear(each)
    for each in set(folder.left_over()) - store.runners() - {name}:
        folder.clear(each)


@asynccontextmanager
async def kept(
    runner: Runner,
    store: Store,
    listing: Listing,
    folder: Folder,
    pool: Pool,
    *,
    retention_seconds: float,
    clear_up: Callable[[], None] = lambda: None,
    metrics: Metrics,
) -> AsyncIterator[None]:
    """Maintain jobs while the block runs: send the runner's heartbeats, free the items of dead
    runners, count the unfinished jobs, and remove expired jobs.

    Args:
        retention_seconds: seconds after its end at which a job is removed.
        clear_up: called with every removal of expired jobs, for additional cleaning.
    """
    heard = steady = monotonic()

    def look_around() -> None:
        nonlocal heard, steady
        store.enlist(runner.name)
        before, heard = heard, monotonic()
        if heard - before > LEASE_SECONDS / 2:  # the database was unreachable, also for others
            steady = heard
        silent = heard - steady > LEASE_SECONDS
        bury_dead(runner.name, store, folder, silent=silent)

    def count() -> None:
        for state, number in listing.unfinished().items():
            metrics.jobs.labels(state=state).set(number)

    def tidy_up() -> None:
        clear_up()
        ended_before = time.time() - retention_seconds
        for job in listing.leaving(ended_before):
            if listing.expire(job, ended_before):
                try:
                    folder.remove(job)
                except InsufficientStorage as problem:  # the other jobs are still removed
                    log.warning("job %s cannot be removed: %s", job, problem.detail)
                else:
                    listing.remove(job)

    async def withdraw() -> None:
        """Withdraw items of jobs that were cancelled through another process."""
        if jobs := runner.jobs_in_work:
            for job in await pool.run(lambda: store.closed(jobs)):
                runner.drop(job)

    async def keep(work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except Problem as problem:
                log.warning("maintenance of jobs failed: %s", problem.detail)
            except Exception:
                log.exception("maintenance of jobs failed")
            await asyncio.sleep(BEAT_SECONDS)

    # Tasks of their own, because to remove a million results takes longer than a heartbeat may.
    duties = (
        partial(pool.run, look_around),
        partial(pool.run, tidy_up),
        partial(pool.run, count),
        withdraw,
    )
    keeping = [asyncio.create_task(keep(work), name="keep jobs") for work in duties]
    try:
        yield
    finally:
        for each in keeping:
            each.cancel()
        await asyncio.wait(keeping)
