"""The tables and files of jobs without a service around them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import func, select, update

from service.features.jobs.database import Database
from service.features.jobs.database_tables import items, jobs, results, runners
from service.features.jobs.job_files import Folder
from service.features.jobs.leases import LEASE_SECONDS, Store
from service.features.jobs.listing import Listing
from service.features.jobs.records import Finished, Job, Leased, NewItem, NewJob
from service.features.jobs.results import ResultStore
from service.features.jobs.submission import Submissions
from service.pipeline.parameters import Parameters

MODEL = ("m", "w")


@dataclass(frozen=True)
class Desk:
    database: Database
    submissions: Submissions
    listing: Listing
    store: Store
    result_store: ResultStore
    folder: Folder

    def begun(
        self,
        count: int,
        runner: str = "receiver",
        key: str | None = None,
        kind: str = "explain",
    ) -> str:
        """A job that is on its way in."""
        draft = self.draft(key, kind)
        job = self.submissions.begin(runner, draft)
        self.submissions.add(
            job, 0, [NewItem(f"item {n}", {"path": f"{n}.png"}) for n in range(count)]
        )
        return job

    def draft(self, key: str | None = None, kind: str = "explain") -> NewJob:
        return NewJob(*MODEL, Parameters(), "", key, kind)

    def accepted(self, job: str, count: int, key: str | None = None, kind: str = "explain") -> Job:
        return self.submissions.accept(
            job, self.draft(key, kind), total=count, size=0, digest="same", warnings=()
        )

    def job(self, count: int, key: str | None = None, kind: str = "explain") -> Job:
        return self.accepted(self.begun(count, key=key, kind=kind), count, key, kind)

    def lease(self, runner: str, most: int = 16) -> list[Leased]:
        return self.store.lease(runner, [MODEL], most)

    def settle(self, runner: str, item: Leased) -> bool:
        return self.store.settle(runner, item, None, 1)

    def now(self, job: Job) -> Job:
        return self.listing.get(job.id, None)

    def state(self, job: Job) -> str:
        """Also of one that nobody sees."""
        with self.database.read() as connection:
            query = select(jobs.c.state).where(jobs.c.id == job.id)
            return str(connection.execute(query).scalar_one())

    def finished(self, job: Job) -> list[Finished]:
        return self.result_store.results(self.now(job), 0, 100_000)

    def attempts(self, job: Job) -> list[int]:
        with self.database.read() as connection:
            query = select(items.c.attempts).where(items.c.job == job.id).order_by(items.c.number)
            return list(connection.execute(query).scalars())

    def set_attempts(self, job: Job, number: int, attempts: int) -> None:
        with self.database.write() as connection:
            one = (items.c.job == job.id) & (items.c.number == number)
            connection.execute(update(items).where(one).values(attempts=attempts))

    def hush(self, runner: str, seconds: float = LEASE_SECONDS + 1) -> None:
        """Nothing was heard of a runner for so long."""
        with self.database.write() as connection:
            seen = time.time() - seconds
            connection.execute(update(runners).where(runners.c.id == runner).values(seen=seen))

    def rows(self, job: str) -> dict[str, int]:
        """How many there are of a job."""
        tables: dict[str, Any] = {"jobs": jobs.c.id, "items": items.c.job, "results": results.c.job}
        with self.database.read() as connection:
            return {
                name: connection.execute(select(func.count()).where(column == job)).scalar_one()
                for name, column in tables.items()
            }


@contextmanager
def desk_at(folder: Path, url: str | None = None) -> Iterator[Desk]:
    files = Folder(folder)
    with Database(folder, url) as database:
        submissions, listing = Submissions(database), Listing(database)
        yield Desk(database, submissions, listing, Store(database), ResultStore(database), files)
