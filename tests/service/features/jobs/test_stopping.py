"""SIGTERM in the middle of a job, and what the next process finds."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from service.features.jobs.leases import LEASE_SECONDS
from service.features.jobs.settings import FILE
from tests.chaos.stage import photo, staged
from tests.service.features.jobs.apps import answers, job_of, lines, post, until, until_done
from tests.service.features.jobs.test_postgres import MODEL, http

PHOTOS = [photo(seed) for seed in range(60)]


def rows(folder: Path, query: str) -> list[Any]:
    with sqlite3.connect(folder / FILE) as connection:
        found = connection.execute(query).fetchall()
    connection.close()
    return found


@pytest.mark.slow
def test_sigterm_gives_leases_back_and_the_next_process_goes_on_at_once(tmp_path: Path) -> None:
    with staged(MODEL, jobs=str(tmp_path)) as stage, http(stage) as client:
        job = job_of(post(client, PHOTOS))
        until(client, job, lambda document: document["counts"]["done"] >= 5)
        before = lines(client, job)
        assert stage.stop(10) == 0  # it waits neither for the job nor for a lease
    assert rows(tmp_path, "SELECT DISTINCT state FROM items ORDER BY 1") == [
        ("free",),
        ("settled",),
    ]
    assert rows(tmp_path, "SELECT sum(attempts) FROM items") == [(0,)]
    assert rows(tmp_path, "SELECT * FROM runners") == []
    assert list(tmp_path.rglob("*.tmp")) == []
    assert not list((tmp_path / "runners").iterdir())
    assert not list((tmp_path / "incoming").iterdir())
    (done,) = rows(tmp_path, "SELECT done FROM jobs")[0]
    assert len(before) <= done < len(PHOTOS)
    with staged(MODEL, jobs=str(tmp_path)) as stage, http(stage) as client:
        # No lease has to run out.
        until(client, job, lambda document: document["counts"]["done"] > done, LEASE_SECONDS * 0.4)
        assert until_done(client, job)["counts"]["done"] == len(PHOTOS)
        assert lines(client, job)[: len(before)] == before
        assert len(answers(client, job)) == len(PHOTOS)
    assert rows(tmp_path, "SELECT sum(attempts) FROM items") == [(0,)]
