"""The database operations that receive and accept jobs. Each method is one transaction."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from cam.counts import counted
from service.core.errors import Unavailable
from service.features.jobs.database import Database
from service.features.jobs.database_tables import (
    FREE,
    OPEN,
    RECEIVING,
    WAITING,
    bytes_of_jobs,
    items,
    jobs,
    meta,
)
from service.features.jobs.errors import DuplicateId, IdempotencyConflict, TooManyJobs, no_room
from service.features.jobs.records import Job, NewItem, NewJob, job_of

BUSY_SECONDS: Final = 10
"""Seconds after which a client may retry a job that exceeded the number of unfinished jobs."""


class Submissions:
    """Receives and accepts jobs in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, runner: str, new: NewJob, most: int | None = None) -> str:
        """Create a job that `runner` receives. Clients do not see it before it is accepted.

        Args:
            most: largest number of unfinished jobs, including this one; None for no limit.

        Returns:
            The job's id. Later jobs have greater ids.

        Raises:
            TooManyJobs: if the largest number of unfinished jobs is reached.
            InsufficientStorage: if the disk is full.
        """
        self._database.require_room()
        name = f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(8)}"
        with self._database.write() as connection:
            if most is not None:
                _one_at_a_time(connection)
                if (there := _unfinished(connection)) >= most:
                    raise TooManyJobs(
                        f"{counted(there, 'job is', 'jobs are')} unfinished, which is the "
                        "maximum; try again",
                        retry_after=BUSY_SECONDS,
                    )
            connection.execute(
                insert(jobs).values(
                    id=name,
                    kind=new.kind,
                    state=RECEIVING,
                    owner=new.owner,
                    digest="",
                    model=new.model,
                    weights=new.weights,
                    parameters=new.stored,
                    warnings="[]",
                    total=0,
                    done=0,
                    failed=0,
                    bytes=0,
                    turn=0,
                    runner=runner,
                    created=time.time(),
                )
            )
        return name

    def add(self, job: str, first: int, new: Sequence[NewItem]) -> None:
        """Add items to a job, numbered from `first`.

        Raises:
            DuplicateId: if two items of the job have the same id; the message names it.
            Unavailable: if the job was removed, because its runner was considered dead.
        """
        rows = [
            {
                "job": job,
                "number": number,
                "id": item.id,
                "source": json.dumps(item.source),
                "own": json.dumps(item.own) if item.own else None,
                "state": FREE,
                "attempts": 0,
            }
            for number, item in enumerate(new, first)
        ]
        if not rows:
            return
        try:
            with self._database.write() as connection:
                connection.execute(insert(items), rows)
        except IntegrityError:
            twice = self._twice(job, [item.id for item in new])
            if twice is None:  # the error is about the job's row, which was removed
                raise _forgotten() from None
            raise DuplicateId(
                f"two instances have the id {twice[:200]!r}; each needs its own"
            ) from None

    def accept(
        self,
        job: str,
        new: NewJob,
        *,
        total: int,
        size: int,
        digest: str,
        warnings: Sequence[str],
        most_bytes: int | None = None,
    ) -> Job:
        """Accept a job, so that clients see it and runners process it.

        Args:
            most_bytes: largest number of bytes on the disk of all jobs together, including this
                one; None for no limit.

        Returns:
            The accepted job, or an earlier job of the same owner with the same idempotency key.

        Raises:
            IdempotencyConflict: if that earlier job has other contents.
            InsufficientStorage: if the jobs together exceed `most_bytes`.
            Unavailable: if the job was removed, because its runner was considered dead.
        """
        others = jobs.alias()
        values = {
            "state": WAITING,
            "runner": None,
            "idempotency": new.idempotency,
            "digest": digest,
            "model": new.model,
            "weights": new.weights,
            "parameters": new.stored,
            "total": total,
            "bytes": size,
            "warnings": json.dumps(list(warnings)),
            # The new job queues behind the waiting jobs; otherwise new jobs could delay them again
            # and again.
            "turn": select(func.coalesce(func.max(others.c.turn), 0))
            .where(others.c.state.in_(OPEN))
            .scalar_subquery(),
        }
        try:
            with self._database.write() as connection:
                if most_bytes is not None:
                    _one_at_a_time(connection)
                before = self._before(connection, new, digest)
                if before is None:
                    mine = (jobs.c.id == job) & (jobs.c.state == RECEIVING)
                    if connection.execute(update(jobs).where(mine).values(values)).rowcount != 1:
                        raise _forgotten()
                    if most_bytes is not None:
                        taken = bytes_of_jobs(connection)
                        if taken > most_bytes:
                            raise no_room(taken, most_bytes)
                    before = job_of(connection.execute(select(jobs).where(jobs.c.id == job)).one())
                return before
        except IntegrityError:  # another job with the same key was accepted at the same moment
            with self._database.read() as connection:
                same = self._before(connection, new, digest)
            if same is None:  # that job has been removed already
                raise _forgotten() from None
            return same

    def knows(self, owner: str, idempotency: str) -> bool:
        """Return whether this owner has a job with this idempotency key."""
        brought = select(jobs.c.id).where(jobs.c.owner == owner, jobs.c.idempotency == idempotency)
        with self._database.read() as connection:
            return connection.execute(brought).first() is not None

    def bytes(self) -> int:
        """Return the number of bytes that all jobs take on the disk."""
        with self._database.read() as connection:
            return bytes_of_jobs(connection)

    def _before(self, connection: Connection, new: NewJob, digest: str) -> Job | None:
        if new.idempotency is None:
            return None
        row = connection.execute(
            select(jobs).where(jobs.c.owner == new.owner, jobs.c.idempotency == new.idempotency)
        ).one_or_none()
        if row is None:
            return None
        if row.digest != digest:
            raise IdempotencyConflict(
                f"Idempotency-Key {new.idempotency[:80]!r} came with another job before: "
                f"/v1/jobs/{row.id}; a new job needs a new key"
            )
        return job_of(row)

    def _twice(self, job: str, names: list[str]) -> str | None:
        name, count = Counter(names).most_common(1)[0]
        if count > 1:
            return name
        with self._database.read() as connection:
            for start in range(0, len(names), 500):
                some = items.c.id.in_(names[start : start + 500])
                rows = connection.execute(
                    select(items.c.id).where(items.c.job == job, some)
                ).scalar()
                if rows is not None:
                    return str(rows)
        return None


def _forgotten() -> Unavailable:
    return Unavailable("the job was lost on its way in; send it again")


def _one_at_a_time(connection: Connection) -> None:
    """Lock out the other transactions that call this, until the end of this transaction, so that
    counts stay valid."""
    connection.execute(select(meta.c.version).with_for_update())


def _unfinished(connection: Connection) -> int:
    query = select(func.count()).where(jobs.c.state.in_((*OPEN, RECEIVING)))
    return connection.execute(query).scalar_one()
