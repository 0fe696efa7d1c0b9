"""Maps of objects at random places, and what a model used for them, made without a model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cam.drawing.heatmap import minmax
from cam.drawing.placement import Float

Photo = NDArray[np.uint8]


def blobs(count: int, seed: int, grid: int = 14, most: int = 3) -> list[Float]:
    """Return maps with one to `most` Gaussian blobs at random places, each float32 (grid, grid),
    0 … 1."""
    random = np.random.default_rng(seed)
    y, x = np.indices((grid, grid))
    found = []
    for _ in range(count):
        values = np.zeros((grid, grid))
        for _ in range(int(random.integers(1, most + 1))):
            row, column = random.uniform(0, grid - 1, 2)
            sigma, peak = random.uniform(0.08, 0.25) * grid, random.uniform(0.4, 1)
            values += peak * np.exp(-((y - row) ** 2 + (x - column) ** 2) / (2 * sigma**2))
        values += random.normal(0, 0.02, values.shape)
        found.append(minmax(values.astype(np.float32)))
    return found


def marked(count: int = 120, first: int = 20) -> tuple[list[Float], list[Photo], list[Float]]:
    """Return maps with heat anywhere, random photos, and uses: of all maps channels 0 to 2, of the
    first maps channels 3 and 4, too."""
    random = np.random.default_rng(0)
    maps = blobs(count, 0, 8, 1)
    photos = list(random.integers(0, 256, (count, 16, 16, 3), dtype=np.uint8))
    used = np.zeros((count, 5), np.float32)
    used[:first, 3:] = random.uniform(1, 2, (first, 2))
    used[:, :3] = random.uniform(1, 2, (count, 3))
    return maps, photos, list(used + random.uniform(0, 0.1, used.shape).astype(np.float32))
