"""Two services, each a process of its own, that share a PostgreSQL and a folder."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import create_engine, text

from service.features.jobs.leases import LEASE_SECONDS
from tests.chaos.sockets import metric
from tests.chaos.stage import Client, Stage, photo, staged, until_ready
from tests.service.features.jobs.apps import answers, job_of, post, until, until_done
from tests.service.features.jobs.postgres import Postgres, postgres
from tests.waiting import stays

MODEL = """
name = "slow"
source = "factory:tests.zoo.factories:bulky"
weights = "none"
input_size = 8
max_batch = 1
"""
"""A tenth of a second for each image."""
SILENT_SECONDS = LEASE_SECONDS / 2
"""For which the items of a killed service stay its own, at least."""
COUNT = 90
PHOTOS = [photo(seed) for seed in range(COUNT)]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as running:
        yield running


@contextmanager
def replicas(url: str, folder: Path) -> Iterator[tuple[Stage, Stage]]:
    with ExitStack() as scope:
        both = [
            scope.enter_context(staged(MODEL, wait=False, jobs=str(folder), jobs_database=url))
            for _ in range(2)
        ]
        for stage in both:
            until_ready(stage)
        yield both[0], both[1]


def http(stage: Stage) -> httpx2.Client:
    return httpx2.Client(base_url=f"http://127.0.0.1:{stage.port}", timeout=60)


def explained(stage: Stage) -> float:
    async def ask() -> float:
        async with Client(stage.port) as client:
            return await metric(client, 'gradcam_batch_size_sum{model="slow"')

    return asyncio.run(ask())


def query(url: str, words: str) -> list[Any]:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(text(words))]
    engine.dispose()
    return found


def check(client: httpx2.Client, job: str, url: str, seconds: float = 120) -> None:
    """Every item is done within so many seconds, and told once."""
    document = until_done(client, job, seconds)
    assert document["counts"] == {"total": COUNT, "done": COUNT, "failed": 0, "left": 0}
    assert answers(client, job).keys() == {f"{number}.png" for number in range(COUNT)}
    assert query(url, "SELECT count(*), count(DISTINCT number), max(cursor) FROM results") == [
        (COUNT, COUNT, COUNT)
    ]


@pytest.mark.slow
def test_two_services_share_a_job(server: Postgres, tmp_path: Path) -> None:
    url = server.fresh()
    with replicas(url, tmp_path) as (one, other), http(one) as first, http(other) as second:
        warm = explained(one), explained(other)
        job = job_of(post(first, PHOTOS))
        assert second.get(job).json()["counts"]["total"] == COUNT
        check(second, job, url)
        assert answers(first, job) == answers(second, job)
        shares = explained(one) - warm[0], explained(other) - warm[1]
        # Neither did what the other one did, and each did its part: of items that take 0.1 s,
        # leased 16 at a time, no less than a fourth.
        assert sum(shares) == COUNT
        assert min(shares) >= COUNT / 4, shares
        assert query(url, "SELECT sum(attempts) FROM items") == [(0,)]
        stopped = [stage.stop() for stage in (one, other)]
    assert stopped == [0, 0]
    assert query(url, "SELECT id FROM runners") == []


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", [False, True])
def test_one_of_two_services_is_killed(server: Postgres, tmp_path: Path, elsewhere: bool) -> None:
    """For good. On the same machine the other one knows it by its lock, else by its silence."""
    url = server.fresh()
    with replicas(url, tmp_path) as (one, other), http(one) as first, http(other) as second:
        job = job_of(post(first, PHOTOS))
        until(first, job, lambda document: document["counts"]["done"] >= 20)
        if elsewhere:
            rename_hosts(url)
        kill(one)
        held = query(url, "SELECT runner, count(*) FROM items WHERE state = 'leased' GROUP BY 1")
        assert len(held) == 2, held  # it had some in hand
        if elsewhere:  # what it had in hand is its own until it has been silent for long
            stays(lambda: query(url, "SELECT sum(attempts) FROM items") == [(0,)], SILENT_SECONDS)
        left = 3 * LEASE_SECONDS - SILENT_SECONDS if elsewhere else 2 * LEASE_SECONDS
        check(second, job, url, left)
        attempts = query(url, "SELECT attempts, count(*) FROM items GROUP BY 1 ORDER BY 1")
        assert [each for each, _ in attempts] == [0, 1]
        assert attempts[1][1] in [count for _, count in held]


def rename_hosts(url: str) -> None:
    """As if each were on a machine of its own."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE runners SET host = id"))
    engine.dispose()


def kill(stage: Stage) -> None:
    """The supervisor first, or it would bring another one up."""
    server = stage.door
    os.kill(stage.process.pid, signal.SIGKILL)
    server.kill()
    stage.process.wait()
