"""A PostgreSQL of a test's own, in a folder that goes with it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from tests.service.live import free_port

USERS = ("postgres", "nobody")
"""As whom it runs where the tests run as root, which it refuses to."""


class Postgres:
    """
    Args:
        programs: the folder of its commands.
        folder: of its data, and of its log.
    """

    def __init__(self, programs: Path, folder: Path, user: str | None) -> None:
        self._programs = programs
        self._folder = folder
        self._user = user
        self._port = free_port()

    def make(self) -> None:
        data = str(self._folder / "data")
        self._run("initdb", "-D", data, "-U", "gradcam", "-A", "trust", "-E", "UTF8", "--no-sync")

    def start(self) -> None:
        options = f"-p {self._port} -k {self._folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        log = str(self._folder / "log")
        self._run(
            "pg_ctl", "-D", str(self._folder / "data"), "-l", log, "-w", "-o", options, "start"
        )

    def stop(self, mode: str = "fast") -> None:
        """As an operator does who does not wait for its clients, or, `immediate`, as a crash."""
        self._run("pg_ctl", "-D", str(self._folder / "data"), "-m", mode, "-w", "stop")

    def fresh(self) -> str:
        """The URL of a new database, as SQLAlchemy has it."""
        name = f"jobs_{uuid4().hex}"
        where = f"gradcam@127.0.0.1:{self._port}"
        with psycopg.connect(f"postgresql://{where}/postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return f"postgresql+psycopg://{where}/{name}"

    def _run(self, program: str, *arguments: str) -> None:
        # Its own output goes nowhere: what it starts would keep a pipe open.
        done = subprocess.run(
            [self._programs / program, *arguments],
            cwd=self._folder,
            user=self._user,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=120,
        )
        assert done.returncode == 0, (program, done.returncode)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """It runs; skips the test where none is installed."""
    programs = _programs()
    if programs is None:
        pytest.skip("no PostgreSQL is installed: there is no initdb")
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as name:
        folder, user = Path(name), _user()
        if user is not None:
            os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
        server = Postgres(programs, folder, user)
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.stop("immediate")


def _programs() -> Path | None:
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = shutil.which("initdb") or (str(installed[-1]) if installed else None)
    return None if found is None else Path(found).resolve().parent


def _user() -> str | None:
    if os.geteuid() != 0:
        return None
    known = {each.pw_name for each in pwd.getpwall()}
    return next(user for user in USERS if user in known)
