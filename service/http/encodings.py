"""Bodies that have a Content-Encoding, decoded piece by piece as they are read."""

from __future__ import annotations

import asyncio
import zlib
from typing import Final

from starlette.types import Message, Receive

from service.core.errors import MalformedRequest, UnsupportedEncoding

WINDOWS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""Name of an encoding → zlib's `wbits`, which choose the format (RFC 1952, RFC 1950)."""
PIECE: Final = 65_536
"""Maximum number of bytes that are decoded at a time."""


class Decoded:
    """A `receive` that decodes the body that another one receives.

    Args:
        encoding: the value of Content-Encoding.

    Raises:
        UnsupportedEncoding: if it is not a single supported encoding.
    """

    def __init__(self, receive: Receive, encoding: str) -> None:
        self._receive = receive
        self._encoding = encoding.lower()
        if self._encoding not in WINDOWS:
            raise UnsupportedEncoding(
                f"Content-Encoding is {encoding[:80]!r}; a body may be encoded by gzip or by "
                "deflate, or not at all"
            )
        self._decoder = zlib.decompressobj(WINDOWS[self._encoding])
        self._arrived = b""
        """Bytes that have arrived and are not decoded."""
        self._is_empty = True
        self._is_complete = False
        self._was_passed_on = False

    async def __call__(self) -> Message:
        """Return the next message: a piece of the decoded body, or what comes after the body.

        Raises:
            MalformedRequest: if the body is not encoded in that way.
        """
        while not self._was_passed_on:
            if piece := self._decode():
                await asyncio.sleep(0)  # other requests have their turn between two pieces
                return {"type": "http.request", "body": piece, "more_body": True}
            if self._is_complete:
                if not (self._decoder.eof or self._is_empty):
                    raise MalformedRequest(f"the body ends before the end of its {self._encoding}")
                self._was_passed_on = True
                return {"type": "http.request", "body": b"", "more_body": False}
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            self._arrived = message.get("body", b"")
            self._is_empty = self._is_empty and not self._arrived
            self._is_complete = not message.get("more_body", False)
        return await self._receive()

    def _decode(self) -> bytes:
        """Return the next decoded bytes, which are none if all that have arrived are decoded."""
        try:
            piece = self._decoder.decompress(self._arrived, PIECE)
        except zlib.error:
            raise MalformedRequest(
                f"the body is not {self._encoding}, which its Content-Encoding says"
            ) from None
        self._arrived = self._decoder.unconsumed_tail
        if self._decoder.unused_data:
            raise MalformedRequest(f"the body goes on behind the end of its {self._encoding}")
        return piece
