"""What is kept of jobs, in tables."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    func,
    select,
)

VERSION: Final = 1
"""Of these tables: a database of another one is not touched."""
RECEIVING, WAITING, RUNNING = "receiving", "waiting", "running"
DONE, CANCELLED, LEAVING = "done", "cancelled", "leaving"
OPEN: Final = (WAITING, RUNNING)
SHOWN: Final = (*OPEN, DONE, CANCELLED)
"""States of a job that callers see. Before them it is not accepted, after them it is removed."""
FREE, LEASED, SETTLED = "free", "leased", "settled"
CHUNK: Final = 5000
"""Rows of a transaction: who wants to write meanwhile waits for no more than these."""

metadata = MetaData()

meta = Table(
    "gradcam_meta",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("state", String(16), nullable=False),
    Column("owner", String(64), nullable=False),  # the name of the API key, "" without
    Column("idempotency", String(200)),
    Column("digest", String(64), nullable=False),  # of all that was asked
    Column("model", String(200), nullable=False),
    Column("weights", String(64), nullable=False),  # their fingerprint
    Column("parameters", Text, nullable=False),
    Column("warnings", Text, nullable=False),
    Column("total", Integer, nullable=False),
    Column("done", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("bytes", BigInteger, nullable=False),  # on the disk
    Column("turn", BigInteger, nullable=False),  # when it was last worked on, among jobs
    Column("runner", String(32)),  # who receives it
    Column("created", Float(53), nullable=False),
    Column("started", Float(53)),
    Column("finished", Float(53)),
    UniqueConstraint("owner", "idempotency"),
    Index("jobs_by_state", "state", "turn"),
)

items = Table(
    "items",
    metadata,
    Column("job", String(32), ForeignKey("jobs.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("id", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("own", Text),  # parameters of its own
    Column("state", String(8), nullable=False),
    Column("runner", String(32)),
    Column("attempts", Integer, nullable=False),  # deaths of runners that had it in hand
    UniqueConstraint("job", "id"),
    Index("items_to_do", "job", "state", "attempts", "number"),
    Index("items_of_runner", "runner"),
    sqlite_with_rowid=False,
)

results = Table(
    "results",
    metadata,
    Column("job", String(32), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("cursor", Integer, nullable=False),
    Column("at", Float(53), nullable=False),
    Column("ok", Boolean, nullable=False),
    Column("problem", Text),
    UniqueConstraint("job", "cursor"),
    sqlite_with_rowid=False,
)

runners = Table(
    "runners",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("host", String(255), nullable=False),
    Column("seen", Float(53), nullable=False),
)


def bytes_of_jobs(connection: Connection) -> int:
    """What jobs take of the disk, all together: their images, items and results."""
    return int(connection.execute(select(func.sum(jobs.c.bytes))).scalar() or 0)
