"""Thumbnails of a batch's pictures and photos: of pictures as data URIs, of photos as arrays."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar, overload
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cam.drawing.placement import Box
from service.core.errors import Problem
from service.features.report.page import data_uri
from service.pipeline.images import EncodedPhoto

THUMBNAIL: Final = 192
"""Length of a thumbnail's longer side in pixels: sharp when shown at 160 pixels, and good enough at
twice that."""
SIDE: Final = 32
"""Height and width of a photo's thumbnail in pixels: enough to compare what lies under the heat."""
MOST_PIXELS: Final = 1_000_000_000
"""Largest number of pixels of an overlay, which the batch drew itself in the size of a photo."""
THREADS: Final = min(os.cpu_count() or 1, 8)
UNDER_WAY: Final = 4 * THREADS

Item = TypeVar("Item")
Result = TypeVar("Result")
Photo = NDArray[np.uint8]
"""RGB, (height, width, 3)."""
Read = Callable[[str], bytes]
"""Returns the bytes of the image with an id."""


@dataclass(frozen=True)
class Shown:
    """A picture of a batch, as the page shows it."""

    thumbnail: str | None = None
    """The thumbnail as a data URI; None if the file is not a readable picture."""
    link: str | None = None
    """Relative address of the file from the page; None if there is no file."""


def show(picture: str | None, output: Path, page: Path) -> Shown:
    """Return a picture's thumbnail and its link.

    Args:
        picture: path below `output`. A path that leads out of it is ignored.
        page: the HTML file that will contain the link.
    """
    if not picture:
        return Shown()
    try:
        file = (output / picture).resolve()
        if not file.is_relative_to(output.resolve()) or not file.is_file():
            return Shown()
        link = _link(file, page)
        data = file.read_bytes()
        reduced = EncodedPhoto(data, max_pixels=MOST_PIXELS).decode(least_side=2 * THUMBNAIL)
    except Problem:
        return Shown(link=link)
    except (OSError, ValueError):  # no permission to read it, or a NUL character in its name
        return Shown()
    reduced.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
    return Shown(data_uri(reduced), link)


def _link(file: Path, page: Path) -> str:
    """Return the percent-encoded relative address of a file from a page; a file URI if the file is
    on another drive."""
    try:
        relative = os.path.relpath(file, page.resolve().parent)
    except ValueError:  # the file is on another drive
        return file.as_uri()
    return quote(os.fsencode(relative.replace(os.sep, "/")))


def in_order(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield the result of `work` for each item, in the items' order. Threads run `work` for several
    items at a time; at most `UNDER_WAY` items are read ahead."""
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(THREADS, thread_name_prefix="thumbnail") as threads:
        for item in items:
            waiting.append(threads.submit(work, item))
            if len(waiting) >= UNDER_WAY:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class PhotoSource(Protocol):
    """The images of a batch."""

    @property
    def read(self) -> Read: ...


class CoveredPhotos(Sequence[Photo | None]):
    """The parts of photos that maps cover, uint8 (SIDE, SIDE, 3) each, read one at a time; None for
    a photo that was removed or replaced after it was explained.

    Args:
        read: returns the bytes of the image with an id. It raises a Problem if that is gone.
        ids: the id of each map's image.
        boxes: the part of the photo that each map covers; None for all of it.
    """

    def __init__(self, read: Read, ids: Sequence[str], boxes: Sequence[Box | None]) -> None:
        self._read, self._ids, self._boxes = read, ids, boxes
        self.any_read = False
        """Whether at least one photo could be read."""

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, number: int) -> Photo | None: ...
    @overload
    def __getitem__(self, number: slice) -> list[Photo | None]: ...
    def __getitem__(self, number: int | slice) -> Photo | list[Photo | None] | None:
        if isinstance(number, slice):
            return [self[index] for index in range(*number.indices(len(self)))]
        try:
            picture = thumbnail(self._read(self._ids[number]), self._boxes[number])
        except Problem:
            return None
        self.any_read = True
        return picture


def thumbnail(data: bytes, box: Box | None) -> Photo:
    """Return the part of a photo inside a box, uint8 (SIDE, SIDE, 3), black beyond the photo's
    edges.

    Args:
        data: the encoded photo.
        box: in the photo's pixels; None for the whole photo.

    Raises:
        Problem: if the photo cannot be decoded.
    """
    encoded = EncodedPhoto(data, max_pixels=MOST_PIXELS)
    pixels = encoded.pixels  # of the full size, which decoding may change
    photo = encoded.decode(least_side=4 * SIDE)
    # A large JPEG is decoded at a fraction of its size, the same on both axes.
    scale = math.sqrt(photo.width * photo.height / pixels)
    edges = (0.0, 0.0, float(photo.width), float(photo.height))
    if box is not None:
        edges = (scale * box.left, scale * box.top, scale * box.right, scale * box.bottom)
    # Averaging first: the transform reads single pixels.
    factor = max(round(min(edges[2] - edges[0], edges[3] - edges[1]) / (2 * SIDE)), 1)
    small = photo.reduce(factor)
    corrected = small.transform(
        (SIDE, SIDE),
        Image.Transform.EXTENT,
        tuple(edge / factor for edge in edges),
        Image.Resampling.BILINEAR,
    )
    return np.asarray(corrected)
