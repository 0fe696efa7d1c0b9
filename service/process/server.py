"""A process that receives requests: runs the app in uvicorn, drains on SIGTERM and returns the exit
code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI

from service.backend.interface import NO_MODEL, Backend
from service.core.allocator import keep_memory, settle
from service.core.errors import ConfigError, Problem
from service.core.logs import is_json
from service.core.metrics import Metrics
from service.core.settings import CoreSettings
from service.limits.connections import most_connections, other_connections, raise_file_limit
from service.process.connections import BoundedProtocol, ConnectionLimits
from service.process.heartbeat import LISTENING, READY, REPLACE_ME, Heartbeat
from service.process.listener import accept_no_more, url
from service.process.running import end_at_once, run_until_done, why_not_loaded

KEEP_ALIVE_SECONDS = 5
LOOK_SECONDS = 0.25
UNREAD_BODIES = 32
"""A client may send this many times the largest body after its answer, so that it gets to read the
answer."""
log = logging.getLogger(__name__)


class DrainingServer(uvicorn.Server):
    """A server that, on SIGTERM or SIGINT, refuses new work, finishes running requests and returns.
    After a second signal it waits only for the running batch, and answers all else with 503."""

    def __init__(self, config: uvicorn.Config, manager: Backend) -> None:
        super().__init__(config)
        self._manager = manager
        self.opened = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.opened.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await accept_no_more(sockets or [])
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn's handler would raise the signal again after a clean end: exit code 143, not 0.
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self.drain)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    def drain(self) -> None:
        if self._manager.draining:
            self.force_exit = True
        self._manager.draining = True
        self.should_exit = True


def run(
    make: Callable[[], FastAPI],
    settings: CoreSettings,
    listening: socket.socket,
    heartbeat: Heartbeat | None,
    *,
    says_hello: bool = True,
) -> int:
    """Serve until told to stop.

    Args:
        make: makes the app.
        heartbeat: sends messages to the supervisor, if there is one.
        says_hello: whether the process prints how to send a first request when the models are
            ready.

    Returns:
        The process's exit code: 0 after a clean stop, 1 after a second signal forced the stop,
        `REPLACE_ME` if too many workers hang, 2 after a mistake in the configuration, which has
        been printed.
    """
    keep_memory()
    return run_until_done(
        settings, lambda: _serve(make(), settings, listening, heartbeat, says_hello), heartbeat
    )


async def _serve(
    app: FastAPI,
    settings: CoreSettings,
    listening: socket.socket,
    heartbeat: Heartbeat | None,
    says_hello: bool,
) -> int:
    raise_file_limit(settings)
    server = _server(settings, app)
    manager: Backend = app.state.manager
    mistake_met: Callable[[], ConfigError | None] = app.state.failure
    metrics: Metrics = app.state.metrics
    serving = asyncio.create_task(server.serve([listening]))
    await asyncio.wait(
        [asyncio.create_task(server.opened.wait()), serving], return_when=asyncio.FIRST_COMPLETED
    )
    if heartbeat:
        heartbeat.tell(LISTENING)
        heartbeat.when_orphaned(server.drain)
    failure: ConfigError | None = None
    said_hello = False
    while not serving.done():
        if heartbeat:
            heartbeat.tell_state(manager)
        metrics.measure()
        if manager.worn_out and not server.should_exit:
            log.error("too many workers hang; only a new process helps")
            server.drain()
        if (mistake := mistake_met()) and not server.should_exit:
            failure = mistake
            server.should_exit = True
        if manager.loaded.done() and not said_hello and not server.should_exit:
            said_hello = True
            failure = why_not_loaded(manager.loaded)
            if failure:
                server.should_exit = True
            else:
                if heartbeat:
                    heartbeat.tell(READY)  # before anything that may end this process
                settle()
                if says_hello:
                    _say_hello(url(listening), manager, settings)
        awaited = {serving} if manager.loaded.done() else {serving, manager.loaded}
        await asyncio.wait(awaited, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    await serving
    if failure:
        raise failure
    code = REPLACE_ME if manager.worn_out else int(server.force_exit)
    if manager.busy:
        end_at_once(code)
    return code


def _server(settings: CoreSettings, app: FastAPI) -> DrainingServer:
    metrics: Metrics = app.state.metrics

    class Protocol(BoundedProtocol):
        limits = ConnectionLimits(
            receive_seconds=settings.receive_seconds,
            send_seconds=settings.send_seconds,
            max_connections=most_connections(settings) - other_connections(settings),
            max_body_bytes=UNREAD_BODIES * settings.max_body_bytes,
            refused=lambda reason: metrics.rejected.labels(reason=reason).inc(),
            counts=app.state.counts,
            enter=app.state.guard.let_in_early,
        )

    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        log_config=None,
        log_level=settings.log_level,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # `service.features.forwarded` reads them
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=round(settings.drain_seconds),
    )
    return DrainingServer(config, app.state.manager)


def _say_hello(address: str, manager: Backend, settings: CoreSettings) -> None:
    none = f"Ready at {address}/. {NO_MODEL[0].upper()}{NO_MODEL[1:]}"
    if is_json(settings):
        log.info("%s", f"Ready. Drop a photo on {address}/" if manager.names else none)
        return
    if not manager.names:
        print(f"\n{none}\n", flush=True)
        return
    key = '-H "X-API-Key: $KEY" ' if settings.identifies_callers() else ""
    name = manager.names[0]
    photo, ask = "photos/chelsea", "explain"
    with contextlib.suppress(Problem):  # it may have just been removed
        if manager.replicas(name).model.answers:
            photo, ask = "shapes", "answer?question=what+is+in+the+picture?"
    print(
        f"""
Ready. Drop a photo on {address}/ or paste:

  curl --data-binary @docs/{photo}.png -H 'Content-Type: image/png' -H 'Accept: image/png' \\
    {key}-o overlay.png '{address}/v1/models/{name}:{ask}'
""",
        flush=True,
    )
