"""What the folder of jobs holds when everybody has gone."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from service.features.jobs.leases import HOPELESS
from service.features.jobs.settings import FILE
from tests.chaos.crops import Crops


def remains(folder: Path, images: Crops, *, jobs: int, results: int) -> dict[str, Any]:
    """What was found, and under "kept" whether it is all that should be there.

    Args:
        images: of each job.
        jobs: that were accepted.
        results: of all of them that were told.
    """
    with closing(sqlite3.connect(folder / FILE)) as connection:
        ((integrity,),) = connection.execute("PRAGMA integrity_check").fetchall()
        items = connection.execute("SELECT job, id, source, attempts FROM items").fetchall()
        known = connection.execute("SELECT count(*) FROM jobs").fetchone()[0]
        runners = connection.execute("SELECT count(*) FROM runners").fetchone()[0]
    unread = sum(not _readable(folder, images, *each[:3]) for each in items)
    files = [each for each in folder.rglob("*") if each.is_file() and FILE not in each.name]
    more = len(files) - results - jobs
    worst = max(each[3] for each in items)
    return {
        "integrity": integrity,
        "jobs too many": known - jobs,
        "items too many": len(items) - jobs * len(images.images),
        "images that cannot be read any more": unread,
        "files too many": more,
        "most deaths of an item": f"{worst} of {HOPELESS}",
        "kept": integrity == "ok"
        and known == jobs
        and len(items) == jobs * len(images.images)
        and not unread
        and not more
        and not runners
        and worst < HOPELESS,
    }


def most_attempts(folder: Path) -> int:
    """The deaths of the item with the most of them."""
    with closing(sqlite3.connect(folder / FILE)) as connection:
        most: int = connection.execute("SELECT max(attempts) FROM items").fetchone()[0]
    return most


def _readable(folder: Path, images: Crops, job: str, name: str, source: str) -> bool:
    offset, size = json.loads(source)["blob"]
    with (folder / "blobs" / job).open("rb") as blob:
        blob.seek(offset)
        return blob.read(size) == images.images[name]
