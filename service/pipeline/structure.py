"""Checks of an image file's structure, which refuse files that would occupy a decoder for minutes.

A limit on pixels does not catch such files: a thousand progressive scans over the same pixels, a
million empty chunks or strips, a tile a thousand times as large as its picture.
"""

from __future__ import annotations

import re
import struct
from typing import Final

import numpy as np

from cam.counts import counted
from service.core.errors import ImageTooLarge, UndecodableImage

MAX_SCANS: Final = 100
MAX_SEGMENTS: Final = 2_000
MAX_CHUNKS: Final = 10_000
MAX_ENTRIES: Final = 1_000
MAX_VALUES: Final = 65_536
"""Maximum number of values of a TIFF tag of numbers: strips, tiles, colours."""
PNG: Final = b"\x89PNG\r\n\x1a\n"
BARE: Final = frozenset((0x01, 0xC8, *range(0xD0, 0xDA), *range(0xF0, 0xFE)))
"""Markers of a JPEG that have no length field."""
IN_SCANS: Final = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
"""Pattern of a marker after compressed data, in which 0xFF is followed by 0x00 or a restart."""
WIDTH, LENGTH, SAMPLES, ROWS, PLANAR, TILE_WIDTH, TILE_LENGTH = 256, 257, 277, 278, 284, 322, 323
LAYOUT: Final = {
    WIDTH: 0,
    LENGTH: 0,
    SAMPLES: 1,
    ROWS: 2**32,
    PLANAR: 1,
    TILE_WIDTH: 0,
    TILE_LENGTH: 0,
}
"""TIFF tags that describe the layout of the pixels, with their defaults."""
OFFSETS: Final = (273, 324)
BYTE_COUNTS: Final = (279, 325)
"""Tags of the byte counts, like `OFFSETS` first of strips and then of tiles."""
WIDE: Final = {5: 8, 10: 8, 11: 4, 12: 8}
NUMBERS: Final = {
    1: "u1", 3: "u2", 4: "u4", 6: "i1", 8: "i2", 9: "i4", 13: "u4", 16: "u8", 17: "i8", 18: "u8",
}  # fmt: skip


def check_structure(data: bytes, *, max_pixels: int) -> None:
    """Check the structure of a JPEG, PNG or TIFF file; other files pass.

    Raises:
        UndecodableImage, ImageTooLarge: naming what the file has too many of.
    """
    if data.startswith(b"\xff\xd8"):
        _check_jpeg(data)
    elif data.startswith(PNG):
        _check_png(data)
    elif data[:4] in (b"II*\0", b"MM\0*"):
        _check_tiff(data, max_pixels, large=False)
    elif data[:4] in (b"II+\0", b"MM\0+"):
        _check_tiff(data, max_pixels, large=True)
        if data[:4] == b"MM\0+":  # Pillow reads it as a classic TIFF
            _check_tiff(data, max_pixels, large=False)
    elif data[:2] in (b"II", b"MM"):
        raise UndecodableImage("the file begins like a TIFF, but its version is neither 42 nor 43")


def _too_many(count: int, of: str, most: int) -> UndecodableImage:
    return UndecodableImage(f"the image has {count} {of}; at most {most} are allowed")


def _check_jpeg(data: bytes) -> None:
    """Count segments and scans up to the end of the image, and skip what decoders skip."""
    place, segments, scans = 2, 0, 0
    while True:
        if scans:
            match = IN_SCANS.search(data, place)
            place = match.start() if match else -1
        else:
            place = data.find(b"\xff", place)
        if place < 0 or place + 1 >= len(data):
            return
        marker = data[place + 1]
        if marker == 0xD9 and scans:
            return
        segments += marker != 0xDA
        scans += marker == 0xDA
        if segments > MAX_SEGMENTS:
            raise _too_many(segments, "segments and more", MAX_SEGMENTS)
        if scans > MAX_SCANS:
            raise _too_many(scans, "scans and more", MAX_SCANS)
        if marker == 0xFF:  # a fill byte
            place += 1
        elif marker == 0 or marker in BARE:
            place += 2
        else:
            place += 2 + max(int.from_bytes(data[place + 2 : place + 4], "big"), 2)


def _check_png(data: bytes) -> None:
    place, chunks = len(PNG), 0
    while place < len(data):
        chunks += 1
        if chunks > MAX_CHUNKS:
            raise _too_many(chunks, "chunks and more", MAX_CHUNKS)
        if data[place + 4 : place + 8] == b"IEND":
            return
        place += 12 + int.from_bytes(data[place : place + 4], "big")


def _check_tiff(data: bytes, max_pixels: int, *, large: bool) -> None:
    """Check the first picture of a TIFF, the only one that is decoded."""
    order = "<" if data.startswith(b"II") else ">"
    entry = struct.Struct(order + ("HHQ8s" if large else "HHI4s"))
    word = order + ("Q" if large else "I")
    try:
        (first,) = struct.unpack_from(word, data, 8 if large else 4)
        (count,) = struct.unpack_from(order + ("Q" if large else "H"), data, min(first, len(data)))
    except struct.error:
        return  # the file is truncated; the decoder reports it better
    if count > MAX_ENTRIES:
        raise _too_many(count, "entries", MAX_ENTRIES)
    start = first + (8 if large else 2)
    layout: dict[int, int] = {}
    elsewhere, parts, lengths = 0, 0, None
    for turn in range(count):
        try:
            tag, kind, values, value = entry.unpack_from(data, start + turn * entry.size)
        except struct.error:
            return
        size = np.dtype(NUMBERS[kind]).itemsize if kind in NUMBERS else WIDE.get(kind, 1)
        if (size > 1 or tag in OFFSETS) and values > MAX_VALUES:
            raise _too_many(values, f"values of tag {tag}", MAX_VALUES)
        if values * size > len(value):
            elsewhere += values * size
            (place,) = struct.unpack(word, value)
            value = data[place : place + values * size]
        if elsewhere > 2 * len(data):
            raise UndecodableImage("the image's tags lie over each other")
        numbers = np.zeros(0)
        if kind in NUMBERS:
            numbers = np.frombuffer(value[: len(value) // size * size], order + NUMBERS[kind], -1)
        if tag in LAYOUT and tag not in layout:  # decoders use the first of equal tags
            layout[tag] = int(numbers[0]) if numbers.size else 0
            if layout[tag] <= 0:
                raise UndecodableImage(f"the image has a tag {tag} of no number above 0")
        parts = max(parts, values if tag in OFFSETS else 0)
        if tag in BYTE_COUNTS:
            lengths = numbers
            if numbers.sum(dtype=np.float64) > 2 * len(data):
                raise UndecodableImage("the image's strips lie over each other")
    if parts > 1 and lengths is None:
        raise UndecodableImage(f"the image has {parts} strips or tiles of unknown lengths")
    _check_layout(LAYOUT | layout, parts, max_pixels)


def _check_layout(layout: dict[int, int], parts: int, max_pixels: int) -> None:
    tile = (layout[TILE_WIDTH], layout[TILE_LENGTH])
    if tile[0] * tile[1] > max_pixels:
        raise ImageTooLarge(
            f"the image has tiles of {tile[0]} × {tile[1]} pixels; "
            f"at most {counted(max_pixels / 1e6, 'megapixel is', 'megapixels are', 'g')} allowed"
        )
    across = -(-layout[WIDTH] // tile[0]) if tile[0] else 1
    down = -(-layout[LENGTH] // (tile[1] or max(layout[ROWS], 1)))
    needed = max(across * down, 1) * (layout[SAMPLES] if layout[PLANAR] == 2 else 1)
    if parts > needed:
        raise UndecodableImage(
            f"the image has {parts} strips or tiles where {counted(needed, 'is', 'are')} enough"
        )
