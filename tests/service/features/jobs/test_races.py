"""What one replica does while another one is in the middle of something."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from sqlalchemy import Engine, event

from service.core.errors import Unavailable
from service.core.metrics import Metrics
from service.core.pool import Pool
from service.features.jobs.errors import UnknownJob
from service.features.jobs.export import PAGE, parquet, zipped
from service.features.jobs.janitor import Janitor
from service.features.jobs.leases import LEASE_SECONDS
from service.features.jobs.records import Job
from service.features.jobs.runner import Runner
from tests.service.features.jobs.desk import Desk, desk_at
from tests.service.features.jobs.postgres import Postgres, postgres
from tests.waiting import until_async

MOMENT = 0.3
"""Seconds in which a statement that waits for no lock is over."""


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as running:
        yield running


@pytest.fixture
def desk(server: Postgres, tmp_path: Path) -> Iterator[Desk]:
    with desk_at(tmp_path, server.fresh()) as desk:
        yield desk


@contextmanager
def halted(work: Callable[[], object], before: str) -> Iterator[None]:
    """Work in another thread, which halts before its statement that begins so, while the block
    runs; when the block is left it is over."""
    arrived, go = threading.Event(), threading.Event()
    thread = threading.Thread(target=work)

    def halt(connection: object, cursor: object, statement: str, *rest: object) -> None:
        if threading.current_thread() is thread and statement.startswith(before):
            arrived.set()
            go.wait()

    event.listen(Engine, "before_cursor_execute", halt)
    try:
        thread.start()
        assert arrived.wait(10)
        yield
    finally:
        go.set()
        thread.join()
        event.remove(Engine, "before_cursor_execute", halt)


def finish(desk: Desk) -> None:
    for item in desk.lease("quick"):
        desk.settle("quick", item)


ENDINGS: dict[str, Callable[[Desk, Job], object]] = {
    "cancelled": lambda desk, job: desk.listing.cancel(job.id),
    "leaving": lambda desk, job: desk.listing.leave(job.id),
    "done": lambda desk, job: finish(desk),
}


@pytest.mark.parametrize("before", ["SELECT items", "UPDATE jobs"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_what_has_ended_does_not_run_again(desk: Desk, ending: str, before: str) -> None:
    job = desk.job(1)
    with ThreadPoolExecutor(1) as pool:
        with halted(lambda: desk.lease("slow"), before):
            ended = pool.submit(ENDINGS[ending], desk, job)
            wait([ended], MOMENT)
        ended.result()
    desk.store.keep_only("slow", [])
    finish(desk)  # if the lease came first
    assert desk.state(job) == ending


def test_a_job_that_is_accepted_after_all_is_not_removed(desk: Desk) -> None:
    """Who received it was silent, was taken for dead, and is back."""
    desk.store.enlist("receiver")
    job = desk.begun(3)
    desk.store.bury("receiver")
    found = desk.listing.leaving(time.time())
    assert found == [job]
    desk.store.enlist("receiver")
    accepted = desk.accepted(job, 3)
    assert not desk.listing.expire(job, time.time())
    assert desk.now(accepted).state == "waiting"
    assert desk.rows(job) == {"jobs": 1, "items": 3, "results": 0}


def test_a_job_that_is_removed_is_not_accepted_after_all(desk: Desk) -> None:
    job = desk.begun(3)
    assert desk.listing.expire(job, time.time())
    with pytest.raises(Unavailable, match="was lost on its way in"):
        desk.accepted(job, 3)


@pytest.mark.slow
def test_results_of_a_job_that_goes_meanwhile_do_not_end_as_if_they_were_whole(
    desk: Desk,
) -> None:
    job = desk.job(PAGE + 1)
    while leased := desk.lease("runner", PAGE):
        for item in leased:
            desk.folder.write_result(item.job, item.number, b'{"explanations":[]}')
            desk.settle("runner", item)
    job = desk.now(job)
    for pack in (zipped, parquet):
        pieces = pack(desk.result_store, desk.folder, job)
        desk.listing.leave(job.id)
        desk.listing.remove(job.id)
        with pytest.raises(UnknownJob, match="was removed while its results were read"):
            list(pieces)


def test_one_whose_clock_is_wrong_takes_nobody_for_dead(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.store.enlist("other")
    ahead = time.time() + 2 * LEASE_SECONDS
    monkeypatch.setattr(time, "time", lambda: ahead)
    assert desk.store.silent() == []
    desk.store.enlist("other")
    monkeypatch.undo()
    assert desk.store.silent() == []
    desk.hush("other")
    assert desk.store.silent() == ["other"]


def test_files_that_cannot_be_removed_keep_no_other_job_s(desk: Desk) -> None:
    """Nor are its rows, by which they are known."""
    first, second = desk.job(1), desk.job(1)
    blobs = desk.folder.path / "blobs"
    (blobs / first.id).mkdir()  # unlink refuses it
    for job in (first, second):
        (blobs / second.id).touch()
        desk.listing.leave(job.id)

    async def keep() -> None:
        with Pool("keeper", 1) as pool:
            runner = cast(Runner, SimpleNamespace(name="me", jobs_in_work=set()))
            async with Janitor(
                runner,
                desk.store,
                desk.listing,
                desk.folder,
                pool,
                retention_seconds=60,
                metrics=Metrics(),
            ):
                await until_async(lambda: not desk.rows(second.id)["jobs"])

    asyncio.run(asyncio.wait_for(keep(), 20))
    assert desk.rows(first.id)["jobs"] == 1
    assert not (blobs / second.id).exists()
