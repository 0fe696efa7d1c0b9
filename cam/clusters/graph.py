"""The graph of similar maps: each map is connected with its nearest neighbours."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from cam.drawing.placement import Float

if TYPE_CHECKING:
    from scipy.sparse import csr_array

POWER: Final = 2
"""Power of a map's values before maps are compared. It weighs the places with the most heat: a
watermark that decides must not drown in the weak heat that lies all over a map."""

LEAST_SCALE: Final = 0.01
"""Least scale of a map, as a share of its heat. Maps that differ by less count as copies: with a
scale of 0, copies of one map would have no affinity to a map that differs from them in nothing that
can be seen."""
LEAST_WEIGHT: Final = 1e-6
"""Least weight of a neighbour, because the Laplacian divides by the sum of a map's weights."""


def distributions(maps: Float) -> Float:
    """Return each map as a distribution of its heat over the positions: its values to the power
    `POWER`, divided by their sum.

    Args:
        maps: float32 (m, h, w), each ≥ 0 and not all zero.

    Returns:
        float32 (m, h · w). Half the L1 distance of two rows is the total variation, 0 … 1: the
        share of the heat that lies elsewhere in the other map. L1 and not L2, because two maps with
        a common part (a watermark) and different rests (the object at other places) then have a
        distance of at most the rest, wherever it lies.
    """
    heat = maps.reshape(len(maps), math.prod(maps.shape[1:])) ** POWER
    shares: Float = heat / heat.sum(1, keepdims=True)
    return shares


def neighbour_count(count: int) -> int:
    """Return the number of neighbours for `count` maps: ⌈ln count⌉, as Lapuschkin et al. have it
    after von Luxburg ("A tutorial on spectral clustering", 2007, section 8.2); at most all other
    maps."""
    return min(max(math.ceil(math.log(count)), 1), count - 1)


def affinity(points: Float, neighbours: int) -> csr_array:
    """Return the symmetric affinity of the points' graph of nearest neighbours.

    If j is one of i's neighbours, a_ij = exp(−d_ij² / (s_i s_j)), where d is the total variation
    and s_i the distance from i to its last neighbour (Zelnik-Manor and Perona, "Self-tuning
    spectral clustering", NIPS 2004), at least `LEAST_SCALE`; the weight is at least `LEAST_WEIGHT`.
    Otherwise a_ij = 0. The affinity is (a + aᵀ) / 2. So a map far away from a tight group adds
    little weight to the group, even if its nearest neighbours are in it.

    Args:
        points: float32 (n, d), rows of `distributions`.
        neighbours: 1 … n − 1.

    Returns:
        float64 (n, n), sparse, with zeros on the diagonal, values 0 … 1. Each row has a positive
        sum.
    """
    from scipy.sparse import csr_array

    distances, nearest = _nearest(points, neighbours)
    scale = np.maximum(distances[:, -1], LEAST_SCALE)
    weights = np.exp(-(distances**2) / (scale[:, None] * scale[nearest]))
    weights = np.maximum(weights, LEAST_WEIGHT)
    rows = np.repeat(np.arange(len(points)), neighbours)
    shape = (len(points), len(points))
    directed = csr_array((weights.ravel(), (rows, nearest.ravel())), shape=shape)
    return csr_array((directed + directed.T) / 2)


def _nearest(points: Float, neighbours: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the total variation to the nearest other points and their numbers, each (n,
    neighbours), the nearest first."""
    # OpenCV compares each row alone, so that the number of threads does not change the result.
    matches = cv2.batchDistance(points, points, cv2.CV_32F, None, None, cv2.NORM_L1, neighbours + 1)
    distances, nearest = matches[0].astype(np.float64) / 2, matches[1].astype(np.int64)
    # A point is its own nearest neighbour, unless there are enough equal points before it.
    own = nearest == np.arange(len(points))[:, None]
    own[~own.any(1), -1] = True
    shape = (len(points), neighbours)
    return distances[~own].reshape(shape), nearest[~own].reshape(shape)
