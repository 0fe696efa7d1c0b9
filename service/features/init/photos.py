"""Photos of a folder whose subfolders are classes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from PIL import Image

from cam.counts import counted
from service.core.errors import ConfigError, Problem
from service.features.batch.inputs import Inputs, open_inputs
from service.pipeline.images import decode

MOST: Final = 96
"""Largest number of photos that are looked at."""


@dataclass(frozen=True, eq=False)
class Photos:
    """Photos in RGB, in turn of each class."""

    images: Sequence[Image.Image]
    truth: Sequence[int]
    """Class of each photo, as an index of `classes`; 0 for all if there are no classes."""
    classes: tuple[str, ...]
    """Names of the subfolders, sorted, as torchvision's `ImageFolder` numbers them; none if photos
    lie beside the subfolders, or if there is one subfolder only."""
    side: int | None
    """The side of photos that all are squares of one size, in pixels."""

    def first(self, count: int) -> Photos:
        return Photos(self.images[:count], self.truth[:count], self.classes, self.side)


def read_photos(folder: str, max_pixels: int) -> Photos:
    """Read at most `MOST` photos, as many of each class as of the others.

    Args:
        folder: what `gradcam batch` takes: a folder, a pattern, a zip.

    Raises:
        ConfigError: if there are no photos, or none can be decoded.
    """
    with open_inputs(folder) as inputs:
        classes = _classes(inputs)
        images, truth = [], []
        for name, index in _in_turn(inputs, classes):
            try:
                images.append(decode(inputs.read(name), max_pixels=max_pixels))
            except Problem:
                continue  # a folder of photos often has a broken one
            truth.append(index)
            if len(images) == MOST:
                break
    if not images:
        raise ConfigError(
            f"{folder} has {counted(len(inputs.ids), 'photo')}, and none can be decoded"
        )
    (width, height), *other_sizes = {image.size for image in images}
    side = width if width == height and not other_sizes else None
    return Photos(images, truth, classes, side)


def _classes(inputs: Inputs) -> tuple[str, ...]:
    folders = inputs.folders
    names = tuple(sorted({*folders.values()}))
    return names if len(names) > 1 and len(folders) == len(inputs.ids) else ()


def _in_turn(inputs: Inputs, classes: tuple[str, ...]) -> list[tuple[str, int]]:
    """Return ids with the index of their class: the first of each class, then the second …"""
    folders, index = inputs.folders, {name: number for number, name in enumerate(classes)}
    found: dict[int, list[str]] = defaultdict(list)
    for name in inputs.ids:
        found[index.get(folders.get(name, ""), 0)].append(name)
    return [
        (names[turn], number)
        for turn in range(max(map(len, found.values())))
        for number, names in sorted(found.items())
        if turn < len(names)
    ]
