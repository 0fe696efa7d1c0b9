"""A picture of all maps of a class: similar maps lie near each other in two dimensions."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from cam.drawing.placement import Float

MOST: Final = 2000
"""Most maps that t-SNE places. The others are placed among the nearest of these."""
PERPLEXITY: Final = 30
ROUNDS: Final = 500
NEAREST: Final = 3
"""Number of placed maps whose mean position another map takes."""


def embed(points: Float, seed: int, first: NDArray[np.int64] | None = None) -> Float:
    """Place points in two dimensions by t-SNE (van der Maaten and Hinton, 2008) of their L1
    distances, started from their principal components.

    At most `MOST` points are placed so: those in `first`, such as the members of suspect clusters,
    and others that are drawn with the seed. Every other point takes the mean position of the
    `NEAREST` placed points.

    Args:
        points: float32 (n, d).

    Returns:
        float32 (n, 2); zeros for fewer than 4 points or equal points.
    """
    count = len(points)
    if count < 4 or not np.ptp(points, axis=0).any():
        return np.zeros((count, 2), np.float32)
    if count <= MOST:
        return _tsne(points, seed)
    random = np.random.default_rng(seed)
    chosen = np.zeros(count, bool)
    if first is not None:
        chosen[first[: MOST // 2]] = True
    rest = np.flatnonzero(~chosen)
    chosen[random.choice(rest, MOST - int(chosen.sum()), replace=False)] = True
    placed = _tsne(points[chosen], seed)
    positions = np.zeros((count, 2), np.float32)
    positions[chosen] = placed
    import cv2

    _, nearest = cv2.batchDistance(
        points[~chosen], points[chosen], cv2.CV_32F, None, None, cv2.NORM_L1, NEAREST
    )
    positions[~chosen] = placed[nearest].mean(1)
    return positions


def _tsne(points: Float, seed: int) -> Float:
    from scipy.spatial.distance import pdist, squareform
    from sklearn.manifold import TSNE

    distances = squareform(pdist(points, "cityblock")).astype(np.float32)
    centred = points - points.mean(0)
    _, vectors = np.linalg.eigh(centred.T.astype(np.float64) @ centred)
    axes = vectors[:, :-3:-1]
    axes = axes * np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])
    start = np.zeros((len(points), 2), np.float32)
    start[:, : axes.shape[1]] = centred @ axes
    start *= 1e-4 / max(float(start[:, 0].std()), 1e-12)
    placed = TSNE(
        perplexity=min(PERPLEXITY, (len(points) - 1) / 3),
        metric="precomputed",
        init=start,
        max_iter=ROUNDS,
        random_state=seed,
        n_jobs=1,
    ).fit_transform(distances)
    return np.asarray(placed, np.float32)
