"""Files that a decoder would work on for minutes, told by their structure before one is asked.

A limit on pixels does not catch them: a thousand progressive scans over the same pixels, a million
empty chunks or strips, a tile a thousand times as large as its picture.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from service.errors import ImageTooLarge, UndecodableImage

MAX_SCANS: Final = 100
MAX_SEGMENTS: Final = 2_000
MAX_CHUNKS: Final = 10_000
MAX_ENTRIES: Final = 1_000
MAX_VALUES: Final = 65_536
"""Of a TIFF tag of numbers: strips, tiles, colours."""
PNG: Final = b"\x89PNG\r\n\x1a\n"
TILE_WIDTH, TILE_LENGTH = 322, 323
OFFSETS: Final = (273, 324)
BYTE_COUNTS: Final = (279, 325)
"""Of strips, of tiles."""
SIZES: Final = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 16: 8}
"""Bytes of a TIFF's types."""
NUMBERS: Final = {3: "u2", 4: "u4", 16: "u8"}


def check_structure(data: bytes, *, max_pixels: int) -> None:
    """
    Raises:
        UndecodableImage, ImageTooLarge: saying what the file has too many of.
    """
    if data.startswith(b"\xff\xd8"):
        _check_jpeg(data)
    elif data.startswith(PNG):
        _check_png(data)
    elif data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        _check_tiff(data, max_pixels)


def _too_many(count: int, of: str, most: int) -> UndecodableImage:
    return UndecodableImage(f"the image has {count} {of}; at most {most} are allowed")


def _check_jpeg(data: bytes) -> None:
    # In compressed data 0xFF is followed by 0x00 or a restart, so this counts scans.
    scans = data.count(b"\xff\xda")
    if scans > MAX_SCANS:
        raise _too_many(scans, "scans", MAX_SCANS)
    place, segments = 2, 0
    while data[place : place + 1] == b"\xff" and data[place + 1 : place + 2] != b"\xda":
        segments += 1
        if segments > MAX_SEGMENTS:
            raise _too_many(segments, "segments and more", MAX_SEGMENTS)
        if data[place + 1 : place + 2] == b"\xff":  # a fill byte
            place += 1
            continue
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")


def _check_png(data: bytes) -> None:
    place, chunks = len(PNG), 0
    while place < len(data):
        chunks += 1
        if chunks > MAX_CHUNKS:
            raise _too_many(chunks, "chunks and more", MAX_CHUNKS)
        place += 12 + int.from_bytes(data[place : place + 4], "big")


def _check_tiff(data: bytes, max_pixels: int) -> None:
    """Of the first picture, which alone is decoded."""
    order = "<" if data.startswith(b"II") else ">"
    large = data[2:4] in (b"+\0", b"\0+")
    entry = struct.Struct(order + ("HHQ8s" if large else "HHI4s"))
    try:
        (first,) = struct.unpack_from(order + ("Q" if large else "I"), data, 8 if large else 4)
        (count,) = struct.unpack_from(order + ("Q" if large else "H"), data, first)
    except struct.error:
        return  # it is cut short, which the decoder tells better
    if count > MAX_ENTRIES:
        raise _too_many(count, "entries", MAX_ENTRIES)
    tile = {TILE_WIDTH: 1, TILE_LENGTH: 1}
    start = first + (8 if large else 2)
    parts, counted = 0, False
    for turn in range(count):
        try:
            tag, kind, values, value = entry.unpack_from(data, start + turn * entry.size)
        except struct.error:
            return
        size = SIZES.get(kind, 1)
        if size > 1 and values > MAX_VALUES:
            raise _too_many(values, f"values of tag {tag}", MAX_VALUES)
        if tag in tile and kind in NUMBERS and values == 1:
            tile[tag] = int(np.frombuffer(value, order + NUMBERS[kind], 1)[0])
        parts = max(parts, values if tag in OFFSETS else 0)
        counted = counted or tag in BYTE_COUNTS
        if tag in BYTE_COUNTS and kind in NUMBERS and values * size > len(value):
            (place,) = struct.unpack_from(order + ("Q" if large else "I"), value)
            counts = np.frombuffer(data[place : place + values * size], order + NUMBERS[kind])
            if int(counts.sum(dtype=np.float64)) > 2 * len(data):
                raise UndecodableImage("the image's strips lie over each other")
    if parts > 1 and not counted:
        raise UndecodableImage(f"the image has {parts} strips or tiles of unknown lengths")
    if tile[TILE_WIDTH] * tile[TILE_LENGTH] > max_pixels:
        raise ImageTooLarge(
            f"the image has tiles of {tile[TILE_WIDTH]} × {tile[TILE_LENGTH]} pixels; "
            f"at most {max_pixels / 1e6:g} megapixels are allowed"
        )
