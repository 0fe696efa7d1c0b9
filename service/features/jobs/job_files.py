"""The files of jobs: received images and results. Each file is either complete or absent."""

from __future__ import annotations

import logging
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

from service.core.errors import InsufficientStorage
from service.core.files import share, sync_folder, written_whole
from service.features.jobs.errors import FolderAway, unwritable

PER_FOLDER: Final = 1000
FOLDERS: Final = ("blobs", "results", "runners", "incoming")
BLOCK_BYTES: Final = 1 << 16
"""Bytes at the end of a file that are read first in search of its last line."""
OLD_SECONDS: Final = 60
"""Age in seconds from which an unlocked lock file was left behind. A younger one may just have been
created by a runner that is about to lock it."""
log = logging.getLogger(__name__)


class Blob:
    """A file with the images of one job, one after the other. Use with `with`: an exception removes
    the file."""

    def __init__(self, file: Path, room: int) -> None:
        self._file = file
        self._room = room
        self.size = 0

    def __enter__(self) -> Blob:
        with as_problem(self._file):
            self._opened = self._file.open("wb")
            share(self._file)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._file.unlink(missing_ok=True)
            with suppress(OSError):  # closing writes buffered data, and the disk may be full
                self._opened.close()
            return
        with as_problem(self._file):
            self._opened.close()

    def write(self, data: bytes) -> None:
        """Append data.

        Raises:
            InsufficientStorage: if jobs may take no more bytes on the disk, or the disk is full.
            FolderAway: if the file cannot be written for another reason.
        """
        self.size += len(data)
        self._require_room()
        with as_problem(self._file):
            self._opened.write(data)

    def reserve(self, size: int) -> None:
        """Reduce the room for this file by bytes that the job takes elsewhere.

        Raises:
            InsufficientStorage: if jobs may take no more bytes on the disk.
        """
        self._room -= size
        self._require_room()

    def truncate(self, size: int) -> None:
        """Remove everything after the first `size` bytes."""
        with as_problem(self._file):
            self._opened.flush()
            self._opened.truncate(size)
            self._opened.seek(size)
        self.size = size

    def sync(self) -> None:
        """Flush the file to the disk. Everything is on the disk when this returns."""
        with as_problem(self._file):
            self._opened.flush()
            os.fsync(self._opened.fileno())
        sync_folder(self._file.parent)

    def _require_room(self) -> None:
        if self.size > self._room:
            raise InsufficientStorage(
                "the jobs already use all the disk space that is allowed; delete a job, or wait "
                "until jobs expire"
            )


class Folder:
    """The folder that holds the files of all jobs. If its group may write it, processes of several
    users of that group can share it, at the same time or one after the other.

    Raises:
        FolderAway: if the folder cannot be written.
        InsufficientStorage: if the disk is full.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._scratch = path / "incoming"
        try:
            if not path.exists():
                path.mkdir(parents=True, exist_ok=True)
                share(path)
            for folder in (path / name for name in FOLDERS):
                folder.mkdir(exist_ok=True)
                share(folder)
                probe = folder / f".{uuid4().hex}"
                probe.write_bytes(b"")
                probe.unlink()
        except OSError as error:
            raise unwritable(error) from None

    def blob(self, job: str, room: int) -> Blob:
        return Blob(self.path / "blobs" / job, room)

    def read_blob(self, job: str, offset: int, length: int) -> bytes:
        """Read `length` bytes of a job's images from `offset` on.

        Raises:
            FolderAway: if the file cannot be read now.
            FileNotFoundError: if there is no such file.
        """
        with _reading(self.path / "blobs" / job) as path, path.open("rb") as file:
            file.seek(offset)
            return file.read(length)

    @contextmanager
    def incoming(self) -> Iterator[BinaryIO]:
        """Open a temporary file for data that is being received. It is removed when the block is
        left."""
        file = self._scratch / uuid4().hex
        try:
            with as_problem(file):
                self._make(self._scratch)
            with as_problem(file), file.open("wb+") as opened:
                yield opened
        finally:
            file.unlink(missing_ok=True)

    def write_result(self, job: str, number: int, document: bytes) -> None:
        """Write an item's result. It is on the disk when this returns.

        Raises:
            InsufficientStorage: if the disk is full.
            FolderAway: if it cannot be written for another reason.
        """
        file = self._result(job, number)

        def write() -> None:
            self._make(file.parent)
            self._make(self._scratch)
            # If the process dies here, its temporary file is not in the folder of the results.
            with written_whole(file, self._scratch) as temporary:
                temporary.write_bytes(document)
                share(temporary)

        with as_problem(file):
            try:
                write()
            except FileNotFoundError:  # the job was removed meanwhile, which is not a full disk
                write()

    def read_result(self, job: str, number: int) -> bytes:
        """Read an item's result.

        Raises:
            FolderAway: if the file cannot be read now.
            FileNotFoundError: if there is no such file.
        """
        with _reading(self._result(job, number)) as file:
            return file.read_bytes()

    def read_last_line(self, job: str, number: int) -> bytes:
        """Read the last line of an item's result, but not the lines before it, which may have many
        megabytes. Return b"" if there is only one line.

        Raises:
            FolderAway: if the file cannot be read now.
            FileNotFoundError: if there is no such file.
        """
        with _reading(self._result(job, number)) as path, path.open("rb") as file:
            size, length, found = file.seek(0, os.SEEK_END), BLOCK_BYTES, b""
            while b"\n" not in found and len(found) < size:
                file.seek(max(size - length, 0))
                found, length = file.read(), 8 * length
            _, line_break, last = found.rpartition(b"\n")
            return last if line_break else b""

    def remove(self, job: str) -> None:
        """Remove all files of a job.

        Raises:
            FolderAway: if a file cannot be removed.
        """
        results = self.path / "results" / job
        with as_problem(results):
            shutil.rmtree(results, onerror=_unless_it_is_gone)
            (self.path / "blobs" / job).unlink(missing_ok=True)

    @contextmanager
    def alive(self, runner: str) -> Iterator[None]:
        """Mark a runner as alive by a file lock, while the block runs and the process lives.
        Temporary files are put into a folder of the runner's own."""
        # The block is left in another thread than it was entered in.
        with FileLock(self._lock(runner), timeout=0, thread_local=False):
            share(self._lock(runner))
            self._scratch = self.path / "incoming" / runner
            try:
                yield
            finally:
                self.clear(runner)

    def is_dead(self, runner: str) -> bool:
        """Return whether a runner of this machine is known to have ended."""
        lock = self._lock(runner)
        if not lock.exists():
            return False  # the runner uses another folder
        try:
            with FileLock(lock, timeout=0):
                pass
        except (Timeout, PermissionError):  # an older version's lock belongs to its user alone
            return False
        return True

    def clear(self, runner: str) -> None:
        """Remove the temporary files of a runner that has ended, and then its lock."""
        shutil.rmtree(self.path / "incoming" / runner, ignore_errors=True)
        self._lock(runner).unlink(missing_ok=True)

    def left_over(self) -> list[str]:
        """Return the runners that have ended but were not cleared."""
        names = []
        for lock in (self.path / "runners").glob("*.lock"):
            with suppress(FileNotFoundError):
                if time.time() - lock.stat().st_mtime > OLD_SECONDS and self.is_dead(lock.stem):
                    names.append(lock.stem)
        return names

    def _make(self, folder: Path) -> None:
        """Create a folder and its parents, and flush each of them to the disk."""
        if not folder.is_dir():
            self._make(folder.parent)
            folder.mkdir(exist_ok=True)
            share(folder)
            sync_folder(folder.parent)

    def _result(self, job: str, number: int) -> Path:
        return self.path / "results" / job / f"{number // PER_FOLDER:04d}" / f"{number}.json"

    def _lock(self, runner: str) -> Path:
        return self.path / "runners" / f"{runner}.lock"


def _unless_it_is_gone(function: object, path: str, raised: Any) -> None:
    """Raise the error unless the file is gone, which another replica may have removed."""
    if not isinstance(raised[1], FileNotFoundError):
        raise raised[1]


@contextmanager
def as_problem(file: Path) -> Iterator[None]:
    """Turn an OSError of the block into a problem. Only the log names the file.

    Raises:
        InsufficientStorage: if the block raises an OSError because the disk is full.
        FolderAway: if it raises another OSError.
    """
    try:
        yield
    except OSError as error:
        log.warning("%s cannot be written: %s", error.filename or file, error.strerror)
        raise unwritable(error) from None


@contextmanager
def _reading(file: Path) -> Iterator[Path]:
    """Turn an OSError of the block, except that there is no such file, into a problem.

    Raises:
        FolderAway: if the block raises such an OSError.
    """
    try:
        yield file
    except FileNotFoundError:
        raise
    except OSError as error:
        log.warning("%s cannot be read: %s", file, error.strerror)
        why = f"the folder of jobs cannot be read: {error.strerror}"
        raise FolderAway(why, retry_after=None) from None
