"""The overall look of photos, such as a tint, a veil or dark corners, and what they show apart from
it.

Two groups of photos may be told apart because one change covers all photos of one of them, or
because they show different things. So the change is undone first: at each pixel the group's values
get the mean and the spread of the other photos'. A change that is the same on all photos and
linear in the pixels, such as a blend with a colour, is then gone, and the groups are told apart no
longer. Photos of different things are.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from cam.clusters.discriminant import scaled, separability
from cam.drawing.placement import Float

Photos = NDArray[np.uint8]

QUANTILES: Final = (0.02, 0.1, 0.5, 0.9, 0.98)
RINGS: Final = (0.0, 0.4, 0.8, 1.1, np.inf)
"""Bounds of rings around the middle, as shares of half the height and half the width."""
BANDS: Final = 4
"""Number of horizontal bands."""
FINE: Final = 1.2
"""Standard deviation, in pixels, of the blur that takes away fine patterns such as noise."""
COARSE: Final = 4.0
"""Standard deviation, in pixels, of the neighbourhood whose mean and contrast are divided out."""
SMOOTH: Final = 1.5
"""Standard deviation, in pixels, of the blur of a change: few photos would else fit it."""
LEAST_SPREAD: Final = 4.0
"""Least spread of the other photos at a pixel, in grey levels 0 … 255; a smaller one counts as
this. Where the other photos hardly differ, such as in black bars, equal pixels prove nothing."""
LEAST_CONTRAST: Final = 2.5
"""Added to the contrast of a neighbourhood, in grey levels, before it is divided out: an even one
would else be noise."""
DIRECTIONS: Final = 6
"""Number of directions of edges in each quarter of a photo."""


def told_by_look(members: Photos, others: Photos) -> float:
    """Return how well the overall look tells members from the others: see
    `discriminant.separability`.

    Args:
        members, others: uint8 (m, H, W, 3) and (n, H, W, 3).
    """
    return separability(*scaled(_looks(members), _looks(others)))


def told_by_scene(members: Photos, others: Photos) -> float:
    """Return how well members are told from the others by what they show, once the change that all
    members share is undone. About 0.5 if they show the same kinds of things.

    Args:
        members, others: as for `told_by_look`.
    """
    shown = _scenes(_undone(members, others)), _scenes(others.astype(np.float32))
    return separability(*scaled(*shown))


def _looks(photos: Photos) -> Float:
    """Return numbers of each photo as a whole, float32 (m, d): quantiles and spreads of the
    colours, brightness and contrast in rings and bands, the darkest channel in bands, and the
    strength of fine details."""
    values = photos.astype(np.float32) / 255
    grey, dark = values.mean(-1), values.min(-1)
    height, width = grey.shape[1:]
    y, x = np.indices((height, width))
    radius = np.hypot((2 * y - height + 1) / height, (2 * x - width + 1) / width)
    columns = [np.quantile(values, share, axis=(1, 2)) for share in QUANTILES]
    columns.append(values.std((1, 2)))
    for least, most in pairwise(RINGS):
        ring = grey[:, (radius >= least) & (radius < most)]
        columns.append(np.stack([ring.mean(1), ring.std(1)], 1))
    for rows in np.array_split(np.arange(height), BANDS):
        lowest = np.quantile(dark[:, rows], 0.1, axis=(1, 2))
        columns.append(np.stack([lowest, grey[:, rows].std((1, 2))], 1))
    fine = [np.abs(cv2.Laplacian(each, cv2.CV_32F)).mean() for each in grey]
    across = np.abs(np.diff(grey, axis=2)).mean((1, 2))
    columns.append(np.log(np.stack([np.array(fine), across], 1) + 1e-4))
    return np.concatenate(columns, 1).astype(np.float32)


def _undone(members: Photos, others: Photos) -> Float:
    """Return the members with the others' mean and spread at each pixel, float32 (m, H, W, 3)."""

    def of(photos: Photos) -> tuple[Float, Float]:
        mean, spread = photos.mean(0, dtype=np.float32), photos.std(0, dtype=np.float32)
        blurred = [_blurred(each, SMOOTH) for each in (mean, np.maximum(spread, LEAST_SPREAD))]
        return blurred[0], blurred[1]

    (mean, spread), (wanted, wide) = of(members), of(others)
    return np.asarray((members - mean) / spread * wide + wanted, np.float32)


def _scenes(photos: Float) -> Float:
    """Return what each photo shows, float32 (m, d): the strength of edges of each direction in its
    quarters, and how its colours go together. The mean and contrast of each neighbourhood are
    divided out, as are the means of rows and columns, which light that flickers changes."""

    def halves(length: int) -> NDArray[np.int64]:
        return np.arange(length) * 2 // length

    rows = []
    for photo in photos:
        plain = _blurred(photo, FINE)
        around = plain - _blurred(plain, COARSE)
        local = around / (np.sqrt(_blurred(around * around, COARSE)) + LEAST_CONTRAST)
        local = local - local.mean(0, keepdims=True) - local.mean(1, keepdims=True)
        down, across = np.gradient(local.mean(-1))
        direction = np.floor(np.arctan2(down, across) % np.pi / np.pi * DIRECTIONS)
        part = np.add.outer(halves(len(photo)) * 2, halves(photo.shape[1])) * DIRECTIONS
        place = part + np.minimum(direction, DIRECTIONS - 1).astype(np.int64)
        histogram = np.bincount(place.ravel(), np.hypot(down, across).ravel(), 4 * DIRECTIONS)
        histogram = histogram / max(histogram.sum(), 1e-6)
        flat = local.reshape(-1, 3)
        together = (flat.T @ flat / len(flat))[np.triu_indices(3)]
        rows.append(np.concatenate([histogram, together, [np.abs(local).mean()]]))
    return np.array(rows, np.float32)


def _blurred(photo: Float, deviation: float) -> Float:
    return np.asarray(cv2.GaussianBlur(photo, (0, 0), deviation), np.float32)
