"""The database of jobs: SQLite beside the results, or PostgreSQL shared by several replicas."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from sqlalchemy import (
    Connection,
    Engine,
    create_engine,
    event,
    func,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.schema import CreateColumn

from service.core.errors import ConfigError, InsufficientStorage, Unavailable, one_line
from service.core.files import share
from service.features.jobs.database_tables import VERSION, jobs, meta, metadata
from service.features.jobs.errors import FULL_SECONDS, FolderAway, disk_full, unwritable
from service.features.jobs.reserve import Reserve
from service.features.jobs.settings import FILE

BUSY_SECONDS: Final = 5
AGAIN_SECONDS: Final = 0.01
DATABASE_SECONDS: Final = 5
MAKING: Final = 7_163_921_044
"""Key of the PostgreSQL advisory lock that is held while the tables are created."""
UNUSABLE: Final = ("unable to open database file", "readonly database")
FULL: Final = ("disk is full", "No space left", "disk I/O error", "could not extend file")
"""Parts of the messages by which databases report a full disk. SQLite reports some cases as an I/O
error."""
DAMAGED: Final = ("malformed", "not a database")
"""Parts of the messages by which SQLite reports a file that it cannot read."""
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class HasDatabase(Protocol):
    """What reads and writes the database."""

    @property
    def _database(self) -> Database: ...


Owner = TypeVar("Owner", bound=HasDatabase)


def freeing(
    method: Callable[Concatenate[Owner, Parameters], Result],
) -> Callable[Concatenate[Owner, Parameters], Result]:
    """Let a method that removes something succeed on a full disk: if there is no room for what
    SQLite writes down first, the method is tried again with some of the reserve."""

    @wraps(method)
    def tried(self: Owner, /, *args: Parameters.args, **named: Parameters.kwargs) -> Result:
        while True:
            try:
                return method(self, *args, **named)
            except InsufficientStorage:
                if not self._database.spend_reserve():
                    raise

    return tried


class Database:
    """The connection to the database. Use with `with`: leaving it closes every connection.

    Beside an SQLite database there is a `Reserve`, so that jobs can be removed when the disk is
    full: see `freeing`.

    Args:
        url: address of the database in SQLAlchemy's form; None for SQLite in `folder`.

    Raises:
        ConfigError: on entering, if the database cannot be used, or has tables of another version.
        InsufficientStorage: on entering, if the disk is full.
        FolderAway: on entering, if the file of an SQLite database cannot be written.
        Unavailable: on entering, if the database cannot be reached now.
    """

    def __init__(self, folder: Path, url: str | None) -> None:
        self._file = None if url else folder / FILE
        self._url = url or f"sqlite:///{folder / FILE}"
        self._engine: Engine | None = None
        self._reserve = None if url else Reserve(folder / f"{FILE}.reserve")

    def __enter__(self) -> Database:
        try:
            self._engine = _engine(self._url)
            if self._file is not None:
                _make(self._file)
            try:
                self._open()
            except InsufficientStorage:  # jobs are also opened to remove some
                self.spend_reserve()
                self._open()
        except (SQLAlchemyError, ImportError) as error:
            name = self.name
            self.__exit__()
            said = one_line(getattr(error, "orig", None) or error)
            raise ConfigError(f"the database of jobs, {name}, cannot be used: {said}") from None
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
        """Name of the file in the folder of jobs, or address without its password."""
        if self._file is not None:
            return self._file.name
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

    def require_room(self) -> None:
        """Check that the reserve is whole, before a job grows.

        Raises:
            InsufficientStorage: if some was spent, and there is no room for it yet.
        """
        if not self.has_reserve:
            raise disk_full()

    @property
    def has_reserve(self) -> bool:
        """Whether the reserve is whole, if there should be one."""
        return self._reserve is None or self._reserve.restore()

    def spend_reserve(self) -> bool:
        """Make some room on a full disk, and return whether there is some."""
        return self._reserve is not None and self._reserve.spend()

    def _open(self) -> None:
        """Make the tables that are missing, and the reserve."""
        with self.write() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(select(func.pg_advisory_xact_lock(MAKING)))
            metadata.create_all(connection)
            self._check(connection)
        if self._reserve is not None:
            self._reserve.restore()

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
        there = inspect(connection)
        for table in metadata.sorted_tables:
            has = {column["name"] for column in there.get_columns(table.name)}
            if missing := [column.name for column in table.c if column.name not in has]:
                raise ConfigError(
                    f"the database of jobs, {self.name}, has a table {table.name!r} of another "
                    f"program, without the column {missing[0]!r}; name another folder or "
                    "database"
                )


def _make(file: Path) -> None:
    """Make the file of an SQLite database, unless it is there. SQLite gives the files beside it the
    same rights.

    Raises:
        FolderAway: if it cannot be written.
        InsufficientStorage: if the disk is full.
    """
    try:
        file.touch()
        share(file)
    except OSError as error:
        raise unwritable(error) from None


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
        if any(words in said for words in UNUSABLE):
            raise FolderAway(
                f"the database of jobs, {FILE}, cannot be written: {said}", retry_after=FULL_SECONDS
            ) from None
        if any(words in said for words in DAMAGED):
            raise FolderAway(f"the database of jobs, {FILE}, is damaged: {said}") from None
        if any(words in said for words in FULL):
            raise InsufficientStorage(
                f"the database of jobs has no room: {said}; delete a job, or try again later",
                retry_after=FULL_SECONDS,
            ) from None
        if isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated:
            raise Unavailable(
                f"the database of jobs does not answer: {said}; try again",
                retry_after=DATABASE_SECONDS,
            ) from None
        raise
