"""The database operations that show, cancel and remove jobs."""

from __future__ import annotations

import time
from typing import Any, Final

from sqlalchemy import delete, func, or_, select, update

from service.features.jobs.database import Database, freeing
from service.features.jobs.database_tables import (
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
from service.features.jobs.errors import UnknownJob
from service.features.jobs.records import Job, job_of

FEW: Final = 250
"""Largest number of rows that one transaction deletes when the disk is full."""
LEFT: Final = {"state": LEAVING, "idempotency": None}  # frees the key for a new job


class Listing:
    """Shows, cancels and removes jobs in the database. Each method but `remove` is one
    transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, job: str, owner: str | None) -> Job:
        """Return an accepted job.

        Args:
            owner: only jobs of this owner are found; None finds all jobs.

        Raises:
            UnknownJob: if there is no such job.
        """
        with self._database.read() as connection:
            row = connection.execute(
                select(jobs).where(jobs.c.id == job, jobs.c.state.in_(SHOWN), _of(owner))
            ).one_or_none()
        if row is None:
            raise UnknownJob(f"there is no job {job[:80]!r}; GET /v1/jobs lists them")
        return job_of(row)

    def unfinished(self) -> dict[str, int]:
        """Return the number of jobs in each state of `OPEN`."""
        query = select(jobs.c.state, func.count()).where(jobs.c.state.in_(OPEN))
        with self._database.read() as connection:
            numbers = {row[0]: row[1] for row in connection.execute(query.group_by(jobs.c.state))}
        return {state: numbers.get(state, 0) for state in OPEN}

    def latest(
        self, owner: str | None, *, before: str | None, state: str | None, most: int
    ) -> list[Job]:
        """Return jobs, the latest first.

        Args:
            owner: only jobs of this owner are returned; None returns all jobs.
            before: only jobs that were created before the job with this id are returned.
            state: only jobs in this state are returned; None returns all accepted jobs.
            most: largest number of jobs to return.
        """
        states = SHOWN if state is None else (state,)
        query = select(jobs).where(jobs.c.state.in_(states), _of(owner))
        if before is not None:
            query = query.where(jobs.c.id < before)
        query = query.order_by(jobs.c.id.desc()).limit(most)
        with self._database.read() as connection:
            return [job_of(row) for row in connection.execute(query)]

    @freeing
    def cancel(self, job: str) -> None:
        """Cancel a job. Its finished results are kept; a job that has ended is not changed."""
        with self._database.write() as connection:
            connection.execute(
                update(jobs)
                .where(jobs.c.id == job, jobs.c.state.in_(OPEN))
                .values(state=CANCELLED, finished=time.time())
            )

    @freeing
    def leave(self, job: str, *, accepted: bool = True) -> bool:
        """Mark a job for removal, so that clients no longer see it.

        Args:
            accepted: whether to mark the job even if it was accepted.

        Returns:
            Whether the job was marked.
        """
        states = (RECEIVING, LEAVING, *(SHOWN if accepted else ()))
        with self._database.write() as connection:
            where = (jobs.c.id == job) & jobs.c.state.in_(states)
            return connection.execute(update(jobs).where(where).values(LEFT)).rowcount == 1

    def leaving(self, ended_before: float) -> list[str]:
        """Return the jobs to remove: jobs marked for removal, jobs that ended before
        `ended_before`, and jobs whose receiving runner is dead. A job with leased items is not
        returned, because a runner may still write a result."""
        with self._database.read() as connection:
            return list(connection.execute(select(jobs.c.id).where(*_over(ended_before))).scalars())

    @freeing
    def expire(self, job: str, ended_before: float) -> bool:
        """Mark a job from `leaving` for removal and return whether it was marked. The conditions
        are checked again: a runner that was considered dead may have accepted the job since."""
        with self._database.write() as connection:
            where = (jobs.c.id == job, *_over(ended_before))
            return connection.execute(update(jobs).where(*where).values(LEFT)).rowcount == 1

    @freeing
    def remove(self, job: str) -> None:
        """Delete the rows of a job whose files are removed, the job's own row last."""
        chunk = CHUNK if self._database.has_reserve else FEW
        for table in (results, items):
            first = select(table.c.number).where(table.c.job == job).order_by(table.c.number)
            while True:
                with self._database.write() as connection:
                    numbers = list(connection.execute(first.limit(chunk)).scalars())
                    connection.execute(
                        delete(table).where(table.c.job == job, table.c.number.in_(numbers))
                    )
                if len(numbers) < chunk:
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
