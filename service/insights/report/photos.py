"""Thumbnails of the photos that a batch explained, read from its source when they are needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, Protocol, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cam.drawing.heatmap import Box
from service.core.errors import Problem
from service.insights.report.pictures import MOST_PIXELS
from service.pipeline.images import EncodedPhoto

SIDE: Final = 32
"""Height and width of a thumbnail in pixels: enough to compare what lies under the heat."""

Photo = NDArray[np.uint8]
"""RGB, (height, width, 3)."""
Read = Callable[[str], bytes]
"""Returns the bytes of the image with an id."""


class PhotoSource(Protocol):
    """The images of a batch."""

    @property
    def read(self) -> Read: ...


class Photos(Sequence[Photo | None]):
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
