"""A process that works on jobs until it is killed, or kills itself at a moment of one's choice."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from service.features.jobs.janitor import enlisted
from service.features.jobs.records import Leased
from tests.service.features.jobs.desk import Desk, desk_at
from tests.waiting import hang

NAME = "mortal"
DOCUMENT = b'{"index":%d}' + b" " * 10_000
MOMENTS = ("in the file", "before its name", "before the commit", "in the commit", "after it")
"""At which it dies, while it finishes the second item that it leases."""


def die(*args: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def live(folder: Path, moment: str, said: Connection) -> None:
    with desk_at(folder) as desk, enlisted(NAME, desk.store, desk.folder):
        if moment == "hold":
            desk.lease(NAME, 4)
            said.send("leased")
            hang()
        elif moment == "receive":
            receive(desk, said)
        else:
            first, second, *_ = desk.lease(NAME, 4)
            finish(desk, first)
            prepare(moment)
            finish(desk, second)
            die()


def prepare(moment: str) -> None:
    if moment == "in the file":
        Path.write_bytes = half  # type: ignore[assignment, method-assign]
    elif moment == "before its name":
        Path.replace = die  # type: ignore[assignment, method-assign]
    elif moment == "before the commit":
        Desk.settle = die  # type: ignore[assignment, method-assign]
    elif moment == "in the commit":
        event.listen(Engine, "commit", die)


def half(file: Path, data: bytes) -> None:
    with file.open("wb") as opened:
        opened.write(data[: len(data) // 2])
        opened.flush()
        die()


def finish(desk: Desk, item: Leased) -> None:
    desk.folder.write_result(item.job, item.number, DOCUMENT % item.number)
    desk.settle(NAME, item)


def receive(desk: Desk, said: Connection) -> None:
    """A job of which some is here."""
    job = desk.begun(3, runner=NAME)
    with desk.folder.blob(job, 1_000_000) as blob, desk.folder.incoming() as incoming:
        for each in (blob, incoming):
            each.write(b"half of a picture")
        blob.sync()
        incoming.flush()
        said.send("received")
        hang()
