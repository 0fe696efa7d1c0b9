"""Logging: each line is a JSON object or, at a terminal, plain text.

Images, keys and headers of callers are never logged. Control characters are escaped in both forms,
so that callers cannot forge lines. Logging never blocks: if the reader of standard error stops
reading, lines are dropped.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Final

import structlog
from structlog.typing import EventDict, Processor

from service.core.settings import CoreSettings

STANDARD_ERROR: Final = 2
MOST_WAITING: Final = 10_000
"""Maximum number of lines that wait to be written; further lines are dropped."""
PATIENCE_SECONDS: Final = 2.0
"""Timeout, when the log is closed, for the lines that still wait to be written."""
log = logging.getLogger("service")


def is_json(settings: CoreSettings) -> bool:
    """Return whether each line that the service writes is a JSON object."""
    if settings.log_format == "auto":
        return not sys.stderr.isatty()
    return settings.log_format == "json"


def tell_mistake(mistake: str, settings: CoreSettings) -> None:
    """Write the mistake that ends the service, inside or outside a block of `logging_set_up`."""
    if not is_json(settings):
        print(f"gradcam: {mistake}", file=sys.stderr)
        return
    with nullcontext() if _opened() else logging_set_up(settings):
        log.critical("%s", mistake)


def _opened() -> bool:
    return any(isinstance(handler, Unhurried) for handler in logging.getLogger().handlers)


@contextmanager
def quiet(name: str) -> Iterator[None]:
    """Let a logger tell nothing but errors while the block is open."""
    logger = logging.getLogger(name)
    former = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(former)


@contextmanager
def logging_set_up(settings: CoreSettings) -> Iterator[None]:
    """Make every logger of the process, uvicorn's included, write to standard error in one form
    while the block is open."""
    at_terminal, console = sys.stderr.isatty(), not is_json(settings)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        _without_colours,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[Processor] = (
        [escape, structlog.dev.ConsoleRenderer(colors=at_terminal)]
        if console
        else [structlog.processors.JSONRenderer()]
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            # Without it the console's renderer would print local variables, images among them.
            structlog.processors.format_exc_info,
            *last,
        ],
    )
    handler = Unhurried()
    handler.setFormatter(formatter)
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    try:
        # They tell each request of the service itself, and the headers of its answer.
        with quiet("httpx2"), quiet("httpcore2"):
            yield
    finally:
        logging.captureWarnings(False)
        logging.getLogger().removeHandler(handler)
        handler.close()


class Unhurried(logging.Handler):
    """Writes to standard error in a thread of its own, so that no caller waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: queue.Queue[bytes | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + "\n"
            self._lines.put_nowait(line.encode("utf-8", "backslashreplace"))
        except queue.Full:
            pass
        except Exception:  # like the standard handlers: a bad record must not fail its caller
            self.handleError(record)

    def close(self) -> None:
        """Write the lines that wait, if their reader accepts them, and end the thread."""
        with suppress(queue.Full):
            self._lines.put(None, timeout=PATIENCE_SECONDS)
            self._thread.join(PATIENCE_SECONDS)
        super().close()

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            with suppress(OSError):  # nobody reads it any more
                while line:
                    # Not sys.stderr: its lock, held by a blocked write, would block the exit.
                    line = line[os.write(STANDARD_ERROR, line) :]


def _without_colours(logger: Any, method: str, event: EventDict) -> EventDict:
    event.pop("color_message", None)  # uvicorn's copy of the message
    return event


def escape(logger: Any, method: str, event: EventDict) -> EventDict:
    """Escape control characters as \\xNN, except the line breaks of a traceback."""
    return {
        key: _escaped(value, keep="\n" if key == "exception" else "")
        if isinstance(value, str)
        else value
        for key, value in event.items()
    }


def _escaped(text: str, *, keep: str) -> str:
    return "".join(
        letter
        if letter.isprintable() or letter in keep
        else letter.encode("unicode_escape").decode()
        for letter in text
    )
