"""Calls of gRPC frame by frame: callers who stop in the middle, which no library does."""

from __future__ import annotations

import asyncio
import time
from asyncio import IncompleteReadError, StreamReader, StreamWriter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

SERVICE: Final = "inference.GRPCInferenceService"
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW: Final = 4
"""Setting of how many bytes of a call's answer may be sent before some were read."""


class Connection:
    """A connection whose calls are begun, and go on as far as the caller wants."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._next = 1
        self._begun: dict[int, float] = {}
        self.lives: list[float] = []
        """Seconds from the beginning of each call that has ended to its end."""

    def begin(self, call: str, metadata: Mapping[str, str]) -> int:
        """Begin a call, whose message is not sent yet, and return its number."""
        stream, self._next = self._next, self._next + 2
        head = {
            ":method": "POST",
            ":scheme": "http",
            ":path": f"/{SERVICE}/{call}",
            ":authority": "localhost",
            "content-type": "application/grpc",
            "te": "trailers",
            **metadata,
        }
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in head.items())
        self._send(HEADERS, END_HEADERS, stream, block)
        self._begun[stream] = time.monotonic()
        return stream

    def send(self, stream: int, data: bytes, *, ends: bool = False) -> None:
        """Send bytes of a call's message, or what stands before it: a zero and its length."""
        if stream in self._begun and not self._writer.is_closing():
            self._send(DATA, END_STREAM * ends, stream, data)

    @property
    def open(self) -> int:
        """Number of calls that have not ended."""
        return len(self._begun)

    async def until_ended(self) -> None:
        """Return when all calls have ended, with their connection or by themselves."""
        with suppress(OSError, IncompleteReadError):
            while self._begun:
                head = await self._reader.readexactly(9)
                payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
                if kind in (SETTINGS, PING) and not flags & ACK:
                    self._send(kind, ACK, 0, payload if kind == PING else b"")
                elif kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
                    self._end(stream)
        for stream in list(self._begun):
            self._end(stream)

    def _end(self, stream: int) -> None:
        if begun := self._begun.pop(stream, None):
            self.lives.append(time.monotonic() - begun)

    def _send(self, kind: int, flags: int, stream: int, payload: bytes = b"") -> None:
        head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
        self._writer.write(head + payload)


@asynccontextmanager
async def connected(port: int, *, window: int = 65_535) -> AsyncIterator[Connection]:
    """
    Args:
        window: bytes of each answer that are read.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    connection = Connection(reader, writer)
    try:
        writer.write(PREFACE)
        setting = INITIAL_WINDOW.to_bytes(2, "big") + window.to_bytes(4, "big")
        connection._send(SETTINGS, 0, 0, setting)
        yield connection
    finally:
        writer.close()


def _text(text: str) -> bytes:
    """A text of HPACK, as it is."""
    data = text.encode()
    assert len(data) < 127
    return bytes([len(data)]) + data
