"""How well two groups of vectors are told apart by Fisher's linear discriminant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cam.drawing.placement import Float

Double = NDArray[np.float64]

SHRINKAGE: Final = 0.1
"""Added to each within-group variance, as a share of their mean: a discriminant of few rows in many
dimensions would else fit their noise."""
LEAST: Final = 6
"""Least number of rows of each group."""
ROUNDS: Final = 20
"""Most rounds in which a group grows."""


def separability(members: Float, others: Float) -> float:
    """Return the area under the ROC curve of the discriminant: the chance that it ranks a member
    above another row, 0 … 1. About 0.5 if the groups are alike.

    Args:
        members, others: (m, d) and (n, d). With fewer than `LEAST` rows it is 0.5.
    """
    if min(len(members), len(others)) < LEAST:
        return 0.5
    mine, control = _held_out(members, others)
    wins = (mine[:, None] > control) + (mine[:, None] == control) / 2
    return float(wins.mean())


def scaled(members: Float, others: Float) -> tuple[Float, Float]:
    """Return both groups, scaled so that each column of all rows has mean 0 and standard deviation
    1."""
    both = np.concatenate([members, others])
    rows = (both - both.mean(0)) / np.maximum(both.std(0), 1e-6)
    return rows[: len(members)], rows[len(members) :]


def separation(members: Float, others: Float) -> float:
    """Return the distance of the groups' means on the discriminant, in standard deviations of the
    groups. About 0 if the groups are alike.

    Args:
        members, others: (m, d) and (n, d). With fewer than `LEAST` rows it is 0.
    """
    if min(len(members), len(others)) < LEAST:
        return 0.0
    mine, control = _held_out(members, others)
    spread = np.sqrt((mine.var() + control.var()) / 2)
    return float((mine.mean() - control.mean()) / max(spread, np.finfo(np.float64).tiny))


def growing(points: Float, members: NDArray[np.bool_]) -> Iterator[NDArray[np.bool_]]:
    """Yield the groups, bool (m,), that some of its rows grow to: the rows on the members' side of
    the discriminant become the members, until these stay the same, or for `ROUNDS` rounds.

    Args:
        points: (m, d).
        members: bool (m,). The rounds end where one of the two groups has fewer than `LEAST` rows.
    """
    rows = points.astype(np.float64)
    for _ in range(ROUNDS):
        if min(members.sum(), (~members).sum()) < LEAST:
            return
        axis, halfway = _discriminant(rows[members], rows[~members])
        group: NDArray[np.bool_] = (rows - halfway) @ axis > 0
        if (group == members).all():
            return
        yield group
        members = group


def _held_out(members: Float, others: Float) -> tuple[Double, Double]:
    """Return each row's place on the discriminant of the rows of the other half, in standard
    deviations within the groups, 0 halfway between the groups' means."""
    mine, control = members.astype(np.float64), others.astype(np.float64)
    places = np.zeros(len(mine)), np.zeros(len(control))
    for fold in (0, 1):
        axis, halfway = _discriminant(mine[1 - fold :: 2], control[1 - fold :: 2])
        for rows, place in zip((mine, control), places, strict=True):
            place[fold::2] = (rows[fold::2] - halfway) @ axis
    return places


def _discriminant(members: Double, others: Double) -> tuple[Double, Double]:
    """Return the axis (d,) on which the groups are told apart, in standard deviations within the
    groups, and the point (d,) halfway between their means."""
    centres = [points.mean(0) for points in (members, others)]
    around = np.concatenate([members - centres[0], others - centres[1]])
    scatter = around.T @ around / len(around)
    least = max(SHRINKAGE * np.trace(scatter) / len(scatter), np.finfo(np.float64).tiny)
    scatter += least * np.eye(len(scatter))
    axis = np.linalg.solve(scatter, centres[0] - centres[1])
    unit = max(np.sqrt(axis @ scatter @ axis), np.finfo(np.float64).tiny)
    return axis / unit, (centres[0] + centres[1]) / 2
