"""Running the coroutine of a serving process, and ending the process. Nothing here loads the HTTP
interface, which the process that holds the models does not need."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, NoReturn

from service.core.errors import ConfigError
from service.core.logs import logging_set_up, tell_mistake
from service.core.settings import CoreSettings
from service.features import given
from service.process.heartbeat import MISTAKE, Heartbeat

log = logging.getLogger(__name__)


def run_until_done(
    settings: CoreSettings,
    work: Callable[[], Coroutine[Any, Any, int]],
    heartbeat: Heartbeat | None,
) -> int:
    """Run a process's coroutine with its log set up and within what features open, and return its
    exit code.

    After a mistake in the configuration, the exit code is 2, and the supervisor is told the
    mistake; without one, it is printed.
    """
    with ExitStack() as scope:
        scope.enter_context(logging_set_up(settings))
        try:
            for opened in given("around"):
                scope.enter_context(opened(settings))
            with asyncio.Runner(loop_factory=new_loop) as runner:
                return runner.run(work())
        except ConfigError as error:
            if heartbeat:
                heartbeat.tell(MISTAKE + str(error).encode())
            else:
                tell_mistake(str(error), settings)
            return 2
        except Exception:  # Python would write it as text among the lines of the log
            log.exception("an error ends the process")
            return 1


def new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop of uvloop, which takes less of the processor for each request; on
    Windows, which uvloop does not support, asyncio's own."""
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()


def end_at_once(code: int) -> NoReturn:
    """End the process although a thread hangs or loads a model, which would keep it from ending."""
    for handler in logging.getLogger().handlers:
        handler.close()
    sys.stdout.flush()
    os._exit(code)


def why_not_loaded(loaded: asyncio.Task[None]) -> ConfigError | None:
    """Return why a model could not be loaded, or None if all were."""
    error = None if loaded.cancelled() else loaded.exception()
    if error is None or isinstance(error, ConfigError):
        return error
    log.error("a model could not be loaded", exc_info=error)
    return ConfigError(f"a model could not be loaded: {error}")
