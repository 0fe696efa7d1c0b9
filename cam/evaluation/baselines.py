"""Maps that know nothing of the model. A map that scores no better than these says nothing."""

from __future__ import annotations

from typing import Final

import cv2
import numpy as np

from cam.evaluation.metrics import Baseline
from cam.explanation import Map

SPREAD: Final = 0.25
"""σ of the centred Gaussian, as a share of the height and of the width."""
MOST_CELLS: Final = 14
"""Greatest number of rows and of columns of a random map, so that it is smooth like a map at a
layer, and not like the uniform map with its pixels in random order."""


def baseline(name: Baseline, image: Map, shape: tuple[int, int], rng: np.random.Generator) -> Map:
    """Return a map that does not look at the model.

    `random` has a uniform random number at each position; `gaussian` is a Gaussian around the
    centre, because objects are mostly in the middle of a photo; `edges` is the magnitude of the
    Sobel gradient of the image's brightness (an edge detector looks like an explanation: Adebayo et
    al., "Sanity Checks for Saliency Maps", NeurIPS 2018); `uniform` is the same everywhere.

    Args:
        image: float32 (C, H, W), preprocessed.
        shape: height and width of the map that is compared.

    Returns:
        float32: `random` (h, w), at most `MOST_CELLS` each; the others (H, W).
    """
    height, width = image.shape[-2:]
    if name == "random":
        rows, columns = (min(length, MOST_CELLS) for length in shape)
        drawn: Map = rng.random((rows, columns), dtype=np.float32)
        return drawn
    if name == "uniform":
        return np.ones((height, width), np.float32)
    if name == "gaussian":
        y, x = (((np.arange(size) + 0.5) / size - 0.5) / SPREAD for size in (height, width))
        around: Map = np.exp(-(y[:, None] ** 2 + x[None] ** 2) / 2).astype(np.float32)
        return around
    bright = np.ascontiguousarray(image.mean(0, dtype=np.float32))
    down, along = cv2.Sobel(bright, cv2.CV_32F, 0, 1), cv2.Sobel(bright, cv2.CV_32F, 1, 0)
    edges: Map = np.hypot(down, along).astype(np.float32)
    return edges
