"""The supervisor: the process that holds the port and replaces the serving processes when they die.

    code = supervise(listening, settings, entries)

A serving process may be killed, run out of memory or stop answering; the port stays open. While no
process serves, the supervisor answers each request at once with a 503, but `/healthz` with 200.

Processes of two kinds serve: doors receive requests, as many as the settings say, and one process
more, the engine, holds the models. (With 0 doors, one process does both.) The doors reach the
engine at a Unix socket in a folder that only this user may enter. The same folder holds the counts
by which the limits of the settings hold for all doors together, and the metrics of all processes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from prometheus_client.multiprocess import mark_process_dead

from service.core.errors import ConfigError
from service.core.logs import logging_set_up, tell_mistake
from service.core.metrics import FOLDER
from service.features import given
from service.limits.counters import SharedCounts, table
from service.models.catalog import ModelEntry
from service.models.sources import source_of
from service.process.child import Child
from service.process.heartbeat import COUNTS, ENGINE, Heartbeat, Readiness
from service.process.listener import listen
from service.process.stand_in import StandIn
from service.settings import Settings

MOST_FAILED_STARTS: Final = 3
DECIDED: Final = (0, 2)
"""Exit codes that end the supervisor: a clean stop, and a mistake in the configuration."""
AT_ONCE: Final = 1
"""Exit code of a stop that a second signal forced. It counts as one only if a signal came, because
Python also exits so after an uncaught exception."""
ACCELERATORS: Final = ("nvidia[0-9]*", "kfd")
"""Files in /dev of NVIDIA's and AMD's accelerators."""
MOST_DOORS: Final = 16
CORES_OF_A_DOOR: Final = 8
BACKLOG: Final = 64
METRICS: Final = "metrics"
"""Name of the folder with the metrics of all processes, in the folder that they share."""
AGAIN_SECONDS: Final = 0.5
"""Seconds after which a process that could not be started is started again."""
FROZEN_SECONDS: Final = 3.0
"""Time without a message after which a process is not counted on, until it is heard again."""
Entries = tuple[ModelEntry, ...]
log = logging.getLogger(__name__)


def supervise(listening: socket.socket, settings: Settings, entries: Entries) -> int:
    """Run the serving processes, and start another one whenever one dies, until one ends with a
    code of `DECIDED` or a signal stops them.

    Returns:
        The exit code: 0 after a stop, 1 after a forced stop or if `MOST_FAILED_STARTS` processes in
        a row ended before they were ready, 2 after a mistake in the configuration.

    Raises:
        ConfigError: if the socket between the processes cannot be made in the folder for temporary
            files.
    """
    with logging_set_up(settings), ExitStack() as scope:
        supervisor = _Supervisor(listening, settings)
        for asked in given("supervised"):
            if found := asked(settings):
                port, answers = found
                other = scope.enter_context(listen(settings.model_copy(update={"port": port})))
                supervisor.beside.append(partial(answers, other))
        doors = usual_doors() if settings.doors is None else settings.doors
        if doors:
            try:
                folder = scope.enter_context(shared_folder(doors))
                supervisor.add_doors(scope, folder, doors, settings, entries)
            except OSError as error:
                raise ConfigError(
                    f"the processes need a socket in the folder for temporary files: {error}; set "
                    "TMPDIR to a folder with a short path that the service may write to"
                ) from None
        else:
            folder = Path(scope.enter_context(tempfile.TemporaryDirectory(prefix="gradcam-")))
            supervisor.add_one_for_all(folder, settings, entries)
        try:
            return asyncio.run(supervisor.run())
        except Exception:  # Python would write it as text among the lines of the log
            log.exception("an error ends the supervisor")
            return 1


def usual_doors() -> int:
    """Return the number of doors where the settings name none. An accelerator answers more images a
    second than one door can decode and draw, so a core is for each door, beside the engine's own. A
    model on the processor needs the cores itself; one door in eight cores keeps up with it."""
    cores = os.cpu_count() or 1
    if any(next(Path("/dev").glob(accelerator), None) for accelerator in ACCELERATORS):
        return max(min(cores - 1, MOST_DOORS), 1)
    return 1 + (cores - 1) // CORES_OF_A_DOOR


@contextmanager
def shared_folder(doors: int) -> Iterator[Path]:
    """Make the folder that the processes share, and name it to them in the environment. It is
    removed when the block is left."""
    with tempfile.TemporaryDirectory(prefix="gradcam-") as name, table(Path(name) / COUNTS, doors):
        metrics = Path(name) / METRICS
        metrics.mkdir()
        os.environ[FOLDER] = str(metrics)
        try:
            yield Path(name)
        finally:
            del os.environ[FOLDER]


class _Supervisor:
    def __init__(self, listening: socket.socket, settings: Settings) -> None:
        self._listening = listening
        self._settings = settings
        self._stand_in = StandIn(listening)
        self._receiving: list[Child] = []
        """The processes that receive requests."""
        self._engine: Child | None = None
        """The process that these ask, if they do not hold the models themselves."""
        self._open: set[Child] = set()
        """The processes of `_receiving` that accept connections at the moment."""
        self._stopping = False
        self.beside: list[Callable[..., AbstractAsyncContextManager[Any]]] = []
        """What answers at ports of features, given `_look` and the folder of the metrics."""
        self._metrics: Path | None = None
        """The folder of the metrics of all processes, if there are several."""

    def add_one_for_all(self, folder: Path, settings: Settings, entries: Entries) -> None:
        """Add the process that receives requests and holds the models.

        Args:
            folder: the folder of what outlives the process.
        """
        # The forkserver has imported torch already, so a new process starts at once.
        context = get_context("forkserver")
        preload = ["service.process.server", "service.app", *_libraries(entries)]
        context.set_forkserver_preload(preload)
        self._receiving = [
            Child(
                "the serving process",
                context,
                _live,
                (settings, entries, self._listening, folder),
                listening=self._note_open,
                ended=self._note_closed,
            )
        ]

    def add_doors(
        self, scope: ExitStack, folder: Path, doors: int, settings: Settings, entries: Entries
    ) -> None:
        """Add the engine and the processes that receive requests.

        Args:
            scope: closes the engine's socket.
            folder: the folder that the processes share.
        """
        self._metrics = folder / METRICS
        calls = scope.enter_context(socket.socket(socket.AF_UNIX))
        calls.bind(str(folder / ENGINE))
        calls.listen(BACKLOG)
        context = get_context("forkserver")
        context.set_forkserver_preload([*_libraries(entries), "service.process.preload"])
        self._engine = Child(
            "the engine",
            context,
            _live_engine,
            (settings, entries, calls, folder),
            ended=partial(_bury, folder),
        )

        rows = [SharedCounts(folder / COUNTS, number) for number in range(doors)]

        async def note_closed(number: int, child: Child, pid: int) -> None:
            rows[number].clear()
            await _bury(folder, child, pid)
            await self._note_closed(child, pid)

        self._receiving = [
            Child(
                f"door {number}",
                get_context("spawn"),
                _live_door,
                (settings, entries, self._listening, folder, number),
                listening=self._note_open,
                ended=partial(note_closed, number),
            )
            for number in range(doors)
        ]

    async def run(self) -> int:
        """Run all processes until the service ends, and return its exit code."""
        try:
            async with AsyncExitStack() as scope:
                for answers in self.beside:
                    await scope.enter_async_context(answers(self._look, self._metrics))
                return await self._run()
        except BaseException:
            # The interpreter would wait for the processes, which would serve on without a port.
            for child in self._receiving:
                child.kill()
            if self._engine:
                self._engine.kill()
            raise

    def _look(self) -> Readiness:
        """Return the service's readiness: that of a process that receives requests and is ready, or
        else of one that is not."""
        if self._stopping:
            return Readiness("the service is shutting down")
        heard = [child for child in self._open if child.silent_seconds < FROZEN_SECONDS]
        told = [child.readiness for child in heard if child.readiness]
        told.sort(key=lambda readiness: readiness.why_not is not None)
        if not told:
            frozen = self._open and not heard
            return Readiness("no process answers" if frozen else "the service is starting")
        engine = self._engine
        if engine is None or told[0].why_not:
            return told[0]
        if not engine.is_ready:  # the doors notice it a quarter of a second later
            return Readiness("the engine is starting", told[0].models)
        if engine.silent_seconds >= FROZEN_SECONDS:
            return Readiness("the engine does not answer", told[0].models)
        return told[0]

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        await self._stand_in.begin()
        receiving = [asyncio.create_task(self._keep(child)) for child in self._receiving]
        all_of_them = list(receiving)
        if self._engine:
            all_of_them.append(asyncio.create_task(self._keep(self._engine)))
        await asyncio.wait(all_of_them, return_when=asyncio.FIRST_COMPLETED)
        codes = [task.result() for task in all_of_them if task.done()]
        if not self._stopping:  # one of them has decided for all
            self._stop()
        codes += await asyncio.gather(*receiving)
        if self._engine:
            self._engine.signal(signal.SIGTERM)
        codes += await asyncio.gather(*all_of_them)
        await self._stand_in.close()
        for child in (self._engine, *self._receiving):
            if child and child.mistake:
                tell_mistake(child.mistake, self._settings)
        return next((code for code in codes if code), 0)

    async def _keep(self, child: Child) -> int:
        """Run a process, again whenever it dies, and return the exit code that ends the service."""
        failed_starts = 0
        while True:
            try:
                code, was_ready = await child.live()
            except OSError:  # there is no memory or no file descriptor left
                log.exception("%s cannot be started", child.name)
                child.kill()
                await asyncio.sleep(AGAIN_SECONDS)
                code, was_ready = 1, False
            if self._stopping or code in DECIDED:
                return code if code in (*DECIDED, AT_ONCE) else 0
            failed_starts = 0 if was_ready else failed_starts + 1
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            log.error("%s ended %s; another one starts", child.name, how)
            if failed_starts == MOST_FAILED_STARTS:
                log.error("%d processes in a row ended before they were ready", failed_starts)
                return 1

    def _stop(self) -> None:
        # Two equal signals in a row might be merged into one, so the second one is another.
        number = signal.SIGINT if self._stopping else signal.SIGTERM
        if not self._stopping:
            self._stopping = self._stand_in.stopping = True
            self._answering = asyncio.create_task(self._stand_in.begin())
        for child in self._receiving:
            child.signal(number)

    async def _note_open(self, child: Child) -> None:
        self._open.add(child)
        if not self._stopping:
            await self._stand_in.end()

    async def _note_closed(self, child: Child, pid: int) -> None:
        self._open.discard(child)
        if not self._open:
            await self._stand_in.begin()


def _libraries(entries: Entries) -> list[str]:
    """Return the packages from which the models come, to be imported once for all processes that
    hold models. Each takes seconds, so that the others are imported only if they are needed."""
    libraries = dict.fromkeys(source_of(entry.source)[0].library for entry in entries)
    return [library for library in libraries if library]


async def _bury(folder: Path, child: Child, pid: int) -> None:
    """Remove the gauges of a dead process from the folder."""
    mark_process_dead(pid, str(folder / METRICS))  # type: ignore[no-untyped-call]


def _live(
    settings: Settings,
    entries: Entries,
    listening: socket.socket,
    folder: Path,
    again: bool,
    sending: Connection,
) -> None:
    """Run a process that receives requests and holds the models."""
    # These import torch, which the supervisor does not need.
    from service.app import create_app
    from service.process.server import run

    os.setsid()  # a terminal's Ctrl-C reaches the supervisor alone, which passes it on
    make = partial(create_app, settings, entries, again=again, folder=folder)
    raise SystemExit(run(make, settings, listening, Heartbeat(sending, again=again)))


def _live_engine(
    settings: Settings,
    entries: Entries,
    calls: socket.socket,
    folder: Path,
    again: bool,
    sending: Connection,
) -> None:
    """Run the process that holds the models."""
    from service.process.engine import run

    os.setsid()
    raise SystemExit(run(settings, entries, calls, folder, Heartbeat(sending, again=again)))


def _live_door(
    settings: Settings,
    entries: Entries,
    listening: socket.socket,
    folder: Path,
    number: int,
    again: bool,
    sending: Connection,
) -> None:
    """Run a process that receives requests."""
    from service.process.door import run

    os.setsid()
    heartbeat = Heartbeat(sending, again=again)
    raise SystemExit(run(settings, entries, listening, heartbeat, folder, number))
