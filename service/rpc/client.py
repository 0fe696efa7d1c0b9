"""A backend that another process serves."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final, cast

from structlog.contextvars import get_contextvars

from service.backend.interface import Listener, unknown_model
from service.backend.outcome import Outcome
from service.backend.work import Value, Work
from service.core.choices import RuntimeName
from service.core.errors import Unavailable
from service.core.metrics import Metrics
from service.models.catalog import ModelEntry
from service.models.info import ModelInfo
from service.rpc.frames import FrameProtocol, Put
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
from service.rpc.shared_memory import SharedMemory

FIRST_STATE_SECONDS: Final = 0.5
"""Longest time that entering waits for the models' state."""
AGAIN_SECONDS: Final = 0.05
"""Seconds between two attempts to connect, and between two looks at the images in work."""
STARTING: Final = State({}, False, "the engine is starting", False)
log = logging.getLogger(__name__)


@dataclass
class _Pending:
    """A call that waits for its result."""

    result: asyncio.Future[Any]
    listener: Listener | None


class RemoteBackend:
    """The models of the process that listens at a Unix socket.

    Use with `async with`. Entering returns when the models' state is known, or after half a second
    without it. While the other process cannot be reached, every model is unavailable; calls that it
    had not answered raise `Unavailable`, and the connection is made again as soon as a process
    listens.

    Args:
        path: path of the socket.
    """

    loaded: asyncio.Task[None]

    def __init__(self, path: str, metrics: Metrics) -> None:
        self._path = path
        self._metrics = metrics
        self._state = STARTING
        self._known: list[str] = []
        """Names of the models, also while the other process is away."""
        self._told = asyncio.Event()
        self._ended = asyncio.Event()
        self._protocol = self._speak()
        self._transport: asyncio.Transport | None = None
        self._watched: int | None = None
        """File descriptor that becomes readable when the other process ends."""
        self._pending: dict[int, _Pending] = {}
        self._memory: SharedMemory | None = None
        """Memory for pixels, for as long as a connection lasts."""
        self._is_read = False
        """Whether the other process has opened the memory."""
        self._placed: dict[int, list[int]] = {}
        """Number of a call → where its arrays begin in the memory."""
        self._numbers = count()
        self.draining = False

    async def __aenter__(self) -> RemoteBackend:
        self.draining = False
        self._connecting = asyncio.create_task(self._stay_connected(), name="reach the engine")
        self.loaded = asyncio.create_task(self._until_loaded(), name="wait for the models")
        # A process that takes another one's place does not refuse requests for want of a state.
        with suppress(TimeoutError):
            await asyncio.wait_for(self._told.wait(), FIRST_STATE_SECONDS)
        return self

    async def __aexit__(self, *raised: object) -> None:
        self.draining = True
        tasks = [self._connecting, self.loaded]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if self._transport:
            self._protocol.flush()
            self._transport.close()
            await self._ended.wait()

    @property
    def names(self) -> list[str]:
        return list(self._known)

    @property
    def ready(self) -> bool:
        return self._state.ready and not self.draining

    @property
    def all_loaded(self) -> bool:
        return self._state.loaded

    @property
    def worn_out(self) -> bool:
        """False: the other process replaces its own workers."""
        return False

    @property
    def busy(self) -> bool:
        """False: no thread of this process runs a model."""
        return False

    def model_ready(self, name: str) -> bool:
        return name in self._state.models and self._state.models[name].ready

    def why_not_ready(self) -> str:
        return "the service is shutting down" if self.draining else self._state.why_not_ready

    def replicas(self, name: str) -> RemoteModel:
        """Return a model: see `Backend.replicas`."""
        self._require_known(name)
        if self.draining:
            raise Unavailable("the service is shutting down; try again")
        state = self._state.models.get(name)
        if state is None:
            raise Unavailable(f"{self._state.why_not_ready}; try again")
        if state.problem is not None:
            raise copy(state.problem)  # each raise adds a traceback to the exception
        return RemoteModel(self, name, state)

    async def add(self, entry: ModelEntry, *, most: int | None = None) -> None:
        sent = entry.model_dump_json(exclude_unset=True)
        await self.call(entry.name, Add(sent, str(entry.file or ""), most))

    async def remove(self, name: str, in_work: Callable[[], int] = lambda: 0) -> None:
        self._require_known(name)
        number = next(self._numbers)

        async def tell_when_idle() -> None:
            while in_work():  # noqa: ASYNC110 - there is no event to await
                await asyncio.sleep(AGAIN_SECONDS)
            self._send(Idle(number))

        removing = asyncio.create_task(self.call(name, Remove(), number=number))
        telling = asyncio.create_task(tell_when_idle())
        try:
            await removing
        finally:
            telling.cancel()

    def measure(self) -> None:
        for name in self._known:
            self._metrics.model_ready.labels(model=name).set(self.model_ready(name))

    async def call(
        self,
        model: str,
        work: Work[Any] | Add | Remove,
        fingerprint: str = "",
        *,
        listener: Listener | None = None,
        number: int | None = None,
    ) -> Any:
        """Call the other process, and return its result. If this call is cancelled, so is the work.

        Raises:
            Problem: what the other process raises.
            Unavailable: if the connection ends before the result is there.
        """
        if self._transport is None:
            raise Unavailable("the engine is starting; try again")
        number = next(self._numbers) if number is None else number
        pending = _Pending(asyncio.get_running_loop().create_future(), listener)
        self._pending[number] = pending
        try:
            listens, context = listener is not None, get_contextvars()
            call = RemoteCall(number, model, work, fingerprint, listens, context)
            self._send(call, partial(self._put, number))
            return await pending.result
        except asyncio.CancelledError:
            self._send(Cancelled(number))
            raise
        finally:
            self._pending.pop(number, None)
            del pending  # which refers to an exception that refers to this frame

    def _require_known(self, name: str) -> None:
        """Check that there is a model of that name, as far as this process has been told. While the
        engine is away, the models are the last ones that it named.

        Raises:
            UnknownModel: if there is none.
        """
        told = self._known or self._state is not STARTING
        if told and name not in self._known:
            raise unknown_model(name, self._known)

    def _send(self, message: object, put: Put = lambda array: None) -> None:
        if self._transport and not self._transport.is_closing():
            self._protocol.send(message, put)

    def _put(self, number: int, array: memoryview) -> int | None:
        """Write an array of a call into the shared memory; return where it begins, or None if there
        is no room."""
        if self._memory is None or not self._is_read:
            return None
        begin = self._memory.put(array)
        if begin is not None:
            self._placed.setdefault(number, []).append(begin)
        return begin

    async def _stay_connected(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._ended.clear()
            with suppress(OSError):
                await loop.create_unix_connection(self._speak, self._path)
                await self._ended.wait()
            await asyncio.sleep(AGAIN_SECONDS)

    def _speak(self) -> FrameProtocol:
        self._protocol = FrameProtocol(codec(), self._receive, opened=self._open, lost=self._lose)
        return self._protocol

    def _open(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        try:
            self._memory = SharedMemory()
        except (OSError, ImportError) as error:
            log.info("pixels go through the socket: %s", error)
        else:
            self._send(Shared(self._memory.descriptor))

    def _lose(self) -> None:
        if self._memory is not None:
            self._memory.close()
        self._memory, self._is_read = None, False
        self._placed.clear()
        if self._watched is not None:
            asyncio.get_running_loop().remove_reader(self._watched)
            os.close(self._watched)
            self._watched = None
        self._transport = None
        self._state = STARTING
        for future in self._pending.values():
            if not future.result.done():
                future.result.set_exception(
                    Unavailable(
                        "the engine ended while it worked on this image; try again",
                        blamed="process",
                    )
                )
        self._pending.clear()
        self._ended.set()

    def _watch(self, process: int | None) -> None:
        """End the connection when the other process ends. The connection does not end by itself if
        that process has forked another one, which keeps it open."""
        if self._watched is not None or process is None or not hasattr(os, "pidfd_open"):
            return
        try:
            self._watched = os.pidfd_open(process)
        except OSError:  # it has ended already, or the system does not allow it
            return
        transport = self._transport
        assert transport
        asyncio.get_running_loop().add_reader(self._watched, transport.abort)

    def _receive(self, payload: memoryview) -> None:
        for message in codec().read(payload):
            self._take(message)

    def _take(self, message: Any) -> None:
        if isinstance(message, State):
            self._watch(message.process)
            self._state = message
            self._known = list(message.models)
            self._told.set()
            return
        if isinstance(message, Shared):
            self._is_read = True
            return
        if isinstance(message, Returned | Raised) and self._memory:
            for begin in self._placed.pop(message.number, ()):
                self._memory.free(begin)
        pending = self._pending.get(message.number)
        if pending is None or pending.result.done():
            return
        if isinstance(message, Progressed) and pending.listener:
            pending.listener(message.progress)
        elif isinstance(message, Returned):
            pending.result.set_result(message.value)
        elif isinstance(message, Raised):
            pending.result.set_exception(message.problem)

    async def _until_loaded(self) -> None:
        while not self._state.loaded:
            self._told.clear()
            await self._told.wait()


class RemoteModel:
    """One model of another process: see `ModelBackend`."""

    def __init__(self, backend: RemoteBackend, name: str, state: ModelSnapshot) -> None:
        assert state.info
        self._backend = backend
        self._name = name
        self._fast = state.fast
        self.model: ModelInfo = state.info
        self.devices = state.devices
        self.copies = state.copies
        self.runtime: RuntimeName = state.runtime
        self.fidelities = state.fidelities
        self.images_a_second = state.images_a_second

    def is_fast(self, method: str) -> bool:
        return method in self._fast

    @property
    def alive(self) -> bool:
        return self._backend.model_ready(self._name)

    async def ask(self, work: Work[Value], *, progress: Listener | None = None) -> Outcome[Value]:
        """Do a piece of work: see `ModelBackend.ask`."""
        fingerprint = self.model.fingerprint
        outcome = await self._backend.call(self._name, work, fingerprint, listener=progress)
        return cast(Outcome[Value], outcome)
