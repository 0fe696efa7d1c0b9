"""The database operations of runners: leasing, settling and releasing items.

Each method is one transaction, which is on the disk when the method returns. An item is leased by
one runner at a time. It is settled once, in the transaction that also counts it.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    delete,
    func,
    insert,
    or_,
    select,
    true,
    update,
)

from service.core.errors import Blamed, InternalError, Problem
from service.features.jobs.database import Database
from service.features.jobs.database_tables import (
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
from service.features.jobs.errors import UnknownItem, no_room
from service.features.jobs.records import Leased, Source, parameters_of
from service.pipeline.parameters import Parameters

LEASE_SECONDS: Final = 20.0
"""Seconds without a heartbeat after which a runner counts as dead and loses its items."""
SUSPICIOUS: Final = 2
"""Number of process deaths after which an item is processed alone."""
HOPELESS: Final = 10
"""Number of process deaths after which an item fails."""
HANGS: Final = 4
"""Number of deaths that are counted if an item hangs the model while it is processed alone. A death
with several items in work may be due to any of them, and the end of a process may be due to another
request, but here the cause is certain."""


class Store:
    """Leases, settles and releases items in the database.

    Args:
        most_bytes: largest number of bytes on the disk of all jobs with their results.
    """

    def __init__(self, database: Database, most_bytes: int = sys.maxsize) -> None:
        self._database = database
        self._most_bytes = most_bytes

    def lease(
        self,
        runner: str,
        models: Sequence[tuple[str, str]],
        most: int,
        kinds: Mapping[str, int] | None = None,
        places: Callable[[Leased], int] = lambda leased: 1,
    ) -> list[Leased]:
        """Lease items of the job that has waited longest for its turn: as many as fit into `most`
        places, and at least one.

        Args:
            models: names and fingerprints of the models that are ready.
            kinds: name of a kind → largest number of items of a job of that kind. Jobs of a kind
                with 0, or without a number, are passed over. None: `most` of any kind.
            places: returns the number of places that an item takes.

        Raises:
            InsufficientStorage: if there is no room for results.
        """
        self.require_room()
        with self._database.write() as connection:
            if (size := bytes_of_jobs(connection)) > self._most_bytes:
                raise no_room(size, self._most_bytes)
            job = connection.execute(_next_job(models, kinds)).one_or_none()
            if job is None:
                return []
            if kinds is not None:
                most = min(most, kinds[job.kind])
            rows = connection.execute(
                select(items)
                .where(items.c.job == job.id, items.c.state == FREE)
                .order_by(items.c.attempts >= SUSPICIOUS, items.c.number)
                .limit(most)
                .with_for_update(skip_locked=True)
            ).all()
            alone = bool(rows) and rows[0].attempts >= SUSPICIOUS
            usual = rows[:1] if alone else [row for row in rows if row.attempts < SUSPICIOUS]
            leased = [_leased(job, row, alone=alone) for row in usual]
            ends = accumulate(map(places, leased))
            taken = [item for item, end in zip(leased, ends, strict=True) if end <= most]
            taken = taken or leased[:1]
            if taken:
                connection.execute(
                    update(items)
                    .where(items.c.job == job.id, items.c.number.in_(item.number for item in taken))
                    .values(state=LEASED, runner=runner)
                )
            turn = connection.execute(select(func.max(jobs.c.turn))).scalar_one() + 1
            started = job.started or time.time()
            connection.execute(
                update(jobs)
                .where(jobs.c.id == job.id)
                .values(state=RUNNING, turn=turn, started=started)
            )
        return taken

    def require_room(self) -> None:
        """Check that the disk is not full, before a result is written.

        Raises:
            InsufficientStorage: if it is.
        """
        self._database.require_room()

    def source(self, job: str, number: int) -> Source:
        """Return where the image of an item is.

        Raises:
            UnknownItem: if there is no such item.
        """
        query = select(items.c.source).where(_is(job, number))
        with self._database.read() as connection:
            found = connection.execute(query).scalar()
        if found is None:
            raise UnknownItem(f"job {job} has no item {number}")
        source: Source = json.loads(found)
        return source

    def settle(self, runner: str, leased: Leased, problem: Problem | None, size: int) -> bool:
        """Record that an item is finished.

        Args:
            problem: the problem of an item that failed, else None.
            size: bytes of the item's result, which is on the disk already.

        Returns:
            Whether the item was still leased to the runner and its job was not cancelled meanwhile.
        """
        with self._database.write() as connection:
            mine = connection.execute(
                update(items)
                .where(_is(leased.job, leased.number), *_held(runner))
                .values(state=SETTLED, runner=None)
            )
            if mine.rowcount != 1:
                return False
            return _settled(connection, leased.job, leased.number, problem, size)

    def release(self, runner: str, leased: Leased, *, blamed: Blamed | None = None) -> None:
        """Return an item unfinished.

        Args:
            blamed: what ended while it worked on the item: see `Unavailable`.
        """
        freed = _freed(runner).where(_is(leased.job, leased.number))
        with self._database.write() as connection:
            if blamed:
                certain = leased.alone and blamed == "batch"
                _blame(connection, freed, HANGS if certain else 1)
            else:
                connection.execute(freed)

    def closed(self, ids: Collection[str]) -> set[str]:
        """Return those of the jobs that have ended, or are gone."""
        with self._database.read() as connection:
            open_jobs = select(jobs.c.id).where(jobs.c.id.in_(ids), jobs.c.state.in_(OPEN))
            return set(ids) - {row.id for row in connection.execute(open_jobs)}

    def keep_only(self, runner: str, held: Collection[tuple[str, int]]) -> None:
        """Return all items of the runner unfinished, except for those in `held`, given by job and
        number."""
        with self._database.write() as connection:
            leased = select(items.c.job, items.c.number).where(*_held(runner))
            rows = connection.execute(leased).all()
            for job, number in {(row.job, row.number) for row in rows}.difference(held):
                connection.execute(_freed(runner).where(_is(job, number)))

    def enlist(self, runner: str) -> None:
        """Register a runner, or record a heartbeat of a registered runner."""
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
        """Return the other runners on this machine."""
        with self._database.read() as connection:
            host = runners.c.host == socket.gethostname()
            return list(
                connection.execute(
                    select(runners.c.id).where(host, runners.c.id != runner)
                ).scalars()
            )

    def runners(self) -> set[str]:
        """Return all registered runners."""
        with self._database.read() as connection:
            return set(connection.execute(select(runners.c.id)).scalars())

    def silent(self) -> list[str]:
        """Return the runners without a heartbeat for `LEASE_SECONDS`."""
        with self._database.read() as connection:
            late = runners.c.seen < _time(connection) - LEASE_SECONDS
            return list(connection.execute(select(runners.c.id).where(late)).scalars())

    def bury(self, runner: str) -> None:
        """Remove a dead runner and free its items for others. An item that too many dead
        runners had leased fails. The jobs that the runner was receiving can then be removed."""
        with self._database.write() as connection:
            # If another runner buries it at the same moment, only one of them gets these rows.
            _blame(connection, _freed(runner), 1)
            connection.execute(delete(runners).where(runners.c.id == runner))

    def dismiss(self, runner: str) -> None:
        """Remove a runner that ends regularly, and free its items."""
        with self._database.write() as connection:
            connection.execute(_freed(runner))
            connection.execute(delete(runners).where(runners.c.id == runner))


def _time(connection: Connection) -> float:
    """Return the current time in seconds. For a shared database it is the time of its server,
    because the clocks of several machines may differ."""
    if connection.dialect.name == "sqlite":
        return time.time()
    epoch = func.extract("epoch", func.clock_timestamp())
    return float(connection.execute(select(epoch)).scalar_one())


def _next_job(models: Sequence[tuple[str, str]], kinds: Mapping[str, int] | None) -> Any:
    ready = or_(*((jobs.c.model == name) & (jobs.c.weights == marked) for name, marked in models))
    free = select(items.c.number).where(items.c.job == jobs.c.id, items.c.state == FREE).exists()
    wanted: ColumnElement[bool] = true()
    if kinds is not None:
        wanted = jobs.c.kind.in_([kind for kind, most in kinds.items() if most])
    return (
        select(jobs)
        .where(jobs.c.state.in_(OPEN), ready, free, wanted)
        .order_by(jobs.c.turn, jobs.c.created)
        .limit(1)
        .with_for_update()  # else a job that is cancelled, done or removed meanwhile might rerun
    )


def _is(job: str, number: int) -> ColumnElement[bool]:
    return (items.c.job == job) & (items.c.number == number)


def _held(runner: str) -> tuple[ColumnElement[bool], ...]:
    return items.c.runner == runner, items.c.state == LEASED


def _freed(runner: str) -> Any:
    return update(items).where(*_held(runner)).values(state=FREE, runner=None)


def _blame(connection: Connection, freed: Any, deaths: int) -> None:
    """Free items and count deaths for each of them. Items with `HOPELESS` deaths or more fail."""
    held = connection.execute(
        freed.values(attempts=items.c.attempts + deaths).returning(
            items.c.job, items.c.number, items.c.attempts
        )
    ).all()
    for row in held:
        if row.attempts >= HOPELESS:
            this = _is(row.job, row.number)
            connection.execute(update(items).where(this).values(state=SETTLED))
            _settled(connection, row.job, row.number, _hopeless(), 0)


def _settled(
    connection: Connection, job: str, number: int, problem: Problem | None, size: int
) -> bool:
    """Count a finished item and return whether its job was still open. The update locks the job's
    row, so that cursors become visible in ascending order."""
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
        "the service ended or hung repeatedly while it processed this image; the image is not "
        "tried again"
    )


def _leased(job: Row[Any], item: Row[Any], *, alone: bool) -> Leased:
    source = json.loads(item.source)
    try:
        parameters = parameters_of(job.parameters, json.loads(item.own) if item.own else {})
    except Problem as problem:  # fails this item only; raised here, it would stop all jobs
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
        kind=job.kind,
        total=job.total,
    )
