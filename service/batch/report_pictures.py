"""Pictures as text within a page: thumbnails, mean maps, the colour bar."""

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
"""Pixels of a thumbnail's longer side: sharp at 160 and good enough at twice that."""
MAP: Final = 128
"""Likewise of a map alone."""
QUALITY: Final = 75
MOST_PIXELS: Final = 1_000_000_000
"""The overlays are our own: as large as photos are allowed to be."""
THREADS: Final = min(os.cpu_count() or 1, 8)
UNDER_WAY: Final = 4 * THREADS

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Shown:
    """A picture of a batch, as the page shows it."""

    thumbnail: str | None = None
    """A data URI, or None where the file is no picture."""
    link: str | None = None
    """From the page to the file, or None where there is none."""


def show(picture: str | None, output: Path, page: Path) -> Shown:
    """
    Args:
        picture: path below `output`. One that leads out of it is not looked at.
        page: the file that will link to it.
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
    except (OSError, ValueError):  # not ours to read; a name with a zero in it
        return Shown()
    reduced.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
    return Shown(data_uri(reduced), link)


def _link(file: Path, page: Path) -> str:
    """A relative address, no character of which means anything but itself."""
    try:
        relative = os.path.relpath(file, page.resolve().parent)
    except ValueError:  # on another drive
        return file.as_uri()
    return quote(os.fsencode(relative.replace(os.sep, "/")))


def draw_map(values: Float) -> str:
    """A map (h, w), 0 … 1, in colours, as a data URI. The colours are those of the numbers
    themselves, so that mean maps can be compared."""
    height, width = values.shape
    scale = MAP / max(height, width)
    large = resize(values, max(round(height * scale), 1), max(round(width * scale), 1))
    return data_uri(_picture(colorize(large)))


def draw_bar() -> str:
    """The colours from 0, left, to 1."""
    return data_uri(_picture(colorize(np.linspace(0, 1, 256, dtype=np.float32)[None].repeat(8, 0))))


def _picture(pixels: Picture) -> Image.Image:
    return Image.fromarray(pixels)


def data_uri(picture: Image.Image) -> str:
    written = BytesIO()
    picture.save(written, "WEBP", quality=QUALITY, method=2)
    return "data:image/webp;base64," + base64.b64encode(written.getvalue()).decode()


def in_order(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """`work` of each item, in their order, some at a time in threads; no more are taken from
    `items` than those that wait for their turn."""
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(THREADS, thread_name_prefix="thumbnail") as threads:
        for item in items:
            waiting.append(threads.submit(work, item))
            if len(waiting) >= UNDER_WAY:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
