"""The database tables of jobs."""

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

VERSION: Final = 2
"""Version of these tables. A database with another version is not used."""
RECEIVING, WAITING, RUNNING = "receiving", "waiting", "running"
DONE, CANCELLED, LEAVING = "done", "cancelled", "leaving"
OPEN: Final = (WAITING, RUNNING)
SHOWN: Final = (*OPEN, DONE, CANCELLED)
"""States in which clients see a job. Before these states the job is not accepted yet; after them it
is being removed."""
FREE, LEASED, SETTLED = "free", "leased", "settled"
CHUNK: Final = 5000
"""Largest number of rows that one transaction writes, so that other writers do not wait long."""

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
    Column("kind", String(8), nullable=False, server_default="explain"),  # since version 2
    Column("state", String(16), nullable=False),
    Column("owner", String(64), nullable=False),  # name of the API key; "" without one
    Column("idempotency", String(200)),
    Column("digest", String(64), nullable=False),  # of the items, the model and the parameters
    Column("model", String(200), nullable=False),
    Column("weights", String(64), nullable=False),  # fingerprint of the model
    Column("parameters", Text, nullable=False),
    Column("warnings", Text, nullable=False),
    Column("total", Integer, nullable=False),
    Column("done", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("bytes", BigInteger, nullable=False),  # size on the disk
    Column("turn", BigInteger, nullable=False),  # the job with the lowest number is leased next
    Column("runner", String(32)),  # the runner that receives the job
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
    Column("own", Text),  # parameters of this item alone
    Column("state", String(8), nullable=False),
    Column("runner", String(32)),
    Column("attempts", Integer, nullable=False),  # deaths of runners that had leased the item
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
    """Return the number of bytes of all jobs together: their images, items and results."""
    return int(connection.execute(select(func.sum(jobs.c.bytes))).scalar() or 0)
