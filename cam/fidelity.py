"""How much the maps of one way to an answer are like those of another."""

from __future__ import annotations

import numpy as np

from cam.errors import CamError
from cam.explanation import Answer


def likeness(one: Answer | CamError, other: Answer | CamError) -> float:
    """Pearson's correlation of two answers' maps, -1 … 1; the least of them, of several. Of two
    empty maps 1, of one 0.

    Raises:
        CamError: if one of the answers is an error.
    """
    for each in (one, other):
        if isinstance(each, CamError):
            raise each
    assert isinstance(one, Answer)
    assert isinstance(other, Answer)
    return min(
        _correlation(first.map.ravel(), second.map.ravel())
        for first, second in zip(one.explanations, other.explanations, strict=True)
    )


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    flat = [float(np.ptp(each)) == 0 for each in (one, other)]
    if any(flat):
        return float(all(flat))
    return float(np.corrcoef(one, other)[0, 1])
