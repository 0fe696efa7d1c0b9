"""Frames: messages on a stream, each a length and then that many bytes.

A message is pickled, because pickle keeps NumPy arrays and the classes of `cam` as they are. Only
the classes of `service.rpc.messages` and those that messages consist of can be read, so bytes from
another process cannot name a function to call. The bytes of large arrays stand behind the pickle
(PEP 574): they are neither copied to write a frame nor to read it. Or they lie in memory that both
processes share, and the frame tells where.
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
PARTS: Final = struct.Struct("!I")
"""Number of the parts of a payload: the pickle and arrays. The `PART` of each follows."""
PART: Final = struct.Struct("!QQ")
"""Number of bytes of a part, and where it begins in the shared memory."""
BEHIND: Final = (1 << 64) - 1
"""Stands for a part that follows in the payload itself."""
ALIGNED: Final = 64
"""Each part begins at a multiple of so many bytes of the payload."""
APART_BYTES: Final = 1 << 14
"""An array of at least so many bytes is a part of its own."""
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
        self.classes: Final = known
        """What a message may name, by module and name."""

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

    def write(
        self, message: object, put: Callable[[memoryview], int | None] = lambda array: None
    ) -> list[bytes | memoryview]:
        """Return the pieces of a message's frame, for a transport's `writelines`. Those of arrays
        are the arrays' own memory.

        Args:
            put: writes an array into shared memory and returns where it begins there, or None if
                it should be part of the frame.
        """
        arrays: list[memoryview] = []

        def within(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < APART_BYTES:
                return True
            arrays.append(raw)
            return False

        written = BytesIO()
        pickler = pickle.Pickler(written, protocol=5, buffer_callback=within)
        pickler.dispatch_table = self._reductions
        pickler.dump(message)
        parts = [(written.getbuffer(), BEHIND)]
        for array in arrays:
            begin = put(array)
            parts.append((array, BEHIND if begin is None else begin))
        table = b"".join(PART.pack(part.nbytes, begin) for part, begin in parts)
        head = PARTS.pack(len(parts)) + table
        pieces: list[bytes | memoryview] = [head]
        end = len(head)
        for part, begin in parts:
            if begin == BEHIND:
                pieces += [bytes(-end % ALIGNED), part]
                end += -end % ALIGNED + part.nbytes
        return [LENGTH.pack(end), *pieces]

    def read(
        self,
        payload: bytes | bytearray | memoryview,
        shared: Callable[[int, int], bytearray] | None = None,
    ) -> Any:
        """Return the message of a frame's payload. Its arrays are views of the payload, or copies
        of what lies in shared memory.

        Args:
            shared: returns a copy of so many bytes that begin at a place of the shared memory; None
                if there is no such memory.

        Raises:
            UnpicklingError: if the payload is not a message.
        """
        pickled, *arrays = _parts(memoryview(payload), shared)
        return self._unpickler(BytesIO(pickled), buffers=arrays).load()


def _parts(
    payload: memoryview, shared: Callable[[int, int], bytearray] | None
) -> list[memoryview | bytearray]:
    try:
        (count,) = PARTS.unpack_from(payload)
        table = struct.unpack_from(f"!{2 * count}Q", payload, PARTS.size)
    except struct.error:
        raise pickle.UnpicklingError("the payload ends before its parts") from None
    end = PARTS.size + count * PART.size
    parts: list[memoryview | bytearray] = []
    for length, begin in zip(table[::2], table[1::2], strict=True):
        if begin == BEHIND:
            start = end + -end % ALIGNED
            end = start + length
            parts.append(payload[start:end])
        elif shared is None:
            raise pickle.UnpicklingError("a part lies in shared memory, and there is none")
        else:
            parts.append(shared(begin, length))
    if not parts or end != len(payload):
        raise pickle.UnpicklingError("the payload is not as long as its parts")
    return parts


class FrameProtocol(asyncio.BufferedProtocol):
    """Receives frames, and passes on the payload of each. The bytes are received directly into the
    payload's buffer. What is sent in one turn of the event loop, such as the answers of a batch, is
    written at once.

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
        self._unsent: list[bytes | memoryview] = []
        self._begin(LENGTH.size, head=True)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is of another class
        self._opened(self._transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost()

    def send(self, pieces: list[bytes | memoryview]) -> None:
        """Send a frame, unless the connection has ended."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self.flush)
        self._unsent += pieces

    def flush(self) -> None:
        """Write what was sent."""
        unsent, self._unsent = self._unsent, []
        if unsent and not self._transport.is_closing():
            self._transport.writelines(unsent)

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
