"""What jobs take of the disk, all together."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from service.core.errors import InsufficientStorage
from service.jobs.tables import jobs


def bytes_of_jobs(connection: Connection) -> int:
    """Their images, items and results."""
    return int(connection.execute(select(func.sum(jobs.c.bytes))).scalar() or 0)


def no_room(taken: int, most: int) -> InsufficientStorage:
    return InsufficientStorage(
        f"jobs need {taken} bytes of the disk, and at most {most} are allowed; delete one, or wait "
        "until they expire"
    )
