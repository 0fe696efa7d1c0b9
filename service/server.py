"""uvicorn around the app: readiness that waits for models, SIGTERM that drains, exit code 0."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from service.allocator import keep_memory
from service.app import create_app
from service.catalog import ModelEntry
from service.errors import ConfigError
from service.fleet import Fleet
from service.settings import Settings

log = logging.getLogger(__name__)


class DrainingServer(uvicorn.Server):
    """On SIGTERM or SIGINT: refuse new work, finish what runs, return. A second signal waits for
    the running batch alone and answers all else with 503."""

    def __init__(self, config: uvicorn.Config, fleet: Fleet) -> None:
        super().__init__(config)
        self._fleet = fleet
        self.opened = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit as error:  # uvicorn's way of saying that the port cannot be had
            where = f"{self.config.host}:{self.config.port}"
            cause = error.__context__
            why = (cause.strerror if isinstance(cause, OSError) else None) or "the log says why"
            raise ConfigError(f"cannot listen on {where}: {why}") from None
        self.opened.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn's own would raise the signal again after a clean end: exit code 143, not 0.
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self._drain)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    def _drain(self) -> None:
        if self._fleet.draining:
            self.force_exit = True
        self._fleet.draining = True
        self.should_exit = True


def run(settings: Settings, entries: tuple[ModelEntry, ...]) -> int:
    """Serve until told to stop.

    Returns:
        The process's exit code: 0 after a clean stop, 1 after one that waited for nobody.

    Raises:
        ConfigError: if the port cannot be had or a model cannot be loaded.
    """
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    keep_memory()
    app = create_app(settings, entries)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        log_level=settings.log_level,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=round(settings.drain_seconds),
    )
    return asyncio.run(_serve(DrainingServer(config, app.state.fleet), app, settings))


async def _serve(server: DrainingServer, app: FastAPI, settings: Settings) -> int:
    serving = asyncio.create_task(server.serve())
    opened = asyncio.create_task(server.opened.wait())
    await asyncio.wait([opened, serving], return_when=asyncio.FIRST_COMPLETED)
    opened.cancel()
    if serving.done():  # the port cannot be had
        await serving
    failure: ConfigError | None = None
    loading: asyncio.Task[None] = app.state.fleet.loaded
    await asyncio.wait([loading, serving], return_when=asyncio.FIRST_COMPLETED)
    if loading.done() and not loading.cancelled():
        error = loading.exception()
        if error is None:
            _say_hello(server, settings)
        elif isinstance(error, ConfigError):
            failure = error
            server.should_exit = True
        else:
            log.error("a model could not be loaded", exc_info=error)
            failure = ConfigError(f"a model could not be loaded: {error}")
            server.should_exit = True
    await serving
    if failure:
        raise failure
    return 1 if server.force_exit else 0


def _say_hello(server: DrainingServer, settings: Settings) -> None:
    listening = [each for opened in server.servers for each in opened.sockets]
    if not listening:  # a signal came first
        return
    host, port = listening[0].getsockname()[:2]
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104
    address = f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
    fleet: Fleet = server.config.app.state.fleet  # type: ignore[union-attr]
    print(
        f"""
Ready. Drop a photo on {address}/ or paste:

  curl --data-binary @docs/photos/chelsea.png -H 'Content-Type: image/png' -H 'Accept: image/png' \\
    -o overlay.png '{address}/v1/models/{fleet.names[0]}:explain?fit=squash'
""",
        flush=True,
    )
