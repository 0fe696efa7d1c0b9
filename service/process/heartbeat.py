"""Messages of a serving process to its supervisor, which show that it is alive."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # it imports numpy, which the supervisor does not need
    from service.backend.interface import Backend

LISTENING, ALIVE, READY, END = b"listening", b"alive", b"ready", b"end"
ENGINE, COUNTS = "engine", "counts"
"""Names of the engine's Unix socket, and of the file with the counts of all processes, in the
folder that the processes of a service share."""
STATE = b"state: "
"""The first bytes of a message with the process's readiness and its models, as JSON. It shows, too,
that the process is alive."""
MISTAKE = b"mistake: "
"""The first bytes of a message with a mistake in the configuration, which ends the process."""
REPLACE_ME: Final = 70
"""The exit code with which a serving process asks to be replaced."""


@dataclass(frozen=True)
class Readiness:
    """What the serving processes have told about themselves."""

    why_not: str | None
    """Why the service is not ready; None if it is."""
    models: tuple[str, ...] = ()


class Heartbeat:
    """Sends the messages of a serving process to its supervisor.

    Args:
        again: whether the process replaces one that has died.
    """

    def __init__(self, sending: Connection, *, again: bool = False) -> None:
        self.again = again
        self._sending = sending
        os.set_blocking(sending.fileno(), False)

    def tell(self, what: bytes) -> None:
        with suppress(OSError):  # the supervisor has died, or does not read
            self._sending.send_bytes(what)

    def tell_state(self, manager: Backend) -> None:
        """Tell whether models can be asked, and their names."""
        why_not = None if manager.ready else manager.why_not_ready()
        state = {"why_not": why_not, "models": list(manager.names)}
        self.tell(STATE + json.dumps(state).encode())

    @staticmethod
    def when_orphaned(act: Callable[[], None]) -> None:
        """Call `act` once in the running event loop when the supervisor has died."""
        loop, parent = asyncio.get_running_loop(), parent_process()
        assert parent
        sentinel = parent.sentinel

        def once() -> None:
            loop.remove_reader(sentinel)  # it stays readable, and a second call may force a stop
            act()

        loop.add_reader(sentinel, once)
