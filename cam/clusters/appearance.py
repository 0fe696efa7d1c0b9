"""What a cluster's photos show under its heat: the same thing at one place, one colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cam.drawing.heatmap import Float, resize, shrink
from cam.errors import InvalidImages

Photos = NDArray[np.uint8]
Numbers = NDArray[np.int64]

MEMBERS: Final = 64
"""Most photos of a cluster that are compared."""
OTHERS: Final = 128
"""Most photos of other clusters with which these are compared."""
COMMON: Final = 1 / 3
"""Largest spread of a pixel, relative to the others', at which the members show the same there."""
LEAST_SPREAD: Final = 4.0
"""Least spread of the other photos at a pixel, in grey levels 0 … 255. Where they hardly differ,
such as in black bars, equal pixels prove nothing."""


@dataclass(frozen=True)
class Appearance:
    inside: float
    """How much the members' photos differ where they are most alike under the heat: the 5 %
    quantile of the spreads (see `spreads`) of the hot pixels. 0 if the same pixels are there in
    most members; about 1 if they are as different as other photos of the class."""
    outside: float
    """The 10 % quantile of the spreads of the other pixels, about 0 if the photos are copies or
    crops of one photo."""
    colour: float
    """Spread of the mean colour under each member's own heat, relative to the same of the other
    photos. 0 if the heat lies on the same colour in most members."""


def appearance(heat: Float, photos: Photos, other_heat: Float, other_photos: Photos) -> Appearance:
    """Compare the photos of a cluster with other photos of the class.

    Args:
        heat, other_heat: the maps of the photos, float32 (m, h, w), 0 … 1.
        photos, other_photos: uint8 (m, H, W, 3), at least one each.
    """
    place = resize(hot_place(heat).astype(np.float32), *photos.shape[1:3]) >= 0.5
    found = spreads(photos, other_photos)
    beside = found[~place]
    return Appearance(
        inside=float(np.quantile(found[place], 0.05)) if place.any() else 1.0,
        outside=float(np.quantile(beside, 0.10)) if beside.size else 0.0,
        colour=float(spreads(_colours(photos, heat), _colours(other_photos, other_heat))),
    )


def alike(heat: Float, photos: Photos, other_photos: Photos) -> NDArray[np.bool_]:
    """Return which photos of a cluster show what most of them show under the heat: bool (m,).

    Of the hot pixels, those are compared that differ least among the members: at most `COMMON`
    times as much as among the other photos. A photo shows the same if its mean distance there from
    the members' median is at most half of the median distance of the other photos.

    Args:
        heat: the maps of the photos, float32 (m, h, w), 0 … 1.
        photos, other_photos: uint8 (m, H, W, 3), at least one each.
    """
    place = resize(hot_place(heat).astype(np.float32), *photos.shape[1:3]) >= 0.5
    common = place & (spreads(photos, other_photos) <= COMMON)
    if not common.any():
        return np.ones(len(photos), bool)
    levels = photos[:, common].astype(np.float32)
    middle = np.median(levels, axis=0)
    distances = np.abs(levels - middle).mean((1, 2))
    control = np.abs(other_photos[:, common].astype(np.float32) - middle).mean((1, 2))
    found: NDArray[np.bool_] = distances <= np.median(control) / 2
    return found


def hot_place(maps: Float) -> NDArray[np.bool_]:
    """Return the positions at which the median of the maps (m, h, w) is at least half of the
    median's maximum: bool (h, w)."""
    median = np.median(maps, axis=0)
    hot: NDArray[np.bool_] = median >= median.max() / 2
    return hot


def spreads(members: Photos | Float, others: Photos | Float) -> Float:
    """Return the spread of the members' values, relative to the others'.

    The spread is the median absolute deviation from the median, averaged over the channels, in
    grey levels. Unlike the variance it does not change much if a tenth of the members are wrong.
    The others' spread is at least `LEAST_SPREAD`.

    Args:
        members, others: (count, …, channels), 0 … 255.

    Returns:
        float32 (…).
    """
    mine, control = (_deviation(each) for each in (members, others))
    return np.asarray(mine / np.maximum(control, LEAST_SPREAD), np.float32)


def _deviation(values: Photos | Float) -> Float:
    levels = values.astype(np.float32)
    middle = np.median(levels, axis=0)
    return np.asarray(np.median(np.abs(levels - middle), axis=0).mean(-1), np.float32)


def _colours(photos: Photos, heat: Float) -> Float:
    """Return the mean colour of each photo, weighted by its heat: float32 (m, 3), 0 … 255."""
    height, width = heat.shape[1:]
    small = np.stack([shrink(each, height, width) for each in photos.astype(np.float32)])
    weights = heat / heat.sum((1, 2), keepdims=True)
    colours: Float = np.einsum("mhw,mhwc->mc", weights, small)
    return colours


class Thumbnails:
    """The thumbnails of a class, each of which is read at most once.

    Args:
        photos: uint8 (H, W, 3) each; None for a photo that cannot be read.
        seed: of the order in which photos are drawn. It is the same for all clusters, so that
            clusters with common members read the same photos.
    """

    def __init__(self, photos: Sequence[Photos | None], seed: int) -> None:
        self._photos = photos
        self._order = np.random.default_rng(seed).permutation(len(photos))
        self._read: dict[int, Photos | None] = {}
        self._shape: tuple[int, ...] | None = None

    @property
    def unreadable(self) -> int:
        """Number of photos that could not be read."""
        return sum(each is None for each in self._read.values())

    def some(self, numbers: Numbers, most: int) -> tuple[Numbers, Photos]:
        """Return at most `most` of the photos that can be read: their numbers, ascending, and their
        pixels, uint8 (m, H, W, 3).

        Raises:
            InvalidImages: if one of them is not uint8 (H, W, 3), or not of the first one's size.
        """
        wanted = np.zeros(len(self._photos), bool)
        wanted[numbers] = True
        chosen = np.sort(self._order[wanted[self._order]][:most])
        found = [
            (int(each), photo) for each in chosen if (photo := self._photo(int(each))) is not None
        ]
        shape = (0, *(self._shape or (1, 1, 3)))
        pixels = np.stack([photo for _, photo in found]) if found else np.empty(shape, np.uint8)
        return np.array([number for number, _ in found], np.int64), pixels

    def _photo(self, number: int) -> Photos | None:
        if number not in self._read:
            photo = self._photos[number]
            self._read[number] = None if photo is None else self._checked(number, photo)
        return self._read[number]

    def _checked(self, number: int, photo: Photos) -> Photos:
        found = np.asarray(photo)
        if self._shape is None and found.ndim == 3 and found.shape[2] == 3:
            self._shape = found.shape
        if found.dtype != np.uint8 or found.shape != self._shape:
            needed = self._shape or "(H, W, 3)"
            raise InvalidImages(
                f"thumbnail {number} is {found.dtype} {found.shape}; all must be uint8 and of one "
                f"shape, here {needed}"
            )
        return found
