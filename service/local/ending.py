"""The end of a command that computes in threads of its own."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Final, NoReturn

import typer

LAST_SECONDS: Final = 5.0


def end_after(work: Callable[[], int]) -> NoReturn:
    """Do a command's work, which returns the exit code, and end the command with it. A thread of
    the work that hangs is waited for `LAST_SECONDS`; then the process ends without it."""
    former = {*threading.enumerate()}
    code = work()
    for thread in {*threading.enumerate()} - former:
        if not thread.daemon:
            thread.join(LAST_SECONDS)
            if thread.is_alive():
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
    raise typer.Exit(code)
