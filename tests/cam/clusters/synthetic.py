"""Maps of objects at random places, made without a model."""

from __future__ import annotations

import numpy as np

from cam.drawing.heatmap import Float, minmax


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
