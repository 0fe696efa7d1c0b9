"""The problems that only requests about jobs can be answered with.

- Problem
  - 404 UnknownJob, UnknownItem, NoMaps
  - 409 NotFinished           the result does not exist yet, or never will
  - 422 ItemFailed, DuplicateId, IdempotencyConflict, InvalidArchive
  - 429 TooManyJobs           with Retry-After
  - 503 FolderAway            also shown by jobs as the reason why they wait
"""

from __future__ import annotations

import errno
from typing import Final

from service.core.errors import InsufficientStorage, Problem, Unavailable

FULL_SECONDS: Final = 60
"""Seconds after which a client may retry if the disk is full."""


class UnknownJob(Problem):
    status = 404
    title = "There is no such job"


class UnknownItem(Problem):
    status = 404
    title = "The job has no such item"


class NoMaps(Problem):
    status = 404
    title = "The job has no maps"


class ItemFailed(Problem):
    status = 422
    title = "The item failed"


class NotFinished(Problem):
    status = 409
    title = "The job or item is not finished"


class DuplicateId(Problem):
    status = 422
    title = "Two instances have the same id"


class IdempotencyConflict(Problem):
    status = 422
    title = "The idempotency key belongs to another job"


class InvalidArchive(Problem):
    status = 422
    title = "The archive cannot be taken"


class FolderAway(Unavailable):
    """The folder of jobs cannot be used. All jobs wait until it can be used again."""


class TooManyJobs(Problem):
    status = 429
    title = "Too many jobs are unfinished"


def disk_full() -> InsufficientStorage:
    """Return the error that nothing can be written to the folder of jobs."""
    return InsufficientStorage(
        "the disk of the jobs' folder is full; delete a job, or try again later",
        retry_after=FULL_SECONDS,
    )


def unwritable(error: OSError) -> InsufficientStorage | FolderAway:
    """Return the error that a file in the folder of jobs cannot be written or removed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full()
    why = f"the folder of jobs cannot be written: {error.strerror}"
    return FolderAway(why, retry_after=FULL_SECONDS)


def no_room(taken: int, most: int) -> InsufficientStorage:
    """Return the error that jobs would take more bytes on the disk than allowed."""
    return InsufficientStorage(
        f"jobs need {taken} bytes of the disk, and at most {most} are allowed; delete one, or wait "
        "until they expire"
    )
