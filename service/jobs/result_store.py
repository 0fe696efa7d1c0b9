"""What is finished of jobs, as those see it who ask for it. Each method is one transaction."""

from __future__ import annotations

import json
import time
from typing import Any

from sqlalchemy import Row, select

from service.jobs.database import Database
from service.jobs.records import Finished, Job
from service.jobs.tables import items, results


class ResultStore:
    """The tables as those see them who fetch results."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def results(self, job: Job, after: int, most: int) -> list[Finished]:
        """What was finished after a cursor, in that order."""
        with self._database.read() as connection:
            found = connection.execute(
                _results()
                .where(results.c.job == job.id, results.c.cursor > after)
                .order_by(results.c.cursor)
                .limit(most)
            )
            return [_finished(row) for row in found]

    def in_order(self, job: Job, after: int, most: int) -> list[Finished]:
        """What was finished when the job was looked up, in the order of its items: those after an
        item's number."""
        with self._database.read() as connection:
            found = connection.execute(
                _results()
                .where(
                    results.c.job == job.id,
                    results.c.cursor <= job.settled,
                    results.c.number > after,
                )
                .order_by(results.c.number)
                .limit(most)
            )
            return [_finished(row) for row in found]

    def result(self, job: Job, item: str) -> Finished | bool:
        """Of one item; whether there is such an item where it has none."""
        with self._database.read() as connection:
            here = (items.c.job == job.id) & (items.c.id == item)
            row = connection.execute(_results().where(here)).one_or_none()
            if row is not None:
                return _finished(row)
            return connection.execute(select(items.c.number).where(here)).first() is not None

    def speed(self, job: Job, of: int = 100) -> float | None:
        """Images per second: of the latest ones while it runs, of all when it has ended."""
        if job.settled == 0 or job.started is None:
            return None
        if job.finished is not None:
            return job.settled / max(job.finished - job.started, 1e-3)
        if job.settled <= of:
            return job.settled / max(time.time() - job.started, 1e-3)
        with self._database.read() as connection:
            before = results.c.cursor == job.settled - of
            since = connection.execute(
                select(results.c.at).where(results.c.job == job.id, before)
            ).scalar()
        return None if since is None else of / max(time.time() - since, 1e-3)


def _results() -> Any:
    joined = results.join(
        items, (items.c.job == results.c.job) & (items.c.number == results.c.number)
    )
    return select(results.c.cursor, results.c.number, results.c.problem, items.c.id).select_from(
        joined
    )


def _finished(row: Row[Any]) -> Finished:
    problem = json.loads(row.problem) if row.problem else None
    return Finished(row.cursor, row.number, row.id, problem)
