"""What the model used in each photo of a class: the contributions of a layer's channels to the
score, groups of photos with similar ones, and how such a group differs from the other photos."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cam.clusters.discriminant import growing, separation
from cam.drawing.placement import Float

CHANNELS: Final = 256
"""Most channels in which photos are compared."""
COMPONENTS: Final = 10
"""Most principal components in which groups of uses are told apart."""


@dataclass(frozen=True)
class Difference:
    """How a group's contributions to the score differ from those of the other photos."""

    apart: float
    """How far the group is from the others: `discriminant.separation`, in standard deviations."""
    lost: float
    """Of all differences between the two mean contributions, the share in which the group has less,
    0 … 1. A mark adds to the evidence that other photos of the class have, too: 0. Another kind of
    the object has other evidence instead: about a half."""
    raised: float
    """The chance that a photo of the group has a higher sum of contributions than another photo of
    the class, 0 … 1."""


class Uses:
    """The contributions of a class's photos.

    Args:
        used: `Explanation.used` of each photo, float32 or float16 (K,), at least one.
    """

    def __init__(self, used: Sequence[NDArray[np.floating[Any]]]) -> None:
        self._contributions = np.stack(used)
        self.shares = shares_of_use(used)
        self._points = principal(self.shares)

    def groups(self, members: NDArray[np.bool_]) -> Iterator[NDArray[np.bool_]]:
        """Yield the members, bool (m,), and the groups that they grow to."""
        yield members
        yield from growing(self._points, members)

    def difference(self, members: NDArray[np.bool_]) -> Difference:
        """Return how members, bool (m,), differ from the other photos."""
        mine, others = self._contributions[members], self._contributions[~members]
        if not len(mine) or not len(others):
            return Difference(0.0, 0.5, 0.5)
        change = mine.mean(0, dtype=np.float64) - others.mean(0, dtype=np.float64)
        total = np.abs(change).sum()
        lost = np.maximum(-change, 0).sum() / total if total else 0.5
        sums = mine.sum(1, dtype=np.float64)
        ranked = np.sort(others.sum(1, dtype=np.float64))
        below, up_to = (np.searchsorted(ranked, sums, side) for side in ("left", "right"))
        return Difference(
            apart=separation(self._points[members], self._points[~members]),
            lost=float(lost),
            raised=float((below + up_to).mean() / 2 / len(ranked)),
        )


def shares_of_use(used: Sequence[NDArray[np.floating[Any]]]) -> Float:
    """Return what the model used as distributions over channels.

    The positive and the negative part of each channel are channels of their own, channels that vary
    little between photos are left out, and each row is divided by its sum.

    Args:
        used: `Explanation.used` of each photo, float32 or float16 (K,), at least one.

    Returns:
        float32 (m, d), d at most `CHANNELS`. Half the L1 distance of two rows is the share of one
        photo's channels that the other lacks, apart from channels that are left out.
    """
    rows = np.stack(used).astype(np.float32)
    parts = np.concatenate([np.maximum(rows, 0), np.maximum(-rows, 0)], axis=1)
    parts /= np.maximum(parts.sum(1, keepdims=True), np.finfo(np.float32).tiny)
    chosen = np.sort(np.argsort(-parts.var(0), kind="stable")[:CHANNELS])
    return np.ascontiguousarray(parts[:, chosen])


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
    components: Float = (centred @ vectors[:, : -COMPONENTS - 1 : -1]).astype(np.float32)
    return components
