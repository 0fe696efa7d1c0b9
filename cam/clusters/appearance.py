"""What a cluster's photos show under its heat: the same thing at one place, one colour, something
that the other photos of the class lack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cam.clusters.discriminant import separability
from cam.drawing.heatmap import Float, resize
from cam.errors import InvalidImages

Photos = NDArray[np.uint8]
Numbers = NDArray[np.int64]

MEMBERS: Final = 64
"""Most photos of a cluster that are compared."""
OTHERS: Final = 128
"""Most photos of other clusters with which these are compared."""
COMMON: Final = 1 / 3
"""Largest spread of a pixel, relative to the others', at which the members show the same there."""
SAME: Final = 1 / 3
"""Largest spread of the pixels under the heat, relative to the spread elsewhere, of photos that
show the same thing."""
DIFFERENT: Final = 0.4
"""Least spread of the pixels elsewhere, so that the photos are not copies of one photo."""
STANDS_OUT: Final = 1.0
"""Least difference between the shifts of the pixels under the heat and elsewhere, in standard
deviations, of a place that stands out."""
ELSEWHERE: Final = 0.75
"""Largest shift of the pixels elsewhere, in standard deviations, of photos that are as others
but for what lies under the heat."""
UNLIKE: Final = 0.85
"""Least `Appearance.unlike` of a place that stands out."""
EDGES: Final = 8.0
"""Factor of the differences between neighbouring pixels: the sum of the weights of Sobel's
operator."""
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
    shift: float
    """How far the members' photos are, under the heat, from the other photos at the same place, in
    standard deviations: the 95 % quantile of the shifts (see `shifts`) of the hot pixels. A
    translucent mark shifts pixels that differ as much as before."""
    shift_outside: float
    """The 75 % quantile of the other pixels. About as large as `shift` if the photos are of another
    kind altogether, such as other exposures."""
    error: float
    """Two standard errors of a shift."""
    unlike: float
    """How well the members are told from the other photos by what lies under each photo's own heat,
    wherever that is: `discriminant.separability`. 0.5 if the heat lies on the same kind of thing as
    in other photos, such as the object; 1 if it always lies on something else."""

    @property
    def copies(self) -> bool:
        """Whether the photos are copies or crops of one photo."""
        return self.outside < DIFFERENT

    @property
    def same_thing(self) -> bool:
        """Whether the photos show the same thing under the heat and differ elsewhere."""
        # Where the other photos are all alike, such as in a border, `outside` is above 1.
        return not self.copies and self.inside <= SAME * min(self.outside, 1.0)

    @property
    def another_kind(self) -> bool:
        """Whether the photos differ from the others elsewhere, too: another kind of photo, such as
        other exposures, a scanner's photos or another object."""
        return self.shift_outside > ELSEWHERE

    @property
    def stands_out(self) -> bool:
        """Whether the photos differ from the others at this place, more than elsewhere, and under
        their heat is not what the heat of the others lies on. Photos that differ elsewhere, too,
        are of another kind, such as those of another camera in the class, and tell nothing."""
        return (
            not (self.copies or self.another_kind)
            and self.shift - self.error - self.shift_outside >= STANDS_OUT
            and self.unlike >= UNLIKE
        )


def appearance(heat: Float, photos: Photos, other_heat: Float, other_photos: Photos) -> Appearance:
    """Compare the photos of a cluster with other photos of the class.

    Args:
        heat, other_heat: the maps of the photos, float32 (m, h, w), 0 … 1.
        photos, other_photos: uint8 (m, H, W, 3), at least one each.
    """
    place = resize(hot_place(heat).astype(np.float32), *photos.shape[1:3]) >= 0.5
    spread = spreads(photos, other_photos)
    moved = shifts(_with_edges(photos), _with_edges(other_photos))
    under, other_under = _under(photos, heat), _under(other_photos, other_heat)
    beside = spread[~place]
    return Appearance(
        inside=float(np.quantile(spread[place], 0.05)) if place.any() else 1.0,
        outside=float(np.quantile(beside, 0.10)) if beside.size else 0.0,
        colour=float(spreads(under[:, :3], other_under[:, :3])),
        shift=float(np.quantile(moved[place], 0.95)) if place.any() else 0.0,
        shift_outside=float(np.quantile(moved[~place], 0.75)) if beside.size else 0.0,
        error=2 * math.sqrt(1 / len(photos) + 1 / len(other_photos)),
        unlike=separability(*_scaled(under, other_under)),
    )


def alike(heat: Float, photos: Photos, other_photos: Photos) -> NDArray[np.bool_]:
    """Return which photos of a cluster show what most of them show under the heat: bool (m,).

    Of the hot pixels, those are compared that differ least among the members: the least quarter of
    those that differ at most `COMMON` times as much as among the other photos. A photo shows the
    same if its mean distance there from the members' median is nearer to the median distance of
    the members than of the other photos.

    Args:
        heat: the maps of the photos, float32 (m, h, w), 0 … 1.
        photos, other_photos: uint8 (m, H, W, 3), at least one each.
    """
    place = resize(hot_place(heat).astype(np.float32), *photos.shape[1:3]) >= 0.5
    spread = spreads(photos, other_photos)
    common = place & (spread <= COMMON)
    if not common.any():
        return np.ones(len(photos), bool)
    common &= spread <= np.quantile(spread[common], 0.25)  # digits of a date differ, its ground not
    levels = photos[:, common].astype(np.float32)
    middle = np.median(levels, axis=0)
    distances = np.abs(levels - middle).mean((1, 2))
    control = np.abs(other_photos[:, common].astype(np.float32) - middle).mean((1, 2))
    near: NDArray[np.bool_] = distances <= (np.median(distances) + np.median(control)) / 2
    return near


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
    mine, control = (_deviation(group) for group in (members, others))
    return np.asarray(mine / np.maximum(control, LEAST_SPREAD), np.float32)


def _deviation(values: Photos | Float) -> Float:
    levels = values.astype(np.float32)
    middle = np.median(levels, axis=0)
    return np.asarray(np.median(np.abs(levels - middle), axis=0).mean(-1), np.float32)


def shifts(members: Photos | Float, others: Photos | Float) -> Float:
    """Return how far the members' mean is from the others' mean: the difference divided by the root
    of the mean variance of the two groups, of the channel in which this is largest. The variances
    are at least `LEAST_SPREAD`².

    Args:
        members, others: (count, …, channels), 0 … 255.

    Returns:
        float32 (…).
    """
    mine, control = (group.astype(np.float32) for group in (members, others))
    spread = np.maximum((mine.var(0) + control.var(0)) / 2, LEAST_SPREAD**2)
    return np.asarray(
        (np.abs(mine.mean(0) - control.mean(0)) / np.sqrt(spread)).max(-1), np.float32
    )


def _scaled(members: Float, others: Float) -> tuple[Float, Float]:
    """Return the rows with the mean 0 and the standard deviation 1 in each column."""
    both = np.concatenate([members, others])
    scaled = (both - both.mean(0)) / np.maximum(both.std(0), 1e-6)
    return scaled[: len(members)], scaled[len(members) :]


def _with_edges(photos: Photos) -> Float:
    """Return the photos with the strength of their edges as a fourth channel, float32 (m, H, W,
    4): a pattern of several colours may have the mean colour of what it covers."""
    return np.concatenate([photos.astype(np.float32), _edges(photos)[..., None]], axis=-1)


def _edges(photos: Photos) -> Float:
    grey = photos.mean(-1, dtype=np.float32)
    down, across = np.gradient(grey, axis=(1, 2))
    return np.asarray(EDGES * np.hypot(down, across), np.float32)


def _under(photos: Photos, heat: Float) -> Float:
    """Return what lies under each photo's own heat: the mean colour, the standard deviation of the
    brightness and the mean strength of the edges, float32 (m, 5)."""
    size = photos.shape[1:3]
    weights = np.stack([resize(map_**2, *size) for map_ in heat])
    weights /= weights.sum((1, 2), keepdims=True)
    levels = photos.astype(np.float32)
    grey = levels.mean(-1)
    colours = np.einsum("mhw,mhwc->mc", weights, levels)
    means = (weights * grey).sum((1, 2))
    variances = np.maximum((weights * grey**2).sum((1, 2)) - means**2, 0)
    edges = (weights * _edges(photos)).sum((1, 2))
    return np.column_stack([colours, np.sqrt(variances), edges]).astype(np.float32)


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
        return sum(photo is None for photo in self._read.values())

    def some(self, numbers: Numbers, most: int) -> tuple[Numbers, Photos]:
        """Return at most `most` of the photos that can be read: their numbers, ascending, and their
        pixels, uint8 (m, H, W, 3).

        Raises:
            InvalidImages: if one of them is not uint8 (H, W, 3), or not of the first one's size.
        """
        wanted = np.zeros(len(self._photos), bool)
        wanted[numbers] = True
        chosen = np.sort(self._order[wanted[self._order]][:most])
        readable = [
            (int(index), photo)
            for index in chosen
            if (photo := self._photo(int(index))) is not None
        ]
        shape = (0, *(self._shape or (1, 1, 3)))
        pixels = (
            np.stack([photo for _, photo in readable]) if readable else np.empty(shape, np.uint8)
        )
        return np.array([number for number, _ in readable], np.int64), pixels

    def _photo(self, number: int) -> Photos | None:
        if number not in self._read:
            photo = self._photos[number]
            self._read[number] = None if photo is None else self._checked(number, photo)
        return self._read[number]

    def _checked(self, number: int, photo: Photos) -> Photos:
        pixels = np.asarray(photo)
        if self._shape is None and pixels.ndim == 3 and pixels.shape[2] == 3:
            self._shape = pixels.shape
        if pixels.dtype != np.uint8 or pixels.shape != self._shape:
            needed = self._shape or "(H, W, 3)"
            raise InvalidImages(
                f"thumbnail {number} is {pixels.dtype} {pixels.shape}; all must be uint8 and of "
                f"one shape, here {needed}"
            )
        return pixels
