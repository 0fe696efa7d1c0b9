"""Compare what a cluster's photos show under its heat with other photos of the class: the same
thing at one place, one colour, or something that the other photos lack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cam.clusters.discriminant import scaled, separability
from cam.clusters.look import LEAST_SPREAD, told_by_look, told_by_scene
from cam.drawing.placement import Float, resize
from cam.errors import InvalidImages

Photos = NDArray[np.uint8]
Numbers = NDArray[np.int64]

MEMBERS: Final = 64
"""Largest number of photos of a cluster that are compared."""
OTHERS: Final = 128
"""Largest number of other photos that they are compared with."""
COMMON: Final = 1 / 3
"""Largest spread of a pixel, relative to the other photos, at which the members show the same
there."""
SAME: Final = 1 / 3
"""Photos show the same thing if the spread of their pixels under the heat is at most this, relative
to the spread elsewhere."""
DIFFERENT: Final = 0.4
"""Photos are copies of one photo if the spread of their pixels elsewhere is below this."""
STANDS_OUT: Final = 1.0
"""A place stands out if the shift of the pixels under the heat exceeds the shift of the pixels
elsewhere by at least this, in standard deviations."""
ELSEWHERE: Final = 0.75
"""Photos are of another kind than the others if the shift of their pixels elsewhere exceeds this,
in standard deviations."""
UNLIKE: Final = 0.85
"""A place stands out only if `Appearance.unlike` is at least this."""
EDGES: Final = 8.0
"""Factor by which the differences between neighbouring pixels are multiplied: the sum of the
weights of Sobel's operator."""


@dataclass(frozen=True)
class Appearance:
    inside: float
    """How much the members' photos differ where they are most alike under the heat: the 5 %
    quantile of the spreads (see `spreads`) of the hot pixels. 0 if most members have the same
    pixels there; about 1 if they differ as much as other photos of the class."""
    outside: float
    """The 10 % quantile of the spreads of the pixels that are not hot. About 0 if the photos are
    copies or crops of one photo."""
    colour: float
    """Spread of the mean colour under each member's own heat, relative to its spread among the
    other photos. 0 if the heat lies on the same colour in most members."""
    shift: float
    """How far the members' photos are from the other photos at the hot pixels, in standard
    deviations: the 95 % quantile of the shifts (see `shifts`). It finds a translucent mark, which
    shifts pixels but does not change how much they differ."""
    shift_outside: float
    """The 75 % quantile of the shifts of the pixels that are not hot. About as large as `shift` if
    the photos are of another kind altogether, such as other exposures."""
    error: float
    """Two standard errors of a shift."""
    unlike: float
    """How well what lies under each photo's own heat, wherever that is, tells the members from the
    other photos: see `discriminant.separability`. 0.5 if the heat lies on the same kind of thing as
    in other photos, such as the object; 1 if it always lies on something else."""
    middle: float = 0.0
    """The median of the spreads of the pixels that are not hot. Unlike `outside`, dark corners that
    all members have do not make it small."""
    look: float = 0.5
    """How well the overall look of the photos tells the members from the other photos, 0 … 1:
    `look.told_by_look`. 0.5 if it was not compared."""
    scene: float = 1.0
    """How well what they show tells the members from the other photos, once the change that all
    members share is undone: `look.told_by_scene`. 1 if it was not compared."""

    @property
    def copies(self) -> bool:
        """Whether the photos are copies or crops of one photo."""
        return self.outside < DIFFERENT

    @property
    def same_thing(self) -> bool:
        """Whether the photos show the same thing under the heat and differ elsewhere."""
        # `outside` is above 1 if the other photos are all alike there, such as in a border.
        return not self.copies and self.inside <= SAME * min(self.outside, 1.0)

    @property
    def another_kind(self) -> bool:
        """Whether the photos differ from the others elsewhere, too, as photos of another kind do:
        other exposures, a scanner's photos or another object."""
        return self.shift_outside > ELSEWHERE

    @property
    def stands_out(self) -> bool:
        """Whether the photos differ from the others at this place more than elsewhere, and their
        heat lies on something else than the heat of the others. Photos that differ elsewhere, too,
        prove nothing: they are of another kind, such as photos of another camera."""
        return (
            not (self.copies or self.another_kind)
            and self.shift - self.error - self.shift_outside >= STANDS_OUT
            and self.unlike >= UNLIKE
        )


def appearance(
    heat: Float,
    photos: Photos,
    other_heat: Float,
    other_photos: Photos,
    *,
    whole: bool = False,
) -> Appearance:
    """Compare the photos of a cluster with other photos of the class.

    Args:
        heat, other_heat: the maps of the photos, float32 (m, h, w), 0 … 1.
        photos, other_photos: uint8 (m, H, W, 3), at least one each.
        whole: whether the photos are compared as a whole, too: `look` and `scene`.
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
        unlike=separability(*scaled(under, other_under)),
        middle=float(np.median(beside)) if beside.size else 0.0,
        look=told_by_look(photos, other_photos) if whole else 0.5,
        scene=told_by_scene(photos, other_photos) if whole else 1.0,
    )


def alike(heat: Float, photos: Photos, other_photos: Photos) -> NDArray[np.bool_]:
    """Return which photos of a cluster show what most of them show under the heat: bool (m,).

    Only the hot pixels that differ least among the members are compared: of the pixels whose spread
    (see `spreads`) is at most `COMMON`, the quarter with the smallest spread. A photo shows the
    same if its mean distance there from the members' median is nearer to the median distance of the
    members than to that of the other photos.

    Args:
        heat: the maps of the photos, float32 (m, h, w), 0 … 1.
        photos, other_photos: uint8 (m, H, W, 3), at least one each.
    """
    place = resize(hot_place(heat).astype(np.float32), *photos.shape[1:3]) >= 0.5
    spread = spreads(photos, other_photos)
    common = place & (spread <= COMMON)
    if not common.any():
        return np.ones(len(photos), bool)
    # A quarter, because the digits of a date differ, but not its background.
    common &= spread <= np.quantile(spread[common], 0.25)
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
    """Return the spread of the members' values, divided by the spread of the others' values.

    The spread is the median absolute deviation from the median, averaged over the channels, in
    grey levels. Unlike the variance, it hardly changes if a tenth of the members are wrong. A
    spread of the others below `LEAST_SPREAD` counts as `LEAST_SPREAD`.

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
    of the mean variance of the two groups, in the channel in which this is largest. A mean variance
    below `LEAST_SPREAD`² counts as `LEAST_SPREAD`².

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


def _with_edges(photos: Photos) -> Float:
    """Return the photos with the strength of their edges as a fourth channel, float32 (m, H, W, 4).
    The mean colour alone may miss a pattern of several colours."""
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
    """The thumbnails of a class. Each one is read at most once.

    Args:
        photos: uint8 (H, W, 3) each; None for a photo that cannot be read.
        seed: seed of the order in which photos are drawn. All clusters use the same order, so
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

        Args:
            numbers: the photos to choose from.

        Raises:
            InvalidImages: if one of them is not uint8 (H, W, 3), or differs in size from the first.
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
