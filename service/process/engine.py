"""The process that holds the models: answers the calls of the processes that receive requests."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from pathlib import Path
from time import monotonic
from typing import Any, Final

from service.core.allocator import give_back_memory, keep_memory, settle
from service.core.metrics import Metrics
from service.core.settings import CoreSettings
from service.engine.manager import ModelManager
from service.features import given, journals, watches
from service.models.catalog import ModelEntry
from service.process.heartbeat import ALIVE, LISTENING, READY, REPLACE_ME, Heartbeat
from service.process.running import end_at_once, run_until_done, why_not_loaded
from service.rpc.server import BackendServer
from service.runtimes.warming import fast_path

LOOK_SECONDS: Final = 0.25
REST_SECONDS: Final = 5
log = logging.getLogger(__name__)


def run(
    settings: CoreSettings,
    entries: tuple[ModelEntry, ...],
    listening: socket.socket,
    folder: Path,
    heartbeat: Heartbeat,
) -> int:
    """Serve the models to other processes until told to stop.

    Args:
        listening: the Unix socket at which the other processes connect.
        folder: the folder that the processes of the service share.

    Returns:
        The process's exit code, as `service.process.server.run` returns it.
    """
    keep_memory()
    return run_until_done(
        settings, lambda: _serve(settings, entries, listening, folder, heartbeat), heartbeat
    )


async def _serve(
    settings: CoreSettings,
    entries: tuple[ModelEntry, ...],
    listening: socket.socket,
    folder: Path,
    heartbeat: Heartbeat,
) -> int:
    loop, stopping, forced = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    def stop() -> None:
        (forced if stopping.is_set() else stopping).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    heartbeat.when_orphaned(stopping.set)
    given("work")  # a message is read if its class is known
    metrics = Metrics()
    if heartbeat.again:
        metrics.count_restart(entry.name for entry in entries)
    journal = next((make(folder) for make in journals()), None)
    manager = ModelManager(
        entries,
        settings=settings,
        metrics=metrics,
        journal=journal,
        watches=watches(),
        fast_path=fast_path,
    )
    server = BackendServer(manager, listening)
    manager.subscribe(server.tell)
    async with manager, server:
        heartbeat.tell(LISTENING)
        resting = asyncio.create_task(_rest(server), name="rest")
        said_ready = False
        stop_told = asyncio.create_task(stopping.wait(), name="wait for the stop")
        while not stopping.is_set():
            heartbeat.tell(ALIVE)
            manager.measure()
            if manager.worn_out:
                log.error("too many workers hang; only a new process helps")
                break
            if manager.loaded.done() and not said_ready:
                if failure := why_not_loaded(manager.loaded):
                    raise failure
                said_ready = True
                heartbeat.tell(READY)
                settle(seldom=True)
            waiting: set[asyncio.Task[Any]] = {stop_told}
            if not manager.loaded.done():
                waiting.add(manager.loaded)
            await asyncio.wait(waiting, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        # The processes that receive requests end first; where the supervisor has died, nobody
        # waits for that but this process.
        latest = monotonic() + settings.drain_seconds
        while server.connections and not forced.is_set() and monotonic() < latest:
            if manager.worn_out:
                break
            await asyncio.sleep(0.02)
        stop_told.cancel()
        resting.cancel()
        manager.draining = True
    code = REPLACE_ME if manager.worn_out else int(forced.is_set())
    if manager.busy:
        end_at_once(code)
    return code


async def _rest(server: BackendServer) -> None:
    """Return free memory to the system whenever the models have become idle, until cancelled. The
    first time is when they are warm."""
    seen = -1
    while True:
        await asyncio.sleep(REST_SECONDS)
        if not server.calls and server.received != seen:
            seen = server.received
            await asyncio.to_thread(give_back_memory)
