"""What keeps items from being done for a while, and none of them from being done at last."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.app import create_app
from service.core.errors import MOST_TRIES, Unavailable
from service.engine.engine import Engine
from service.engine.manager import ModelManager
from service.features.jobs.database import Database
from service.features.jobs.leases import Store
from service.features.jobs.records import Job
from service.features.jobs.results import ResultStore
from service.features.jobs.routes import PAGE
from service.features.jobs.runner import LEASE_ITEMS, Runner
from service.features.jobs.submission import Submissions
from service.features.keys.keys import new_key
from service.settings import Settings
from tests import waiting
from tests.chaos.stage import photo, plain, staged
from tests.service.conftest import wait_until_ready
from tests.service.features.jobs.apps import (
    answers,
    app_at,
    job_of,
    packed,
    post,
    until,
    until_done,
)
from tests.service.features.jobs.conftest import TINY
from tests.service.features.jobs.test_postgres import http
from tests.zoo.hostile import SICK

COUNT = 40
PHOTOS = [photo(seed) for seed in range(COUNT)]


@contextmanager
def two_models(folder: Path) -> Iterator[TestClient]:
    """Called tiny and other, with a key that may remove and add one."""
    key, keys = new_key("operator", ["explain", "admin"], None)
    (folder / "keys.toml").write_text(keys)
    settings = Settings(jobs=folder / "jobs", keys=folder / "keys.toml")
    app = create_app(settings, [TINY, TINY.model_copy(update={"name": "other"})])
    with TestClient(app) as client:
        client.headers["X-API-Key"] = key
        wait_until_ready(client)
        yield client


@pytest.mark.slow
def test_a_model_that_goes_leaves_its_items_undone(tmp_path: Path) -> None:
    """Those too that were leased already, and waited until nobody else did."""
    with two_models(tmp_path) as client:
        with client.app.state.admission.hold("other", 1, costly=0):  # type: ignore[attr-defined]
            job = job_of(post(client, PHOTOS, "?model=tiny"))
            until(client, job, lambda document: document["counts"]["done"] >= 2)
            assert client.delete("/v1/models/tiny").status_code == 204
            document = until(client, job, lambda document: document.get("stalled"))
        assert document["stalled"] == "there is no model 'tiny' any more"

        def is_left() -> bool:
            document = client.get(job).json()
            counts = document["counts"]
            few = counts["failed"] == 0 and counts["done"] <= 2 + LEASE_ITEMS
            return bool(few and document["state"] == "running")

        waiting.stays(is_left, 1)  # in which whoever waited for its turn has it


@pytest.mark.slow
def test_a_photo_that_hangs_the_model_is_given_up(tmp_path: Path) -> None:
    """Though the process is replaced after three such."""
    images = [*PHOTOS[:20], plain(SICK), *PHOTOS[20:]]
    with (
        staged("stuck", hang_seconds="1", jobs=str(tmp_path)) as stage,
        http(stage) as client,
    ):
        sent = {"Content-Type": "application/zip"}
        job = job_of(client.post("/v1/jobs", content=packed(images), headers=sent))

        def counts() -> dict[str, int]:
            answer = client.get(job)  # 503 while the model has no worker
            found: dict[str, int] = answer.json().get("counts", {"left": -1})
            return found

        waiting.until(lambda: not counts()["left"], 120)
        assert counts() == {"total": COUNT + 1, "done": COUNT, "failed": 1, "left": 0}
        found = answers(client, job)
        assert [name for name, line in found.items() if "error" in line] == ["20.png"]
        assert "ended or hung" in found["20.png"]["error"]


@pytest.mark.slow
def test_a_model_that_takes_nothing_for_a_while_fails_no_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while it gets a new worker, which the process that receives requests learns too late."""
    monkeypatch.setattr("service.features.jobs.executor.PAUSE_SECONDS", 0.1)
    begin, turned_away = Engine.begin, 0
    # Of four items, one at least is turned away more often than an item may fail.
    times = 4 * MOST_TRIES + 1

    def busy(self: Engine, *given: Any, **more: Any) -> Any:
        nonlocal turned_away
        if turned_away < times:
            turned_away += 1
            raise Unavailable("it is getting a new worker; try again", retry_after=1)
        return begin(self, *given, **more)

    with app_at(tmp_path) as client:
        monkeypatch.setattr(Engine, "begin", busy)
        document = until_done(client, job_of(post(client, PHOTOS[:4])))
    assert document["counts"] == {"total": 4, "done": 4, "failed": 0, "left": 0}
    assert turned_away == times


@pytest.mark.slow
def test_a_folder_that_cannot_be_read_for_a_while_fails_no_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.features.jobs.runner.PAUSE_SECONDS", 0.5)
    opened = Path.open
    away = threading.Event()
    away.set()

    def busy(file: Path, *how: Any, **more: Any) -> Any:
        if file.parent.name == "blobs" and "rb" in how and away.is_set():
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(file, *how, **more)

    monkeypatch.setattr(Path, "open", busy)
    with app_at(tmp_path) as client:
        job = job_of(post(client, PHOTOS))
        document = until(client, job, lambda document: document.get("stalled"))
        assert document["stalled"] == "the folder of jobs cannot be read: Too many open files"
        away.clear()
        document = until_done(client, job)
        assert document["counts"] == {"total": COUNT, "done": COUNT, "failed": 0, "left": 0}


def has_at_most(left: int, document: dict[str, Any]) -> bool:
    return bool(document["counts"]["left"] <= left)


@pytest.mark.slow
def test_a_runner_that_was_taken_for_dead_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another replica, whose clock is wrong say, frees what it has in hand; it leases it again."""
    with app_at(tmp_path) as client:
        runner: Runner = client.app.state.jobs.place.runner  # type: ignore[attr-defined]
        job = job_of(post(client, PHOTOS))
        for most in (COUNT - 2, COUNT - 20):
            until(client, job, partial(has_at_most, most))
            with Database(tmp_path, None) as database:
                Store(database).bury(runner.name)
        document = until_done(client, job)
        assert document["counts"] == {"total": COUNT, "done": COUNT, "failed": 0, "left": 0}
        assert len(answers(client, job)) == COUNT
    assert [r.message for r in caplog.records if r.levelno >= logging.ERROR] == []


@pytest.mark.slow
def test_a_job_that_comes_at_the_last_moment_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was told that it is not, would bring it again."""
    accept = Submissions.accept
    with app_at(tmp_path) as client:
        manager: ModelManager = client.app.state.manager  # type: ignore[attr-defined]

        def accept_last(*what: Any, **more: Any) -> Job:
            job = accept(*what, **more)
            manager.draining = True
            return job

        monkeypatch.setattr(Submissions, "accept", accept_last)
        answer = post(client, PHOTOS[:1])
        assert answer.status_code == 202
        assert answer.json()["stalled"] == "the service is shutting down"


def test_results_that_go_while_they_are_read_cut_the_answer_off(
    jobs: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = {"Content-Type": "application/zip"}
    images = packed([PHOTOS[0]] * (PAGE + 10))
    job = job_of(jobs.post("/v1/jobs?model=tiny", content=images, headers=sent))
    until_done(jobs, job)
    look = ResultStore.results
    monkeypatch.setattr(
        ResultStore,
        "results",
        lambda self, job, after, most: [] if after else look(self, job, 0, most),
    )
    with pytest.raises(RuntimeError, match="response already started"):
        jobs.get(f"{job}/results")
    jobs.delete(f"{job}?purge=true")
