"""The files of jobs: what came in, what came out, each whole or not there at all."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final
from uuid import uuid4

from filelock import FileLock, Timeout

from service.core.errors import ConfigError, InsufficientStorage
from service.core.files import sync_folder, written_whole
from service.jobs.errors import FolderAway

PER_FOLDER: Final = 1000
OLD_SECONDS: Final = 60
"""So long after its making nobody is about to take a lock for the first time."""


class Blob:
    """The images of one job, one after the other in one file. Use with `with`: an exception leaves
    no file."""

    def __init__(self, file: Path, room: int) -> None:
        self._file = file
        self._room = room
        self.size = 0

    def __enter__(self) -> Blob:
        with as_problem(self._file):
            self._opened = self._file.open("wb")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._file.unlink(missing_ok=True)
            with suppress(OSError):  # it writes what it still has, to a disk that may be full
                self._opened.close()
            return
        with as_problem(self._file):
            self._opened.close()

    def write(self, data: bytes) -> None:
        """
        Raises:
            InsufficientStorage: if jobs may take no more of the disk, or it is full.
        """
        self.size += len(data)
        self._require_room()
        with as_problem(self._file):
            self._opened.write(data)

    def reserve(self, size: int) -> None:
        """Of what the job may take, so many bytes lie elsewhere.

        Raises:
            InsufficientStorage: if jobs may take no more of the disk.
        """
        self._room -= size
        self._require_room()

    def truncate(self, size: int) -> None:
        """Forget what was written after the first `size` bytes."""
        with as_problem(self._file):
            self._opened.flush()
            self._opened.truncate(size)
            self._opened.seek(size)
        self.size = size

    def sync(self) -> None:
        """Return when everything is on the disk."""
        with as_problem(self._file):
            self._opened.flush()
            os.fsync(self._opened.fileno())
        sync_folder(self._file.parent)

    def _require_room(self) -> None:
        if self.size > self._room:
            raise InsufficientStorage(
                "the jobs that there are take as much of the disk as they may; delete one, or wait "
                "until they expire"
            )


class Folder:
    """Where they lie.

    Raises:
        ConfigError: if it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._scratch = path / "incoming"
        try:
            for each in ("blobs", "results", "runners", "incoming"):
                (path / each).mkdir(parents=True, exist_ok=True)
            probe = path / f".{uuid4().hex}"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise ConfigError(
                f"jobs cannot be kept in {path}: {error.strerror}; GRADCAM_JOBS names another "
                "folder"
            ) from None

    def blob(self, job: str, room: int) -> Blob:
        return Blob(self.path / "blobs" / job, room)

    def read_blob(self, job: str, offset: int, length: int) -> bytes:
        """
        Raises:
            FolderAway: if it cannot be read just now.
            FileNotFoundError: if it is not there.
        """
        try:
            with (self.path / "blobs" / job).open("rb") as file:
                file.seek(offset)
                return file.read(length)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise FolderAway(f"{self.path} cannot be read: {error.strerror}") from None

    @contextmanager
    def incoming(self) -> Iterator[BinaryIO]:
        """A file for something on its way in; it is gone when the block is left."""
        file = self._scratch / uuid4().hex
        try:
            with as_problem(file):
                self._make(self._scratch)
            with as_problem(file), file.open("wb+") as opened:
                yield opened
        finally:
            file.unlink(missing_ok=True)

    def write_result(self, job: str, number: int, document: bytes) -> None:
        """Return when it is on the disk.

        Raises:
            InsufficientStorage
        """
        file = self._result(job, number)
        with as_problem(file):
            self._make(file.parent)
            self._make(self._scratch)
            # What a process that dies here leaves is not among the results.
            with written_whole(file, self._scratch) as temporary:
                temporary.write_bytes(document)

    def read_result(self, job: str, number: int) -> bytes:
        return self._result(job, number).read_bytes()

    def remove(self, job: str) -> None:
        """All files of a job.

        Raises:
            InsufficientStorage: if one cannot be.
        """
        results = self.path / "results" / job
        with as_problem(results):
            shutil.rmtree(results, onerror=_unless_it_is_gone)
            (self.path / "blobs" / job).unlink(missing_ok=True)

    @contextmanager
    def alive(self, runner: str) -> Iterator[None]:
        """While it is open, and no longer than the process lives, `is_dead` does not say so; what
        is not whole yet lies in a folder of the runner's own."""
        # It is left in another thread than it was entered in.
        with FileLock(self._lock(runner), timeout=0, thread_local=False):
            self._scratch = self.path / "incoming" / runner
            try:
                yield
            finally:
                self.clear(runner)

    def is_dead(self, runner: str) -> bool:
        """Whether a runner of this machine is known to have ended."""
        lock = self._lock(runner)
        if not lock.exists():
            return False  # of another folder
        try:
            with FileLock(lock, timeout=0):
                pass
        except Timeout:
            return False
        return True

    def clear(self, runner: str) -> None:
        """Remove what a runner that has ended left half done, its lock last."""
        shutil.rmtree(self.path / "incoming" / runner, ignore_errors=True)
        self._lock(runner).unlink(missing_ok=True)

    def left_over(self) -> list[str]:
        """Runners that ended some time ago and were not cleared."""
        names = []
        for lock in (self.path / "runners").glob("*.lock"):
            with suppress(FileNotFoundError):
                if time.time() - lock.stat().st_mtime > OLD_SECONDS and self.is_dead(lock.stem):
                    names.append(lock.stem)
        return names

    def _make(self, folder: Path) -> None:
        """With its parents, each on the disk."""
        if not folder.is_dir():
            self._make(folder.parent)
            folder.mkdir(exist_ok=True)
            sync_folder(folder.parent)

    def _result(self, job: str, number: int) -> Path:
        return self.path / "results" / job / f"{number // PER_FOLDER:04d}" / f"{number}.json"

    def _lock(self, runner: str) -> Path:
        return self.path / "runners" / f"{runner}.lock"


def _unless_it_is_gone(function: object, path: str, raised: Any) -> None:
    """Another replica may remove the same."""
    if not isinstance(raised[1], FileNotFoundError):
        raise raised[1]


@contextmanager
def as_problem(file: Path) -> Iterator[None]:
    """
    Raises:
        InsufficientStorage: for what the disk says.
    """
    try:
        yield
    except OSError as error:
        raise InsufficientStorage(
            f"{file.parent} cannot be written: {error.strerror}; try again later", retry_after=60
        ) from None
