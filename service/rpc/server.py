"""Serves a backend to other processes on this machine.

server = BackendServer(manager, listening)
manager.subscribe(server.tell)
async with manager, server:
    …
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

from structlog.contextvars import bind_contextvars

from cam import METHODS
from cam.progress import Progress
from service.backend.interface import OBSERVED_AT_ONCE, Backend, ModelBackend
from service.core.errors import Problem, Unavailable, unexpected
from service.models.catalog import ModelEntry
from service.rpc.frames import FrameProtocol
from service.rpc.messages import (
    Add,
    Cancelled,
    Idle,
    ModelSnapshot,
    Progressed,
    Raised,
    RemoteCall,
    Remove,
    Returned,
    Shared,
    State,
    codec,
)
from service.rpc.shared_memory import OthersMemory

BUSY_BYTES: Final = 1 << 20
"""Progress is not reported to a caller that has this many bytes left to read."""
PEER: Final = struct.Struct("3i")
"""Process, user and group of the other end of a Unix socket, as Linux tells them."""
log = logging.getLogger(__name__)


class BackendServer:
    """Answers the calls of other processes, and tells them the backend's state: when they connect,
    and whenever `tell` is called.

    Use with `async with`: entering accepts connections, leaving closes them and cancels their
    calls. The caller enters the backend before, and leaves it afterwards.

    Args:
        listening: a Unix socket that listens. It stays open.
    """

    def __init__(self, backend: Backend, listening: socket.socket) -> None:
        self._backend = backend
        self._listening = listening
        self._connections: set[_Connection] = set()
        self.received = 0
        """Number of calls since the start."""
        self.observing = asyncio.Semaphore(OBSERVED_AT_ONCE)
        self._removals: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> BackendServer:
        # From Python 3.13 on, closing would remove the path, which the next process needs.
        options: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: _Connection(self._backend, self).protocol, sock=self._listening.dup(), **options
        )
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._server.close()
        tasks = [*self._removals]
        for removal in self._removals:
            removal.cancel()
        for connection in list(self._connections):
            tasks += connection.close()
        if tasks:
            await asyncio.wait(tasks)

    @property
    def connections(self) -> int:
        """Number of processes that are connected."""
        return len(self._connections)

    @property
    def calls(self) -> int:
        """Number of calls that are being answered."""
        return sum(connection.calls for connection in self._connections)

    def begin(self, connection: _Connection) -> None:
        self._connections.add(connection)
        connection.send(_state(self._backend))

    def end(self, connection: _Connection) -> None:
        self._connections.discard(connection)

    async def remove(self, name: str, in_work: Callable[[], int]) -> None:
        """Unload a model: see `Backend.remove`. It goes on if the caller is cancelled, because half
        of a removal would leave a model that neither answers nor can be removed."""
        task = asyncio.create_task(self._backend.remove(name, in_work), name="remove a model")
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise

    def tell(self) -> None:
        """Tell all connections the backend's state, which has changed."""
        state = _state(self._backend)
        for connection in self._connections:
            connection.send(state)


class _Connection:
    """The calls of one other process."""

    def __init__(self, backend: Backend, server: BackendServer) -> None:
        self._backend = backend
        self._server = server
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._idle: set[int] = set()
        """Calls of `remove` whose caller has no image of the model in work any more."""
        self._lost = False
        self._shared: OthersMemory | None = None
        """Memory in which the other process writes pixels."""
        self.protocol = FrameProtocol(codec(), self._receive, opened=self._open, lost=self._lose)

    @property
    def calls(self) -> int:
        """Number of calls that are being answered."""
        return len(self._calls)

    def send(self, message: object) -> None:
        if not self._transport.is_closing():
            self.protocol.send(message)

    def close(self) -> list[asyncio.Task[None]]:
        """Close the connection, and return the tasks of its calls, which are cancelled."""
        self.protocol.flush()
        self._transport.close()
        for call in self._calls.values():
            call.cancel()
        return list(self._calls.values())

    def _open(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._server.begin(self)

    def _lose(self) -> None:
        self._lost = True
        if self._shared:
            self._shared.close()
            self._shared = None
        self._server.end(self)
        for call in self._calls.values():
            call.cancel()

    def _receive(self, payload: memoryview) -> None:
        try:
            messages = codec().read(payload, self._shared.copy if self._shared else None)
        except (pickle.UnpicklingError, EOFError, AttributeError, ValueError, TypeError):
            log.exception("a process sent what is not a message; its connection is closed")
            self._transport.abort()
            return
        for message in messages:
            self._take(message)

    def _take(self, message: object) -> None:
        if isinstance(message, RemoteCall):
            task = asyncio.create_task(self._answer(message), name=f"call {message.number}")
            self._calls[message.number] = task
            self._server.received += 1
            task.add_done_callback(partial(self._ended, message.number))
        elif isinstance(message, Cancelled) and (call := self._calls.get(message.number)):
            call.cancel()
        elif isinstance(message, Idle):
            self._idle.add(message.number)
        elif isinstance(message, Shared) and self._shared is None:
            self._share(message)

    def _share(self, memory: Shared) -> None:
        """Open the other process's memory; it goes on without if that cannot be done, as where
        /proc is not mounted."""
        try:
            end = self._transport.get_extra_info("socket")
            told = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
            self._shared = OthersMemory(PEER.unpack(told)[0], memory.descriptor)
        except (OSError, AttributeError) as error:
            log.info("pixels come through the socket: %s", error)
            return
        self.send(memory)

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        del self._calls[number]
        if task.cancelled():  # the caller does not wait, but its pixels take up memory
            self.send(Raised(number, Unavailable("the call was cancelled")))

    async def _answer(self, call: RemoteCall) -> None:
        bind_contextvars(**call.log_context)  # for this task
        try:
            self.send(Returned(call.number, await self._work(call)))
            if isinstance(call.work, Add):
                # The load, which may end this process, begins in the next turn of the loop.
                self.protocol.flush()
        except Problem as problem:
            self.send(Raised(call.number, problem))
        except Exception:
            failure = unexpected(f"{type(call.work).__name__} of model {call.model}")
            self.send(Raised(call.number, failure))

    async def _work(self, call: RemoteCall) -> object:
        work = call.work
        if isinstance(work, Add):
            entry = ModelEntry.model_validate_json(work.entry)
            entry = entry.of_file(Path(work.file) if work.file else None)
            await self._backend.add(entry, most=work.most)
        elif isinstance(work, Remove):
            await self._remove(call)
        else:
            replicas, progress = self._replicas(call), partial(self._report, call.number)
            async with self._server.observing if work.heavy else nullcontext():
                return await replicas.ask(work, progress=progress if call.listens else None)
        return None

    async def _remove(self, call: RemoteCall) -> None:
        def in_work() -> int:
            return int(not self._lost and call.number not in self._idle)

        await self._server.remove(call.model, in_work)
        self._idle.discard(call.number)

    def _replicas(self, call: RemoteCall) -> ModelBackend:
        """Return the model that the caller means.

        Raises:
            Unavailable: if another model has its name now.
        """
        replicas = self._backend.replicas(call.model)
        if replicas.model.fingerprint != call.fingerprint:
            raise Unavailable(f"model {call.model!r} has just been replaced; try again")
        return replicas

    def _report(self, number: int, progress: Progress) -> None:
        if self._transport.get_write_buffer_size() < BUSY_BYTES:
            self.send(Progressed(number, progress))


def _state(backend: Backend) -> State:
    return State(
        models={name: _model_state(backend, name) for name in backend.names},
        ready=backend.ready,
        why_not_ready=backend.why_not_ready(),
        loaded=backend.all_loaded,
        process=os.getpid(),
    )


def _model_state(backend: Backend, name: str) -> ModelSnapshot:
    ready = backend.model_ready(name)
    try:
        replicas = backend.replicas(name)
    except Problem as problem:
        return ModelSnapshot(ready, problem)
    return ModelSnapshot(
        ready,
        None,
        info=replicas.model.info,
        devices=replicas.devices,
        copies=replicas.copies,
        runtime=replicas.runtime,
        fidelities=dict(replicas.fidelities),
        images_a_second=replicas.images_a_second,
        fast=frozenset(name for name in METHODS if replicas.is_fast(name)),
    )
