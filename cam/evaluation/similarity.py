"""How alike two maps of one image are, by the measures of the sanity checks for saliency maps.

Adebayo et al., "Sanity Checks for Saliency Maps", NeurIPS 2018, section 4: Spearman's rank
correlation with and without the sign, the structural similarity, and the correlation of histograms
of oriented gradients. Nothing here needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from cam.agreement import pearson, spearman
from cam.drawing.heatmap import minmax
from cam.drawing.placement import Float, resize

SIDE: Final = 64
"""Side in pixels to which maps are enlarged for the structural similarity and the gradients. Maps
of a layer have fewer positions, so a larger side shows nothing more."""
SIGMA: Final = 1.5
RADIUS: Final = 5
"""Standard deviation and radius of the window of the structural similarity, in pixels."""
CELL: Final = 8
"""Side of a cell of the gradients' histograms, in pixels: 1/8 of the side; 3 × 3 cells are a
block."""
ORIENTATIONS: Final = 9


@dataclass(frozen=True)
class Similarity:
    """How alike two maps are: 1 if they are the same, about 0 if they have nothing in common. All
    are None if there is only one map."""

    spearman: float | None = None
    """Rank correlation of the maps as they are, −1 … 1; None if one of them is constant."""
    absolute: float | None = None
    """Rank correlation of the maps' absolute values, −1 … 1."""
    ssim: float | None = None
    """Structural similarity of the heat above 0, −1 … 1."""
    hog: float | None = None
    """Pearson correlation of the histograms of oriented gradients, −1 … 1."""


def similarity(first: Float, second: Float) -> Similarity:
    """Return how alike two maps (h, w) are, which may have evidence against the target below 0."""
    one, other = (_enlarged(map_) for map_ in (first, second))
    flat = not one.any() or not other.any()
    return Similarity(
        spearman(first, second),
        spearman(np.abs(first), np.abs(second)),
        None if flat else ssim(one, other),
        None if flat else pearson(hog(one), hog(other)),
    )


def ssim(first: Float, second: Float) -> float:
    """Return the structural similarity of two maps (h, w), 0 … 1.

    Wang et al., IEEE Transactions on Image Processing 2004, equation 13, with its constants and a
    Gaussian window of 11 × 11 pixels, as `skimage.metrics.structural_similarity` with
    `gaussian_weights` and without `use_sample_covariance`; the mean leaves out a margin of the
    window's radius.
    """
    one, other = first.astype(np.float64), second.astype(np.float64)
    mean, other_mean = _window(one), _window(other)
    variance = _window(one * one) - mean * mean
    other_variance = _window(other * other) - other_mean * other_mean
    covariance = _window(one * other) - mean * other_mean
    c1, c2 = 0.01**2, 0.03**2
    above = (2 * mean * other_mean + c1) * (2 * covariance + c2)
    below = (mean**2 + other_mean**2 + c1) * (variance + other_variance + c2)
    inner = (above / below)[RADIUS:-RADIUS, RADIUS:-RADIUS]
    return float(inner.mean())


def hog(values: Float) -> NDArray[np.float64]:
    """Return the histograms of oriented gradients of a map (h, w), one row of numbers.

    Dalal and Triggs, CVPR 2005, with `ORIENTATIONS` unsigned orientations, cells of `CELL` × `CELL`
    pixels and blocks of 3 × 3 cells, normalised by L2-Hys, as `skimage.feature.hog`.
    """
    image = values.astype(np.float64)
    rows, columns = np.zeros_like(image), np.zeros_like(image)
    rows[1:-1] = image[2:] - image[:-2]
    columns[:, 1:-1] = image[:, 2:] - image[:, :-2]
    strength = np.hypot(rows, columns)
    angle = np.rad2deg(np.arctan2(rows, columns)) % 180
    bins = np.minimum((angle * ORIENTATIONS / 180).astype(int), ORIENTATIONS - 1)
    high, wide = image.shape[0] // CELL, image.shape[1] // CELL
    cells = np.zeros((high, wide, ORIENTATIONS))
    y, x = np.mgrid[: high * CELL, : wide * CELL]
    np.add.at(cells, (y // CELL, x // CELL, bins[y, x]), strength[y, x])
    cells /= CELL * CELL
    blocks = np.lib.stride_tricks.sliding_window_view(cells, (3, 3), axis=(0, 1))
    flat = blocks.transpose(0, 1, 3, 4, 2).reshape(-1, 9 * ORIENTATIONS)
    clipped = np.minimum(_unit(flat), 0.2)
    return _unit(clipped).ravel()


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    normed: NDArray[np.float64] = rows / np.sqrt((rows**2).sum(1, keepdims=True) + 1e-5**2)
    return normed


def _window(values: NDArray[np.float64]) -> NDArray[np.float64]:
    side = 2 * RADIUS + 1
    blurred = cv2.GaussianBlur(values, (side, side), SIGMA, borderType=cv2.BORDER_REFLECT)
    return blurred.astype(np.float64, copy=False)


def _enlarged(values: Float) -> Float:
    """Return the heat above 0, scaled to 0 … 1, with `SIDE` × `SIDE` pixels."""
    return resize(minmax(values.clip(min=0)), SIDE, SIDE)
