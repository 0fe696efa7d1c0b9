"""A full disk and a database that is away: jobs wait, say why, and go on by themselves."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from service.features.jobs.settings import FILE
from tests import waiting
from tests.chaos.stage import photo
from tests.service.features.jobs.apps import answers, app_at, job_of, lines, post, until, until_done
from tests.service.features.jobs.forms import files_of
from tests.service.features.jobs.postgres import postgres

PHOTOS = [photo(seed) for seed in range(24)]
SMALL_DISK = 16_000_000


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.features.jobs.runner.HEADSTART_SECONDS", 0.0)
    monkeypatch.setattr("service.features.jobs.runner.PAUSE_SECONDS", 0.5)
    monkeypatch.setattr("service.features.jobs.janitor.BEAT_SECONDS", 0.5)
    monkeypatch.setattr("service.features.jobs.host.AGAIN_SECONDS", 0.5)
    monkeypatch.setattr("service.features.jobs.database.BUSY_SECONDS", 1)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small one of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no small disk can be mounted here: {error}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class Ballast:
    """A file that takes all room but some."""

    def __init__(self, disk: Path) -> None:
        self._file = disk / "ballast"

    def fill(self, *, but: int = 0) -> None:
        with self._file.open("ab", buffering=0) as file:
            for size in (65_536, 4096, 1):
                with suppress(OSError):
                    while file.write(b"x" * size) == size:
                        pass
            if but:
                file.truncate(max(self._file.stat().st_size - but, 0))

    def remove(self) -> None:
        self._file.unlink()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the job says where nothing goes wrong."""
    with app_at(tmp_path_factory.mktemp("calm")) as client:
        job = job_of(post(client, PHOTOS))
        until_done(client, job)
        return answers(client, job)


def jobs_in(folder: Path) -> list[str]:
    with sqlite3.connect(folder / FILE) as connection:
        found = connection.execute("SELECT state FROM jobs").fetchall()
    connection.close()
    return [state for (state,) in found]


@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 400_000])
def test_a_job_for_which_there_is_no_room_is_refused(disk: Path, room: int) -> None:
    ballast = Ballast(disk)
    large = [photo(seed, 300, 300) for seed in range(6)]  # 1.6 MB
    with app_at(disk / "jobs") as client:
        ballast.fill(but=room)
        for query in ("", "?format=none"):
            answer = post(client, large, query) if not query else form(client, large)
            assert answer.status_code == 507, answer.text
            problem = answer.json()
            assert problem["status"] == 507
            assert "room" in problem["detail"] or "disk" in problem["detail"]
            assert str(disk) not in answer.text
            assert int(answer.headers["retry-after"]) > 0
        assert files_of(disk / "jobs") == []
        assert client.get("/v1/jobs").json()["jobs"] == []
        explained = client.post(
            "/v1/models/slow:explain", content=PHOTOS[0], headers={"Content-Type": "image/png"}
        )
        assert explained.status_code == 200  # which needs no disk
        ballast.remove()
        waiting.until(lambda: not jobs_in(disk / "jobs"))
        job = job_of(post(client, large))
        assert until_done(client, job)["counts"]["done"] == 6


def form(client: Any, images: list[bytes]) -> Any:
    return client.post(
        "/v1/jobs", files=[("image", (str(n), each)) for n, each in enumerate(images)]
    )


@pytest.mark.slow
def test_a_disk_that_fills_up_stops_a_job_until_there_is_room(
    disk: Path, whole: dict[str, Any]
) -> None:
    ballast = Ballast(disk)
    with app_at(disk / "jobs") as client:
        job = job_of(post(client, PHOTOS))
        until(client, job, lambda document: document["counts"]["done"] >= 2)
        ballast.fill()
        stalled = until(client, job, lambda document: "stalled" in document)
        assert stalled["state"] == "running"
        assert "room" in stalled["stalled"] or "disk" in stalled["stalled"]
        assert str(disk) not in stalled["stalled"]
        before = lines(client, job)
        waiting.stays(lambda: client.get(job).json()["counts"] == stalled["counts"], 1.5)
        ballast.remove()
        document = until_done(client, job)
        assert "stalled" not in document
        assert document["counts"] == {"total": 24, "done": 24, "failed": 0, "left": 0}
        assert lines(client, job)[: len(before)] == before
        assert answers(client, job) == whole
    assert not list((disk / "jobs" / "incoming").iterdir())


@pytest.mark.slow
def test_jobs_are_removed_from_a_full_disk(disk: Path) -> None:
    """All of them, by callers and by their age, and again when the service has started anew; then
    there is room for the next."""
    ballast = Ballast(disk)
    with app_at(disk / "jobs") as client:
        ended, running = job_of(post(client, PHOTOS[:2])), job_of(post(client, PHOTOS))
        until_done(client, ended)
        until(client, running, lambda document: document["counts"]["done"] >= 1)
        ballast.fill()
        until(client, running, lambda document: "stalled" in document)
        ballast.fill()  # what was given back of the disk, too
        for job in (ended, running):
            answer = client.delete(f"{job}?purge=true")
            assert answer.status_code == 204, answer.text
            assert client.get(job).status_code == 404
        waiting.until(lambda: not jobs_in(disk / "jobs"))
        assert files_of(disk / "jobs") == []
    with app_at(disk / "jobs") as client:
        ballast.remove()
        assert until_done(client, job_of(accepted(client)))["counts"]["done"] == 4


def accepted(client: Any) -> Any:
    """The answer to a job, as soon as there is room for it."""
    return waiting.until(lambda: [a for a in [post(client, PHOTOS[:4])] if a.status_code == 202])[0]


@pytest.mark.slow
def test_a_service_that_starts_on_a_full_disk(disk: Path) -> None:
    """It explains, and jobs can be read and removed; the others go on as soon as there is room."""
    ballast = Ballast(disk)
    with app_at(disk / "jobs") as client:
        jobs = [job_of(post(client, PHOTOS[:4])) for _ in range(2)]
    ballast.fill()
    with app_at(disk / "jobs") as client:
        assert client.get(jobs[0]).json()["state"] in ("waiting", "running")
        answer = post(client, PHOTOS[:1])
        assert answer.status_code == 507, answer.text
        assert "the disk of the jobs' folder is full" in answer.json()["detail"]
        assert client.delete(f"{jobs[0]}?purge=true").status_code == 204
        ballast.remove()
        assert until_done(client, jobs[1])["counts"]["done"] == 4


@pytest.mark.slow
def test_a_service_that_starts_on_a_full_disk_without_a_reserve(disk: Path) -> None:
    """It explains; jobs are there as soon as there is room."""
    ballast = Ballast(disk)
    with app_at(disk / "jobs") as client:
        job = job_of(post(client, PHOTOS[:4]))
    (disk / "jobs" / f"{FILE}.reserve").unlink()
    ballast.fill()
    with app_at(disk / "jobs") as client:
        answer = client.get(job)
        assert answer.status_code == 503, answer.text
        assert "room" in answer.json()["detail"] or "disk" in answer.json()["detail"]
        ballast.remove()
        until(client, job, lambda document: document.get("state") == "done")
        assert client.get(job).json()["counts"]["done"] == 4


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Nobody else can write, as where an operator copies it, or looks into it."""
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.execute("ROLLBACK")
    connection.close()


@pytest.mark.slow
def test_a_locked_database_stops_a_job_until_it_is_free(
    tmp_path: Path, whole: dict[str, Any]
) -> None:
    folder = tmp_path / "jobs"
    with app_at(folder) as client:
        job = job_of(post(client, PHOTOS))
        until(client, job, lambda document: document["counts"]["done"] >= 2)
        with locked(folder / FILE):
            stalled = until(client, job, lambda document: "stalled" in document)
            assert "does not answer" in stalled["stalled"]
            assert "locked" in stalled["stalled"]
            refused = post(client, PHOTOS[:1])
            assert refused.status_code == 503
            assert "retry-after" in refused.headers
        assert until_done(client, job)["counts"]["done"] == 24
        assert answers(client, job) == whole


@pytest.mark.slow
def test_a_database_that_goes_away_and_comes_back(tmp_path: Path, whole: dict[str, Any]) -> None:
    """Twice, while a job runs; nothing is lost, and nothing done twice is told twice."""
    with (
        postgres() as server,
        app_at(tmp_path / "jobs", jobs_database=server.fresh()) as client,
    ):
        job = job_of(post(client, PHOTOS))
        for mode in ("fast", "immediate"):
            done = client.get(job).json()["counts"]["done"]
            until(client, job, lambda document: document["counts"]["done"] > done + 1)  # noqa: B023
            server.stop(mode)
            answer = client.get(job)
            assert answer.status_code == 503, answer.text
            assert "does not answer" in answer.json()["detail"]
            assert post(client, PHOTOS[:1]).status_code == 503
            waiting.stays(lambda: client.get(job).status_code == 503, 1.5)
            server.start()
        assert until_done(client, job)["counts"]["done"] == 24
        assert answers(client, job) == whole
        assert job_of(post(client, PHOTOS[:1], **{"Idempotency-Key": "a"}))


@pytest.mark.slow
def test_a_service_that_starts_while_the_database_is_away(tmp_path: Path) -> None:
    with postgres() as server:
        url = server.fresh()
        server.stop()
        with app_at(tmp_path / "jobs", jobs_database=url) as client:
            answer = post(client, PHOTOS[:1])
            assert answer.status_code == 503, answer.text
            assert "does not answer" in answer.json()["detail"]
            server.start()

            def taken() -> Any:
                answer = post(client, PHOTOS[:1])
                return None if answer.status_code == 503 else answer

            until_done(client, job_of(waiting.until(taken)))
