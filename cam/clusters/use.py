"""What the model used in each photo, wherever it lies: see `Explanation.used`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from cam.drawing.heatmap import Float

CHANNELS: Final = 256
"""Most channels in which photos are compared."""
COMPONENTS: Final = 10
"""Number of principal components in which clusters are told apart."""


def shares_of_use(used: Sequence[Float]) -> Float:
    """Return what the model used as distributions over channels.

    The positive and the negative part of each channel are channels of their own, channels that vary
    little between photos are left out, and each row is divided by its sum.

    Args:
        used: `Explanation.used` of each photo, float32 (K,), at least one.

    Returns:
        float32 (m, d), d at most `CHANNELS`. Half the L1 distance of two rows is the share of one
        photo's channels that the other lacks, but for the channels that are left out.
    """
    rows = np.stack(used).astype(np.float32)
    parts = np.concatenate([np.maximum(rows, 0), np.maximum(-rows, 0)], axis=1)
    shares = parts / np.maximum(parts.sum(1, keepdims=True), np.finfo(np.float32).tiny)
    chosen = np.sort(np.argsort(-shares.var(0), kind="stable")[:CHANNELS])
    return np.ascontiguousarray(shares[:, chosen])


def principal(shares: Float) -> Float:
    """Return the first principal components of the roots of distributions, whose L2 distance is
    Hellinger's: it weighs weak channels more than L1 does.

    Args:
        shares: rows of `shares_of_use`, (m, d).

    Returns:
        float32 (m, c), c at most `COMPONENTS`.
    """
    roots = np.sqrt(shares.astype(np.float64))
    centred = roots - roots.mean(0)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    found: Float = (centred @ vectors[:, : -COMPONENTS - 1 : -1]).astype(np.float32)
    return found
