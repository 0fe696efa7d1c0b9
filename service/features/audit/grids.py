"""Grids of photos, which tell whether a map lies on the photo that shows the class.

Böhle et al., "Convolutional Dynamic Alignment Networks", CVPR 2021, and Rao et al., "Towards Better
Understanding Attribution Methods", CVPR 2022 (the grid pointing game): n × n photos of different
classes, which the model is sure of, make one image. A map of one of the classes should have its
heat in the cell of that class. If there are fewer classes, the other cells repeat them. The
explained class is in one cell only, and its share of the heat depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from cachetools import LRUCache

from cam.drawing.placement import Float, resize
from service.backend.interface import ModelBackend
from service.backend.work import Explain, Pixels
from service.core.errors import PASSING, ModelFailed, Problem, Unexplainable, UnknownModel
from service.models.preprocessing import ModelInput

SURE: Final = 0.5
"""Least probability of a class at which the model counts as sure."""
KEPT: Final = 256
"""Largest number of photos that are kept in memory to stand in grids. Of the others only the class
is kept, and they are read again."""
MENDABLE: Final = (*PASSING, ModelFailed, UnknownModel)
"""Problems that the photo does not cause, so they say nothing about it."""


@dataclass(frozen=True, eq=False)
class PhotoGrid:
    """An image of n × n photos."""

    pixels: Pixels
    row: int
    column: int
    """Row and column of the photo whose class is explained."""
    side: int
    """The number n."""
    other: int
    """Class of another cell."""
    without: Pixels
    """The same image with that cell's photo in place of the photo whose class is explained."""


class Neighbours:
    """Finds photos for grids.

    Args:
        total: number of photos of the audit.
        read: returns what the model sees of a photo, by its number; raises a Problem if it cannot.
        seed: seed of the choice: a photo's neighbours depend on its number and the seed alone.
    """

    def __init__(
        self,
        total: int,
        read: Callable[[int], Awaitable[ModelInput]],
        seed: int = 0,
    ) -> None:
        self._total = total
        self._read = read
        self._seed = seed
        self._known: dict[int, int | None] = {}
        """Photo → its predicted class; None if the model is not sure of it, or it cannot be
        read."""
        self._pixels: LRUCache[int, Pixels] = LRUCache(KEPT)
        self.enlarged: bool | None = None
        """Whether the model takes images that are larger than its input, so that grids are; None
        until the first grid. If not, grids are reduced to its input."""

    async def grid(
        self, replicas: ModelBackend, number: int, pixels: Pixels, predicted: int, side: int
    ) -> PhotoGrid | None:
        """Return a grid with this photo and photos of other classes, all different if there are
        enough classes. Return None if the model is sure of too few photos of other classes.

        Args:
            number: number of the photo.
            pixels: what the model sees of the photo, RGB (H, W, 3).
        """
        rng = np.random.default_rng([self._seed, number, side])
        self._known[number], self._pixels[number] = predicted, pixels
        classes, cells, left = [predicted], [pixels], []
        for other in map(int, rng.permutation(self._total)):
            if len(cells) == side * side:
                break
            class_ = await self._class(replicas, other)
            if class_ is None or class_ == predicted:
                continue
            if class_ in classes:
                left.append((other, class_))
            elif (seen := await self._seen(other)) is not None:
                classes.append(class_)
                cells.append(seen)
        for other, class_ in left:
            if len(cells) == side * side:
                break
            if (seen := await self._seen(other)) is not None:
                classes.append(class_)
                cells.append(seen)
        if len(cells) < side * side:
            return None
        place = int(rng.integers(side * side))
        enlarges = await self._enlarges(replicas, pixels)
        images = []
        for own in cells[:2]:
            laid = [own, *cells[1:]]
            laid[0], laid[place] = laid[place], laid[0]
            rows = [np.concatenate(laid[row * side : (row + 1) * side], 1) for row in range(side)]
            whole = np.concatenate(rows)
            if not enlarges:
                height, width = pixels.shape[:2]
                reduced = cv2.resize(whole, (width, height), interpolation=cv2.INTER_AREA)
                whole = reduced.astype(np.uint8, copy=False)
            images.append(whole)
        return PhotoGrid(images[0], place // side, place % side, side, classes[1], images[1])

    async def _enlarges(self, replicas: ModelBackend, pixels: Pixels) -> bool:
        if self.enlarged is None:
            try:
                large = ModelInput.of(np.tile(pixels, (2, 2, 1)))
                await replicas.ask(Explain(large, priority="background"))
                self.enlarged = True
            except Unexplainable:  # the model refuses the size
                self.enlarged = False
        return self.enlarged

    async def _class(self, replicas: ModelBackend, number: int) -> int | None:
        """Return the predicted class of a photo; None if the model is not sure of it.

        Raises:
            Problem: if another try may succeed.
        """
        if number not in self._known:
            seen = await self._seen(number)
            if seen is None:
                return None
            try:
                work = Explain(ModelInput.of(seen), priority="background")
                outcome = await replicas.ask(work)
            except MENDABLE:
                raise
            except Problem:  # the photo's own record says why
                self._known[number] = None
                return None
            likely = outcome.value.prediction.probabilities
            assert likely is not None  # only classifiers are audited
            sure = bool(likely.max() >= SURE)
            self._known[number] = int(likely.argmax()) if sure else None
        return self._known[number]

    async def _seen(self, number: int) -> Pixels | None:
        """Return what the model sees of a photo; None if it cannot be read.

        Raises:
            Problem: if another try may succeed.
        """
        if number not in self._pixels:
            try:
                self._pixels[number] = (await self._read(number)).pixels
            except MENDABLE:
                raise
            except Problem:
                self._known[number] = None
                return None
        return self._pixels[number]


def share_inside(values: Float, grid: PhotoGrid) -> float:
    """Return the share of a map's heat above 0 that lies in the cell of the photo, 0 … 1.

    Args:
        values: the map of the grid, float32 (h, w), of any size.

    Returns:
        The share at the size of the grid; 0 if there is no heat above 0, as in Böhle et al.
    """
    height, width = grid.pixels.shape[:2]
    heat = resize(values, height, width).clip(min=0).astype(np.float64)
    total = float(heat.sum())
    if not total:
        return 0.0
    high, wide = height / grid.side, width / grid.side
    top, bottom = round(grid.row * high), round((grid.row + 1) * high)
    left, right = round(grid.column * wide), round((grid.column + 1) * wide)
    return float(heat[top:bottom, left:right].sum()) / total
