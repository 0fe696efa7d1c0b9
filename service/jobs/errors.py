"""The problems that only requests about jobs can be answered with.

- Problem
  - 404 UnknownJob, UnknownItem, NotAnAudit, NoMaps
  - 409 NotFinished           the result does not exist yet, or never will
  - 422 ItemFailed, DuplicateId, IdempotencyConflict, InvalidArchive
  - 429 TooManyJobs           with Retry-After
  - 503 FolderAway            also shown by jobs as the reason why they wait
"""

from __future__ import annotations

from service.core.errors import InsufficientStorage, Problem, Unavailable


class UnknownJob(Problem):
    status = 404
    title = "There is no such job"


class UnknownItem(Problem):
    status = 404
    title = "The job has no such item"


class NotAnAudit(Problem):
    status = 404
    title = "The job is no audit"


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
    """The files of jobs cannot be read. All jobs wait until they can be read again."""


class TooManyJobs(Problem):
    status = 429
    title = "Too many jobs are unfinished"


def no_room(taken: int, most: int) -> InsufficientStorage:
    """Return the error that jobs would take more bytes on the disk than allowed."""
    return InsufficientStorage(
        f"jobs need {taken} bytes of the disk, and at most {most} are allowed; delete one, or wait "
        "until they expire"
    )
