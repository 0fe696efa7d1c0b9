"""Thumbnails of a batch's pictures, embedded in the report as data URIs."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

from PIL import Image

from service.core.errors import Problem
from service.insights.page import data_uri
from service.pipeline.images import EncodedPhoto

THUMBNAIL: Final = 192
"""Length of a thumbnail's longer side in pixels: sharp when shown at 160 pixels, and good enough at
twice that."""
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
