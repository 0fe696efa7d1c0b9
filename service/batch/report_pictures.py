"""Pictures embedded in the report as data URIs: thumbnails, mean maps and the colour bar."""

from __future__ import annotations

import base64
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

import numpy as np
from PIL import Image

from cam.drawing.heatmap import resize
from cam.drawing.overlay import Float, Picture, colorize
from service.core.errors import Problem
from service.pipeline.images import EncodedPhoto

THUMBNAIL: Final = 192
"""Length of a thumbnail's longer side in pixels: sharp when shown at 160 pixels, and good enough at
twice that."""
MAP: Final = 128
"""Length of the longer side of a map without its photo, in pixels."""
QUALITY: Final = 75
MOST_PIXELS: Final = 1_000_000_000
"""Largest number of pixels of an overlay, which the batch drew itself in the size of a photo."""
THREADS: Final = min(os.cpu_count() or 1, 8)
UNDER_WAY: Final = 4 * THREADS

Item = TypeVar("Item")
Result = TypeVar("Result")


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


def draw_map(values: Float) -> str:
    """Draw a map (h, w), 0 … 1, in colours and return a data URI. The values are not rescaled, so
    that mean maps can be compared."""
    height, width = values.shape
    scale = MAP / max(height, width)
    large = resize(values, max(round(height * scale), 1), max(round(width * scale), 1))
    return data_uri(_picture(colorize(large)))


def draw_bar() -> str:
    """Draw the colours from 0 (left) to 1 (right) and return a data URI."""
    return data_uri(_picture(colorize(np.linspace(0, 1, 256, dtype=np.float32)[None].repeat(8, 0))))


def _picture(pixels: Picture) -> Image.Image:
    return Image.fromarray(pixels)


def data_uri(picture: Image.Image) -> str:
    written = BytesIO()
    picture.save(written, "WEBP", quality=QUALITY, method=2)
    return "data:image/webp;base64," + base64.b64encode(written.getvalue()).decode()


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
