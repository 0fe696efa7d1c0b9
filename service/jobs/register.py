"""The jobs that there are: taken in, shown, cancelled, removed. Each method is one transaction."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from service.errors import Unavailable
from service.jobs.database import Database
from service.jobs.errors import DuplicateId, IdempotencyConflict, TooManyJobs, UnknownJob
from service.jobs.records import Job, NewItem, NewJob, job_of, parameters_json
from service.jobs.tables import (
    CANCELLED,
    DONE,
    FREE,
    LEASED,
    LEAVING,
    OPEN,
    RECEIVING,
    SHOWN,
    WAITING,
    items,
    jobs,
    results,
    runners,
)

CHUNK: Final = 5000
"""Rows of a transaction: who wants to write meanwhile waits for no more than these."""
BUSY_SECONDS: Final = 10
"""After which a job that was one too many may be brought again."""


class Register:
    """The tables as those see them who bring jobs and ask for them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, runner: str, new: NewJob, most: int | None = None) -> str:
        """Make room for a job that `runner` receives; nobody sees it before it is accepted.

        Args:
            most: unfinished jobs that there may be with it.

        Returns:
            Its id: later jobs have greater ones.

        Raises:
            TooManyJobs: if there are as many already.
        """
        name = f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(8)}"
        with self._database.write() as connection:
            if most is not None and (there := _unfinished(connection)) >= most:
                raise TooManyJobs(
                    f"{there} jobs are unfinished, as many as may be; try again",
                    retry_after=BUSY_SECONDS,
                )
            connection.execute(
                insert(jobs).values(
                    id=name,
                    state=RECEIVING,
                    owner=new.owner,
                    digest="",
                    model=new.model,
                    weights=new.weights,
                    parameters=parameters_json(new.parameters),
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
        """Some of a job's items, numbered from `first`.

        Raises:
            DuplicateId: naming the id that two of them have.
            Unavailable: if whoever receives it was taken for dead meanwhile.
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
            if twice is None:  # it was the job that is gone
                raise _forgotten() from None
            raise DuplicateId(
                f"two instances have the id {twice[:200]!r}; each needs its own"
            ) from None

    def accept(
        self, job: str, new: NewJob, *, total: int, size: int, digest: str, warnings: Sequence[str]
    ) -> Job:
        """From here on the job is there: this is what a caller is told.

        Returns:
            It, or the one that the same caller brought before under the same idempotency key.

        Raises:
            IdempotencyConflict: if that one asks for something else.
            Unavailable: if whoever receives it was taken for dead meanwhile.
        """
        others = jobs.alias()
        values = {
            "state": WAITING,
            "runner": None,
            "idempotency": new.idempotency,
            "digest": digest,
            "model": new.model,
            "weights": new.weights,
            "parameters": parameters_json(new.parameters),
            "total": total,
            "bytes": size,
            "warnings": json.dumps(list(warnings)),
            # After those who wait already: were it before them, they would wait for all who come.
            "turn": select(func.coalesce(func.max(others.c.turn), 0))
            .where(others.c.state.in_(OPEN))
            .scalar_subquery(),
        }
        try:
            with self._database.write() as connection:
                before = self._before(connection, new, digest)
                if before is None:
                    mine = (jobs.c.id == job) & (jobs.c.state == RECEIVING)
                    if connection.execute(update(jobs).where(mine).values(values)).rowcount != 1:
                        raise _forgotten()
                    before = job_of(connection.execute(select(jobs).where(jobs.c.id == job)).one())
                return before
        except IntegrityError:  # the same key came twice at the same moment
            with self._database.read() as connection:
                same = self._before(connection, new, digest)
            assert same is not None
            return same

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

    def knows(self, owner: str, idempotency: str) -> bool:
        """Whether this caller has brought a job under this key."""
        brought = select(jobs.c.id).where(jobs.c.owner == owner, jobs.c.idempotency == idempotency)
        with self._database.read() as connection:
            return connection.execute(brought).first() is not None

    def bytes(self) -> int:
        """What all jobs together take of the disk, the database aside."""
        with self._database.read() as connection:
            return int(connection.execute(select(func.sum(jobs.c.bytes))).scalar() or 0)

    def leave(self, job: str, *, accepted: bool = True) -> bool:
        """A job is to be removed: nobody sees it any more.

        Args:
            accepted: even if it was accepted.

        Returns:
            Whether it will be.
        """
        states = (RECEIVING, LEAVING, *(SHOWN if accepted else ()))
        left = {"state": LEAVING, "idempotency": None}  # a new job may have its key
        with self._database.write() as connection:
            where = (jobs.c.id == job) & jobs.c.state.in_(states)
            return connection.execute(update(jobs).where(where).values(left)).rowcount == 1

    def leaving(self, ended_before: float) -> list[str]:
        """The jobs to remove: those that are leaving, that ended too long ago, or that somebody
        was receiving who is dead. Not while someone is at work on one, and might write a result."""
        alive = select(runners.c.id).where(runners.c.id == jobs.c.runner).exists()
        in_work = select(items.c.number).where(items.c.job == jobs.c.id, items.c.state == LEASED)
        with self._database.read() as connection:
            return list(
                connection.execute(
                    select(jobs.c.id).where(
                        ~in_work.exists(),
                        or_(
                            jobs.c.state == LEAVING,
                            jobs.c.state.in_((DONE, CANCELLED)) & (jobs.c.finished < ended_before),
                            (jobs.c.state == RECEIVING) & ~alive,
                        ),
                    )
                ).scalars()
            )

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
                found = connection.execute(
                    select(items.c.id).where(items.c.job == job, some)
                ).scalar()
                if found is not None:
                    return str(found)
        return None


def _forgotten() -> Unavailable:
    return Unavailable("the job was lost on its way in; send it again", retry_after=1)


def _unfinished(connection: Connection) -> int:
    query = select(func.count()).where(jobs.c.state.in_((*OPEN, RECEIVING)))
    return connection.execute(query).scalar_one()


def _of(owner: str | None) -> Any:
    return jobs.c.id.is_not(None) if owner is None else jobs.c.owner == owner
