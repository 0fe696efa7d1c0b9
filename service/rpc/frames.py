"""Frames: messages on a stream, each a length and then that many bytes.

A message is pickled, because pickle keeps NumPy arrays and the classes of `cam` as they are. Only
the classes of `service.rpc.messages` and those that messages consist of can be read, so bytes from
another process cannot name a function to call.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from collections.abc import Callable, Iterable
from enum import EnumType
from io import BytesIO
from typing import Any, Final, cast

LENGTH: Final = struct.Struct("!Q")
MOST_BYTES: Final = 1 << 32
"""A larger frame ends the connection: no message is so large."""


class UnknownClass(pickle.UnpicklingError):
    """A frame names a class that no message consists of."""


class Codec:
    """Writes messages as frames, and reads them.

    Args:
        classes: the classes and functions that a message may name. Reading a message with any other
            name raises `UnknownClass`.
    """

    def __init__(self, classes: Iterable[Any]) -> None:
        known = {(class_.__module__, class_.__qualname__): class_ for class_ in classes}

        class Unpickler(pickle.Unpickler):
            def find_class(self, module: str, name: str) -> Any:
                try:
                    return known[module, name]
                except KeyError:
                    raise UnknownClass(f"a message names {module}.{name}") from None

        # Python 3.11.0 to 3.11.3 pickle a member of an enumeration as a call of getattr.
        self._reductions: dict[type, Callable[[Any], tuple[Any, tuple[Any, ...]]]] = {
            class_: lambda member: (type(member), (member.value,))
            for class_ in known.values()
            if isinstance(class_, EnumType)
        }
        self._unpickler = Unpickler

    def write(self, message: object) -> bytes:
        """Return the frame of a message."""
        payload = BytesIO()
        pickler = pickle.Pickler(payload, protocol=5)
        pickler.dispatch_table = self._reductions
        pickler.dump(message)
        return LENGTH.pack(payload.tell()) + payload.getbuffer()

    def read(self, payload: bytes | bytearray | memoryview) -> Any:
        """Return the message of a frame's payload.

        Raises:
            UnpicklingError: if the payload is no message.
        """
        return self._unpickler(BytesIO(payload)).load()


class FrameProtocol(asyncio.BufferedProtocol):
    """Receives frames, and passes on the payload of each. The bytes are received directly into the
    payload's buffer.

    Args:
        received: called with each payload.
        opened: called with the transport when the connection is made.
        lost: called when the connection has ended.
    """

    def __init__(
        self,
        received: Callable[[memoryview], None],
        *,
        opened: Callable[[asyncio.Transport], None],
        lost: Callable[[], None],
    ) -> None:
        self._received = received
        self._opened = opened
        self._lost = lost
        self._begin(LENGTH.size, head=True)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is of another class
        self._opened(self._transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled < len(self._buffer):
            return
        payload, head = self._buffer, self._head
        if not head:
            self._begin(LENGTH.size, head=True)
            self._received(payload)
            return
        (length,) = LENGTH.unpack(payload)
        if 0 < length <= MOST_BYTES:
            self._begin(length, head=False)
        else:
            self._transport.abort()

    def _begin(self, length: int, *, head: bool) -> None:
        self._buffer = memoryview(bytearray(length))
        self._filled = 0
        self._head = head
