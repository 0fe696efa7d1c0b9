"""What is kept of jobs: each method one transaction, on the disk when it returns.

Nothing here is told twice: an item is leased by one runner at a time, and settled once, in the same
transaction that counts it.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Collection, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, delete, func, insert, or_, select, update

from service.core.errors import InternalError, Problem
from service.jobs.database import Database
from service.jobs.errors import no_room
from service.jobs.records import Leased, parameters_of
from service.jobs.tables import (
    DONE,
    FREE,
    LEASED,
    OPEN,
    RUNNING,
    SETTLED,
    bytes_of_jobs,
    items,
    jobs,
    results,
    runners,
)
from service.pipeline.parameters import Parameters

LEASE_SECONDS: Final = 20.0
"""A runner that was not heard of for so long has lost its items."""
SUSPICIOUS: Final = 2
"""Times that an item's process may die before it is worked on alone."""
HOPELESS: Final = 10
"""And before it is given up."""
HANGS: Final = 4
"""Deaths that it counts for when an item hangs the model which it has to itself: whoever kills a
process may be somebody else, and this is nobody else."""


class Store:
    """The tables as those see them who work on jobs.

    Args:
        most_bytes: of the disk that all jobs may take with their results.
    """

    def __init__(self, database: Database, most_bytes: int = sys.maxsize) -> None:
        self._database = database
        self._most_bytes = most_bytes

    def lease(self, runner: str, models: Sequence[tuple[str, str]], most: int) -> list[Leased]:
        """Take items of a job that has waited longest for its turn.

        Args:
            models: names and fingerprints of those that are ready.

        Raises:
            InsufficientStorage: if there is no room for results.
        """
        with self._database.write() as connection:
            if (size := bytes_of_jobs(connection)) > self._most_bytes:
                raise no_room(size, self._most_bytes)
            job = connection.execute(_next_job(models)).one_or_none()
            if job is None:
                return []
            found = connection.execute(
                select(items)
                .where(items.c.job == job.id, items.c.state == FREE)
                .order_by(items.c.attempts >= SUSPICIOUS, items.c.number)
                .limit(most)
                .with_for_update(skip_locked=True)
            ).all()
            alone = bool(found) and found[0].attempts >= SUSPICIOUS
            taken = found[:1] if alone else [row for row in found if row.attempts < SUSPICIOUS]
            if taken:
                connection.execute(
                    update(items)
                    .where(items.c.job == job.id, items.c.number.in_(row.number for row in taken))
                    .values(state=LEASED, runner=runner)
                )
            turn = connection.execute(select(func.max(jobs.c.turn))).scalar_one() + 1
            started = job.started or time.time()
            connection.execute(
                update(jobs)
                .where(jobs.c.id == job.id)
                .values(state=RUNNING, turn=turn, started=started)
            )
        return [_leased(job, row, alone=alone) for row in taken]

    def settle(self, runner: str, leased: Leased, problem: Problem | None, size: int) -> bool:
        """Keep that an item is finished.

        Args:
            size: bytes of its result, which is on the disk already.

        Returns:
            Whether it still was the runner's to finish: its job was not cancelled meanwhile.
        """
        with self._database.write() as connection:
            mine = connection.execute(
                update(items)
                .where(
                    items.c.job == leased.job,
                    items.c.number == leased.number,
                    items.c.state == LEASED,
                    items.c.runner == runner,
                )
                .values(state=SETTLED, runner=None)
            )
            if mine.rowcount != 1:
                return False
            return _settled(connection, leased.job, leased.number, problem, size)

    def release(self, runner: str, leased: Leased, *, blamed: bool = False) -> None:
        """Give an item back unfinished.

        Args:
            blamed: it hung the model, or another item that was at hand with it.
        """
        one = (items.c.job == leased.job) & (items.c.number == leased.number)
        with self._database.write() as connection:
            if blamed:
                _blame(connection, _freed(runner).where(one), HANGS if leased.alone else 1)
            else:
                connection.execute(_freed(runner).where(one))

    def keep_only(self, runner: str, held: Collection[tuple[str, int]]) -> None:
        """The same of all that the runner has but these: jobs and numbers."""
        with self._database.write() as connection:
            found = connection.execute(
                select(items.c.job, items.c.number).where(
                    items.c.runner == runner, items.c.state == LEASED
                )
            ).all()
            for job, number in {(row.job, row.number) for row in found}.difference(held):
                connection.execute(
                    _freed(runner).where(items.c.job == job, items.c.number == number)
                )

    def enlist(self, runner: str) -> None:
        """Make a runner known; again and again, as a sign of life."""
        with self._database.write() as connection:
            now = _time(connection)
            known = connection.execute(
                update(runners).where(runners.c.id == runner).values(seen=now)
            )
            if known.rowcount == 0:
                connection.execute(
                    insert(runners).values(id=runner, host=socket.gethostname(), seen=now)
                )

    def neighbours(self, runner: str) -> list[str]:
        """The other runners of this machine."""
        with self._database.read() as connection:
            host = runners.c.host == socket.gethostname()
            return list(
                connection.execute(
                    select(runners.c.id).where(host, runners.c.id != runner)
                ).scalars()
            )

    def runners(self) -> set[str]:
        """All that are known."""
        with self._database.read() as connection:
            return set(connection.execute(select(runners.c.id)).scalars())

    def silent(self) -> list[str]:
        """The runners that were not heard of for too long."""
        with self._database.read() as connection:
            late = runners.c.seen < _time(connection) - LEASE_SECONDS
            return list(connection.execute(select(runners.c.id).where(late)).scalars())

    def bury(self, runner: str) -> None:
        """Let a dead runner's items be worked on by others, and what it was receiving go; an item
        at which too many died has failed."""
        with self._database.write() as connection:
            # Who finds it dead at the same moment gets none of these rows.
            _blame(connection, _freed(runner), 1)
            connection.execute(delete(runners).where(runners.c.id == runner))

    def dismiss(self, runner: str) -> None:
        """A runner ends as it should: what it has is free again, and it is forgotten."""
        with self._database.write() as connection:
            connection.execute(_freed(runner))
            connection.execute(delete(runners).where(runners.c.id == runner))


def _time(connection: Connection) -> float:
    """The database's where several machines share it, whose clocks may differ."""
    if connection.dialect.name == "sqlite":
        return time.time()
    epoch = func.extract("epoch", func.clock_timestamp())
    return float(connection.execute(select(epoch)).scalar_one())


def _next_job(models: Sequence[tuple[str, str]]) -> Any:
    ready = or_(*((jobs.c.model == name) & (jobs.c.weights == marked) for name, marked in models))
    free = select(items.c.number).where(items.c.job == jobs.c.id, items.c.state == FREE).exists()
    return (
        select(jobs)
        .where(jobs.c.state.in_(OPEN), ready, free)
        .order_by(jobs.c.turn, jobs.c.created)
        .limit(1)
        .with_for_update()  # or who is cancelled, done or removed meanwhile would run again
    )


def _freed(runner: str) -> Any:
    return (
        update(items)
        .where(items.c.runner == runner, items.c.state == LEASED)
        .values(state=FREE, runner=None)
    )


def _blame(connection: Connection, freed: Any, deaths: int) -> None:
    """Count deaths against items that are given back; those that have too many have failed."""
    held = connection.execute(
        freed.values(attempts=items.c.attempts + deaths).returning(
            items.c.job, items.c.number, items.c.attempts
        )
    ).all()
    for row in held:
        if row.attempts >= HOPELESS:
            one = (items.c.job == row.job) & (items.c.number == row.number)
            connection.execute(update(items).where(one).values(state=SETTLED))
            _settled(connection, row.job, row.number, _hopeless(), 0)


def _settled(
    connection: Connection, job: str, number: int, problem: Problem | None, size: int
) -> bool:
    """Count an item. The job's row is locked from here on, so cursors come in the order in which
    they can be seen."""
    failed = int(problem is not None)
    counted = connection.execute(
        update(jobs)
        .where(jobs.c.id == job, jobs.c.state.in_(OPEN))
        .values(
            done=jobs.c.done + 1 - failed, failed=jobs.c.failed + failed, bytes=jobs.c.bytes + size
        )
        .returning(jobs.c.total, jobs.c.done, jobs.c.failed)
    ).one_or_none()
    if counted is None:
        return False
    cursor = counted.done + counted.failed
    said = None if problem is None else json.dumps(problem.body())
    now = time.time()
    connection.execute(
        insert(results).values(
            job=job, number=number, cursor=cursor, at=now, ok=not failed, problem=said
        )
    )
    if cursor == counted.total:
        connection.execute(update(jobs).where(jobs.c.id == job).values(state=DONE, finished=now))
    return True


def _hopeless() -> Problem:
    return InternalError(
        "the service died or hung over and over while it worked on this image, so it is given up"
    )


def _leased(job: Row[Any], item: Row[Any], *, alone: bool) -> Leased:
    source = json.loads(item.source)
    try:
        parameters = parameters_of(job.parameters, json.loads(item.own) if item.own else {})
    except Problem as problem:  # it is the item's: raised here, it would stop all jobs
        parameters, source = Parameters(), {"problem": problem.body()}
    return Leased(
        job=job.id,
        model=job.model,
        weights=job.weights,
        number=item.number,
        id=item.id,
        source=source,
        parameters=parameters,
        alone=alone,
    )
