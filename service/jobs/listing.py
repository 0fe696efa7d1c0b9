"""The jobs that there are: shown, cancelled, removed. Each method is one transaction."""

from __future__ import annotations

import time
from typing import Any, Final

from sqlalchemy import delete, or_, select, update

from service.jobs.database import Database
from service.jobs.errors import UnknownJob
from service.jobs.records import Job, job_of
from service.jobs.tables import (
    CANCELLED,
    CHUNK,
    DONE,
    LEASED,
    LEAVING,
    OPEN,
    RECEIVING,
    SHOWN,
    items,
    jobs,
    results,
    runners,
)

LEFT: Final = {"state": LEAVING, "idempotency": None}  # a new job may have its key


class Listing:
    """The tables as those see them who ask for jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, job: str, owner: str | None) -> Job:
        """
        Args:
            owner: whose jobs may be seen; None sees all.

        Raises:
            UnknownJob
        """
        with self._database.read() as connection:
            row = connection.execute(
                select(jobs).where(jobs.c.id == job, jobs.c.state.in_(SHOWN), _of(owner))
            ).one_or_none()
        if row is None:
            raise UnknownJob(f"there is no job {job[:80]!r}; GET /v1/jobs lists them")
        return job_of(row)

    def latest(
        self, owner: str | None, *, before: str | None, state: str | None, most: int
    ) -> list[Job]:
        """The latest first, those that came before the one called `before`."""
        states = SHOWN if state is None else (state,)
        query = select(jobs).where(jobs.c.state.in_(states), _of(owner))
        if before is not None:
            query = query.where(jobs.c.id < before)
        query = query.order_by(jobs.c.id.desc()).limit(most)
        with self._database.read() as connection:
            return [job_of(row) for row in connection.execute(query)]

    def cancel(self, job: str) -> None:
        """Work on it no more; what is finished stays. One that has ended stays as it is."""
        with self._database.write() as connection:
            connection.execute(
                update(jobs)
                .where(jobs.c.id == job, jobs.c.state.in_(OPEN))
                .values(state=CANCELLED, finished=time.time())
            )

    def leave(self, job: str, *, accepted: bool = True) -> bool:
        """A job is to be removed: nobody sees it any more.

        Args:
            accepted: even if it was accepted.

        Returns:
            Whether it will be.
        """
        states = (RECEIVING, LEAVING, *(SHOWN if accepted else ()))
        with self._database.write() as connection:
            where = (jobs.c.id == job) & jobs.c.state.in_(states)
            return connection.execute(update(jobs).where(where).values(LEFT)).rowcount == 1

    def leaving(self, ended_before: float) -> list[str]:
        """The jobs to remove: those that are leaving, that ended too long ago, or that somebody
        was receiving who is dead. Not while someone is at work on one, and might write a result."""
        with self._database.read() as connection:
            return list(connection.execute(select(jobs.c.id).where(*_over(ended_before))).scalars())

    def expire(self, job: str, ended_before: float) -> bool:
        """A job that was `leaving` is to be removed, if it still is: who received it may have been
        taken for dead, and has brought it since."""
        with self._database.write() as connection:
            where = (jobs.c.id == job, *_over(ended_before))
            return connection.execute(update(jobs).where(*where).values(LEFT)).rowcount == 1

    def remove(self, job: str) -> None:
        """The rows of a job whose files are gone, the job's own last."""
        for table in (results, items):
            first = select(table.c.number).where(table.c.job == job).order_by(table.c.number)
            while True:
                with self._database.write() as connection:
                    numbers = list(connection.execute(first.limit(CHUNK)).scalars())
                    connection.execute(
                        delete(table).where(table.c.job == job, table.c.number.in_(numbers))
                    )
                if len(numbers) < CHUNK:
                    break
        with self._database.write() as connection:
            connection.execute(delete(jobs).where(jobs.c.id == job))


def _over(ended_before: float) -> tuple[Any, ...]:
    alive = select(runners.c.id).where(runners.c.id == jobs.c.runner).exists()
    in_work = select(items.c.number).where(items.c.job == jobs.c.id, items.c.state == LEASED)
    return ~in_work.exists(), or_(
        jobs.c.state == LEAVING,
        jobs.c.state.in_((DONE, CANCELLED)) & (jobs.c.finished < ended_before),
        (jobs.c.state == RECEIVING) & ~alive,
    )


def _of(owner: str | None) -> Any:
    return jobs.c.id.is_not(None) if owner is None else jobs.c.owner == owner
