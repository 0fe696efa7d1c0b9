"""Pictures that are none, of several kinds, as they lie in real folders of photos."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from random import Random
from typing import Final


def cut(image: bytes, rng: Random) -> bytes:
    """A copy that was broken off, of which no line is whole."""
    return image[: rng.randrange(20, 200)]


def empty(image: bytes, rng: Random) -> bytes:
    return b""


def text(image: bytes, rng: Random) -> bytes:
    """An error page that was saved as a picture."""
    return b"<!DOCTYPE html><title>404</title><p>" + rng.randbytes(8).hex().encode()


def noise(image: bytes, rng: Random) -> bytes:
    return b"\x01" + rng.randbytes(len(image))


def zeroes(image: bytes, rng: Random) -> bytes:
    """Blocks of a disk that were never written."""
    return bytes(len(image))


def huge(image: bytes, rng: Random) -> bytes:
    """A PNG that says it has 40,000 × 40,000 pixels."""
    head = struct.pack(">IIBBBBB", 40_000, 40_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", b"") + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


KINDS: Final[dict[str, Callable[[bytes, Random], bytes]]] = {
    each.__name__: each for each in (cut, empty, text, noise, zeroes, huge)
}


def spoil(image: bytes, turn: int) -> tuple[str, bytes]:
    """One kind after the other: which, and what has become of the image."""
    kind = list(KINDS)[turn % len(KINDS)]
    return kind, KINDS[kind](image, Random(turn))
