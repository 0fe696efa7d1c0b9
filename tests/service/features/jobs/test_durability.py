"""What is on the disk after a process was killed at the worst of moments."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace

import pytest

from service.core.errors import Unavailable
from service.core.files import written_whole
from service.core.metrics import Metrics
from service.core.pool import Pool
from service.features.jobs.janitor import Janitor, bury_dead, enlisted
from service.features.jobs.job_files import Folder
from service.features.jobs.settings import FILE
from tests.service.features.jobs.desk import Desk, desk_at
from tests.service.features.jobs.mortal import DOCUMENT, MOMENTS, NAME, live
from tests.waiting import stays_async, until_async


@dataclass(frozen=True)
class Mortal:
    process: BaseProcess
    said: Connection

    def hear(self, word: str) -> None:
        assert self.said.poll(60)
        assert self.said.recv() == word

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


@contextmanager
def mortal(folder: Path, moment: str) -> Iterator[Mortal]:
    """It has its imports from a process that is forked for each of them."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.service.features.jobs.mortal"])
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=live, args=(folder, moment, sending))
    process.start()
    sending.close()
    with receiving:
        try:
            yield Mortal(process, receiving)
        finally:
            process.kill()
            process.join()


def files(folder: Path) -> list[str]:
    """All but the database's."""
    found = (each for each in folder.rglob("*") if each.is_file())
    return sorted(str(each.relative_to(folder)) for each in found if FILE not in each.name)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_at(tmp_path) as desk:
        yield desk


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_process_that_dies_while_it_finishes_an_item(
    desk: Desk, tmp_path: Path, moment: str
) -> None:
    """It is finished, or it is not; then another one does it, and only once."""
    job = desk.job(5)
    with mortal(tmp_path, moment) as dying:
        dying.process.join(60)
        assert dying.process.exitcode == -signal.SIGKILL
    done = 2 if moment == "after it" else 1
    with desk_at(tmp_path) as desk, enlisted("next", desk.store, desk.folder):
        assert desk.now(job).done == done
        assert [each.cursor for each in desk.finished(job)] == list(range(1, done + 1))
        # At once, by its lock. What it had in hand counts as an attempt, what it finished not.
        assert desk.store.runners() == {"next"}
        assert desk.attempts(job) == [0] * done + [1] * (4 - done) + [0]
        while leased := desk.lease("next"):
            for each in leased:
                desk.folder.write_result(job.id, each.number, DOCUMENT % each.number)
                assert desk.settle("next", each)
        now = desk.now(job)
        assert (now.state, now.done, now.failed) == ("done", 5, 0)
        assert [each.cursor for each in desk.finished(job)] == [1, 2, 3, 4, 5]
        assert sorted(each.number for each in desk.finished(job)) == [0, 1, 2, 3, 4]
        for number in range(5):
            assert desk.folder.read_result(job.id, number) == DOCUMENT % number
    results = [f"results/{job.id}/0000/{number}.json" for number in range(5)]
    assert files(tmp_path) == results  # nothing half done, no lock
    with sqlite3.connect(tmp_path / FILE) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


@pytest.mark.slow
def test_the_dead_are_known_by_their_lock_and_the_living_never_taken_for_dead(
    desk: Desk, tmp_path: Path
) -> None:
    job = desk.job(6)
    with mortal(tmp_path, "hold") as other:
        other.hear("leased")
        for _ in range(20):
            assert not desk.folder.is_dead(NAME)
            bury_dead("me", desk.store, desk.folder)
        assert [each.number for each in desk.lease("me")] == [4, 5]
        other.signal(signal.SIGSTOP)  # it says nothing, but it is there
        assert not desk.folder.is_dead(NAME)
        other.kill()
        assert desk.folder.is_dead(NAME)
        bury_dead("me", desk.store, desk.folder)
    assert desk.store.runners() == set()
    assert [each.number for each in desk.lease("me")] == [0, 1, 2, 3]
    assert desk.attempts(job) == [1, 1, 1, 1, 0, 0]


def test_who_is_stopped_for_long_loses_its_items_and_does_no_harm(
    desk: Desk, tmp_path: Path
) -> None:
    """One that wakes up after its lease is over: its items are others' by then."""
    job = desk.job(2)
    with enlisted("slow", desk.store, desk.folder):
        (first, second) = desk.lease("slow")
        desk.hush("slow")
        bury_dead("me", desk.store, desk.folder, silent=False)
        assert desk.lease("me") == []
        bury_dead("me", desk.store, desk.folder)
        (mine, _) = desk.lease("me")
        assert desk.settle("me", mine)
        assert not desk.settle("slow", first)
        assert not desk.settle("slow", second)
        desk.folder.write_result(job.id, 1, b"{}")  # its folder for it is made anew
    assert desk.now(job).settled == 1


def test_what_a_dead_process_was_receiving_goes_with_its_files(desk: Desk, tmp_path: Path) -> None:
    with mortal(tmp_path, "receive") as other:
        other.hear("received")
        before = files(tmp_path)
        assert [Path(each).parts[0] for each in before] == ["blobs", "incoming", "runners"]
        (name,) = (Path(each).name for each in before if each.startswith("blobs"))
        assert desk.rows(name) == {"jobs": 1, "items": 3, "results": 0}
        other.kill()
    look_after(desk, lambda: files(tmp_path) == [str(Path("runners", "me.lock"))])
    assert files(tmp_path) == []
    assert desk.rows(name) == {"jobs": 0, "items": 0, "results": 0}


def test_a_lock_that_nobody_knows_is_removed_when_it_is_old(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process died between its burial of another one and the removal of its lock."""
    (tmp_path / "runners" / "gone.lock").touch()
    with enlisted("me", desk.store, desk.folder):
        assert len(files(tmp_path)) == 2
        monkeypatch.setattr("service.features.jobs.job_files.OLD_SECONDS", -1)
        bury_dead("other", desk.store, desk.folder)
        assert files(tmp_path) == ["runners/me.lock"]


def test_a_folder_for_what_is_not_whole_yet_goes_with_its_runner(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    with (
        suppress(ZeroDivisionError),
        folder.alive("me"),
        folder.incoming() as file,
    ):
        file.write(b"x")
        assert len(list((tmp_path / "incoming" / "me").iterdir())) == 1
        1 / 0  # noqa: B018
    assert files(tmp_path) == []
    assert not (tmp_path / "incoming" / "me").exists()
    with folder.alive("me"):  # the lock is free again
        pass


@pytest.mark.parametrize("scratch", [False, True])
def test_a_file_is_whole_or_not_there(tmp_path: Path, scratch: bool) -> None:
    other = tmp_path / "scratch"
    other.mkdir()
    file = tmp_path / "file"
    where = other if scratch else None
    with suppress(ZeroDivisionError), written_whole(file, where) as temporary:
        temporary.write_bytes(b"half")
        1 / 0  # noqa: B018
    assert files(tmp_path) == []
    with written_whole(file, where) as temporary:
        assert temporary.parent == (other if scratch else tmp_path)
        temporary.write_bytes(b"whole")
        assert not file.exists()
    assert files(tmp_path) == ["file"]
    assert file.read_bytes() == b"whole"


@pytest.mark.slow
def test_who_could_not_be_heard_itself_takes_nobody_for_dead(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a database comes back after a while, all are silent, and alive."""
    monkeypatch.setattr("service.features.jobs.janitor.LEASE_SECONDS", 2.0)
    monkeypatch.setattr("service.features.jobs.janitor.BEAT_SECONDS", 0.05)
    away = False
    enlist = desk.store.enlist

    def enlist_unless_away(name: str) -> None:
        if away:
            raise Unavailable("it is away")
        enlist(name)

    monkeypatch.setattr(desk.store, "enlist", enlist_unless_away)

    async def run() -> None:
        nonlocal away
        async with looked_after(desk):
            desk.store.enlist("other")
            desk.hush("other")

            def lives() -> bool:
                return "other" in desk.store.runners()

            await stays_async(lives, 1.2)
            away = True
            await stays_async(lives, 1.2)
            away = False
            await stays_async(lives, 1.0)  # though silent for 3.4 s, and more
            await until_async(lambda: desk.store.runners() == {"me"}, 30)

    asyncio.run(run())


def look_after(desk: Desk, done: Callable[[], bool]) -> None:
    """As a service does when it comes up, until that has been done."""

    async def run() -> None:
        async with looked_after(desk):
            await until_async(done)

    asyncio.run(run())


@asynccontextmanager
async def looked_after(desk: Desk) -> AsyncIterator[None]:
    async with looked_after_by(desk, SimpleNamespace(name="me", jobs_in_work=set())):
        yield


@asynccontextmanager
async def looked_after_by(desk: Desk, runner: object) -> AsyncIterator[None]:
    with Pool("jobs", 2) as pool, enlisted("me", desk.store, desk.folder):
        async with Janitor(
            runner,  # type: ignore[arg-type]
            desk.store,
            desk.listing,
            desk.folder,
            pool,
            retention_seconds=3600,
            metrics=Metrics(),
        ):
            yield


@pytest.mark.anyio
async def test_what_is_cancelled_through_another_process_is_withdrawn(desk: Desk) -> None:
    going, cancelled = desk.job(1), desk.job(1)
    desk.listing.cancel(cancelled.id)
    dropped: list[str] = []
    runner = SimpleNamespace(name="me", jobs_in_work={going.id, cancelled.id}, drop=dropped.append)
    async with looked_after_by(desk, runner):
        await until_async(lambda: dropped)
    assert dropped == [cancelled.id]
