"""The database of jobs: SQLite beside the results, or PostgreSQL shared by several replicas."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event, func, insert, select, text, update
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.schema import CreateColumn

from service.core.errors import ConfigError, InsufficientStorage, Unavailable, one_line
from service.jobs.database_tables import VERSION, jobs, meta, metadata

FILE: Final = "jobs.sqlite"
BUSY_SECONDS: Final = 5
AGAIN_SECONDS: Final = 0.01
DATABASE_SECONDS: Final = 5
FULL_SECONDS: Final = 60
"""Seconds after which a client may retry if the disk is full."""
MAKING: Final = 7_163_921_044
"""Key of the PostgreSQL advisory lock that is held while the tables are created."""
UNUSABLE: Final = ("unable to open database file", "readonly database")
FULL: Final = ("disk is full", "No space left", "disk I/O error", "could not extend file")
"""Parts of the messages by which databases report a full disk. SQLite reports some cases as an I/O
error."""


class Database:
    """The connection to the database. Use with `with`: leaving it closes every connection.

    Args:
        url: address of the database in SQLAlchemy's form; None for SQLite in `folder`.

    Raises:
        ConfigError: on entering, if the database cannot be used, or has tables of another version.
        InsufficientStorage: on entering, if the disk is full.
        Unavailable: on entering, if the database cannot be reached now.
    """

    def __init__(self, folder: Path, url: str | None) -> None:
        self._url = url or f"sqlite:///{folder / FILE}"
        self._engine: Engine | None = None

    def __enter__(self) -> Database:
        try:
            self._engine = _engine(self._url)
            with self.write() as connection:
                if connection.dialect.name == "postgresql":
                    connection.execute(select(func.pg_advisory_xact_lock(MAKING)))
                metadata.create_all(connection)
                self._check(connection)
        except (SQLAlchemyError, ImportError, Unavailable) as error:
            self.__exit__()
            if isinstance(error, Unavailable) and not any(
                words in error.detail for words in UNUSABLE
            ):
                raise
            raise ConfigError(
                f"the database of jobs, {self.name}, cannot be used: {one_line(error)}"
            ) from None
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    @property
    def name(self) -> str:
        """Address of the database without its password."""
        return str(self._engine.url) if self._engine is not None else self._url.split("://")[0]

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a connection for reading.

        Raises:
            Unavailable: if the database cannot be reached.
        """
        assert self._engine is not None
        with _as_problems(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Run the block in a transaction: when the block is left, either all of its changes are on
        the disk, or none are.

        Raises:
            InsufficientStorage: if there is no room for the changes.
            Unavailable: if the database cannot be reached.
        """
        assert self._engine is not None
        writes = self._engine.execution_options(writes=True)
        with _as_problems(), writes.begin() as connection:
            yield connection

    def _check(self, connection: Connection) -> None:
        version = connection.execute(select(meta.c.version)).scalar()
        if version == 1:
            kind = CreateColumn(jobs.c.kind).compile(dialect=connection.dialect)
            connection.execute(text(f"ALTER TABLE {jobs.name} ADD COLUMN {kind}"))
            connection.execute(update(meta).values(version=VERSION))
            version = VERSION
        if version is None:
            connection.execute(insert(meta).values(version=VERSION))
        elif version != VERSION:
            newer = "a newer" if version > VERSION else "an older"
            raise ConfigError(
                f"the database of jobs, {self.name}, was written by {newer} version of the service "
                f"(its tables are of version {version}, these are of version {VERSION})"
            )


def _engine(url: str) -> Engine:
    engine = create_engine(url, pool_pre_ping=True)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any, record: object) -> None:
    connection.isolation_level = None  # the driver must not begin transactions itself
    connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")
    _write_ahead(connection)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _write_ahead(connection: Any) -> None:
    """Switch to write-ahead logging. This is retried here, because SQLite's busy timeout does not
    apply if another connection switches at the same time."""
    latest = monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or monotonic() > latest:
                raise
        sleep(AGAIN_SECONDS)


def _begin_sqlite(connection: Connection) -> None:
    # A deferred transaction that reads first and writes later would fail if another transaction
    # has written in between.
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def _as_problems() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        said = one_line(error.orig or error)
        if any(words in said for words in FULL):
            raise InsufficientStorage(
                f"the database of jobs has no room: {said}; try again later",
                retry_after=FULL_SECONDS,
            ) from None
        if isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated:
            raise Unavailable(
                f"the database of jobs does not answer: {said}; try again",
                retry_after=DATABASE_SECONDS,
            ) from None
        raise
