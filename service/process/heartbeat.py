"""What a serving process tells its supervisor, so that this knows that it lives."""

from __future__ import annotations

import os
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from typing import Final

LISTENING, ALIVE, READY, END = b"listening", b"alive", b"ready", b"end"
REPLACE_ME: Final = 70
"""The exit code by which a serving process asks for another one in its place."""


class Heartbeat:
    """What a serving process tells its supervisor."""

    def __init__(self, sending: Connection) -> None:
        self._sending = sending
        os.set_blocking(sending.fileno(), False)

    def tell(self, what: bytes) -> None:
        with suppress(OSError):  # nobody is there any more, or listens
            self._sending.send_bytes(what)

    @staticmethod
    def orphaned() -> int:
        """A file descriptor that becomes readable when the supervisor has died."""
        parent = parent_process()
        assert parent
        return parent.sentinel
