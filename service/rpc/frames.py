"""Frames: messages on a stream, each frame a length and then that many bytes.

What is sent in one turn of the event loop, such as the answers of a batch, is one frame: it names
each class once, and is written and read at once. Messages are pickled, because pickle keeps NumPy
arrays and the classes of `cam` as they are. Only the classes of `service.rpc.messages` and those
that messages consist of can be read, so bytes from another process cannot name a function to call.
The bytes of large arrays stand behind the pickle (PEP 574): they are neither copied to write a
frame nor to read it. Or they lie in memory that both processes share, and the frame tells where.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from collections.abc import Callable, Iterable
from enum import EnumType
from functools import partial
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
FULL_BYTES: Final = 1 << 17
"""After so many bytes, some sixteen answers, the next message begins another frame: the receiver
goes on with the first answers while it receives the others."""
MOST_BYTES: Final = 1 << 32
"""A larger frame ends the connection: no message is so large."""

Put = Callable[[memoryview], int | None]
"""Writes an array into shared memory and returns where it begins there, or None if it should be
part of the frame."""


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

    def frame(self) -> Frame:
        """Return a frame without messages."""
        return Frame(self._reductions)

    def read(
        self,
        payload: bytes | bytearray | memoryview,
        shared: Callable[[int, int], bytearray] | None = None,
    ) -> list[Any]:
        """Return the messages of a frame's payload. Their arrays are views of the payload, or
        copies of what lies in shared memory.

        Args:
            shared: returns a copy of so many bytes that begin at a place of the shared memory; None
                if there is no such memory.

        Raises:
            UnpicklingError: if the payload does not consist of messages.
        """
        pickled, *arrays = _parts(memoryview(payload), shared)
        written = BytesIO(pickled)
        unpickler = self._unpickler(written, buffers=arrays)
        messages = [unpickler.load()]
        while written.tell() < len(pickled):
            messages.append(unpickler.load())
        return messages


class Frame:
    """Messages that are being written."""

    def __init__(self, reductions: dict[type, Callable[[Any], Any]]) -> None:
        self._written = BytesIO()
        self._arrays: list[tuple[memoryview, int]] = []
        """The arrays that are parts of their own, and where each begins in the shared memory."""
        self._found: list[memoryview] = []
        """The arrays of the message that is being written."""
        within = partial(_is_within, self._found.append)  # not of the frame, which it would keep
        self._pickler = pickle.Pickler(self._written, protocol=5, buffer_callback=within)
        self._pickler.dispatch_table = reductions
        self._bytes = 0
        self.full = False
        """Whether the next message belongs into another frame."""

    def add(self, message: object, put: Put = lambda array: None) -> None:
        """Write a message. If that fails, the frame is as before, and full."""
        begin = self._written.tell()
        try:
            self._pickler.dump(message)
            placed = [(array, put(array)) for array in self._found]
        except BaseException:
            self._written.truncate(begin)
            self.full = True  # the pickler refers to what it has written of this message
            raise
        finally:
            self._found.clear()
        for array, at in placed:
            self._arrays.append((array, BEHIND if at is None else at))
            self._bytes += array.nbytes if at is None else 0
        self.full = self._written.tell() + self._bytes >= FULL_BYTES

    def pieces(self) -> list[bytes | memoryview]:
        """Return the pieces of the frame, for a transport's `writelines`; none of a frame without
        messages. Those of arrays are the arrays' own memory."""
        pickled = self._written.getbuffer()
        if not pickled:
            return []
        parts = [(pickled, BEHIND), *self._arrays]
        table = b"".join(PART.pack(part.nbytes, begin) for part, begin in parts)
        head = PARTS.pack(len(parts)) + table
        pieces: list[bytes | memoryview] = [head]
        end = len(head)
        for part, begin in parts:
            if begin == BEHIND:
                pieces += [bytes(-end % ALIGNED), part]
                end += -end % ALIGNED + part.nbytes
        return [LENGTH.pack(end), *pieces]


def _is_within(apart: Callable[[memoryview], None], buffer: pickle.PickleBuffer) -> bool:
    """Return whether an array is part of the pickle; the others are given to `apart`."""
    raw = buffer.raw()
    if raw.nbytes >= APART_BYTES:
        apart(raw)
    return raw.nbytes < APART_BYTES


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
    payload's buffer. What is sent in one turn of the event loop is one frame, unless that is full.

    Args:
        codec: writes what is sent.
        received: called with each payload.
        opened: called with the transport when the connection is made.
        lost: called when the connection has ended.
    """

    def __init__(
        self,
        codec: Codec,
        received: Callable[[memoryview], None],
        *,
        opened: Callable[[asyncio.Transport], None],
        lost: Callable[[], None],
    ) -> None:
        self._codec = codec
        self._received = received
        self._opened = opened
        self._lost = lost
        self._unsent: list[Frame] = []
        self._begin(LENGTH.size, head=True)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is of another class
        self._opened(self._transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost()

    def send(self, message: object, put: Put = lambda array: None) -> None:
        """Send a message, unless the connection has ended."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self.flush)
        if not self._unsent or self._unsent[-1].full:
            self._unsent.append(self._codec.frame())
        self._unsent[-1].add(message, put)

    def flush(self) -> None:
        """Write what was sent."""
        unsent, self._unsent = self._unsent, []
        if unsent and not self._transport.is_closing():
            self._transport.writelines([piece for each in unsent for piece in each.pieces()])

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
