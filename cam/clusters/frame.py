"""Compare classes: find a place of the frame at which one class looks and hardly any other does.

If most photos of a class have a mark, clusters of the class's maps cannot show it, because the
marked photos are the class. But then most maps of the class lie on one place of the frame, whatever
the photos show elsewhere, and the maps of other classes do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cam.clusters.appearance import (
    MEMBERS,
    OTHERS,
    Appearance,
    Photos,
    Thumbnails,
    appearance,
    hot_place,
)
from cam.clusters.graph import distributions
from cam.clusters.grid import on_one_grid
from cam.clusters.suspects import LEAST_HOT, unsteadiness
from cam.drawing.placement import Float

Mask = NDArray[np.bool_]

LEAST_MAPS: Final = 30
"""Least number of maps that a class needs to be compared."""
LEAST_PHOTOS: Final = 8
"""Least number of photos of a class, and of the other classes, that are needed to compare them."""
MOST_OF: Final = 0.5
"""A map looks at a place if at least this share of its heat is there. A class looks at a place if
at least this share of its maps do."""
AS_THESE: Final = 0.1
"""A map lies as a class's maps do if its overlap with their typical map is at least this quantile
of their own overlaps with it. An object at a random place may have half of its heat in a third of
the frame by chance, but not in the same pattern."""
ELSEWHERE: Final = 0.05
"""Share of another class's maps that may lie as these do. A larger share may still be chance: see
`CHANCE`."""
CHANCE: Final = 0.05
"""Another class looks there, too, if the probability that so many of its maps lie as these do by
chance is below this. It is divided by the number of other classes."""
HARDLY: Final = 0.1
"""Largest share of any other class's maps that may have half of their heat in a place if the
sentence says that no other class looks there."""
AREA: Final = 0.4
"""Largest share of the frame that counts as one place."""
AREA_OF_A_THING: Final = 0.75
"""The same as `AREA`, if the photos show the same thing there, such as a border around them."""
THIRD: Final = 1 / 3
STEADY: Final = 0.1
"""Largest unsteadiness of a class's maps if the photos do not show the same thing there."""


@dataclass(frozen=True, eq=False)
class OwnPlace:
    """A place of the frame at which most maps of one class look, but most classes do not.

    It is a reason to look at the photos. If objects of the class lie there on all photos, such as
    the road under cars, nothing is wrong.
    """

    class_: int
    """Position of the class among the given classes."""
    members: NDArray[np.int64]
    """The maps that look there, as positions among the class's maps, int64, ascending."""
    maps: int
    """Number of the class's maps that show something."""
    place: tuple[float, float]
    """Centre of the place, (x, y) as shares of the width and the height, 0 … 1."""
    where: str
    """The place in words, such as "at the bottom left"."""
    elsewhere: float
    """Largest share of another class's maps that look there. The classes that share the place are
    not counted."""
    unsteadiness: float
    """How much the patterns of the members' maps differ: see `cam.clusters.suspects`."""
    appearance: Appearance | None
    """What the members' photos show there, compared with other classes' photos; None without
    photos."""
    shared: tuple[int, ...] = ()
    """Positions of the other classes whose maps lie there in the same way, ascending."""

    def sentence(self, name: str, others: Sequence[str] = ()) -> str:
        """Return what was found about the class, as a sentence without a full stop.

        Args:
            name: the name of the class.
            others: the names of the classes that share the place.
        """
        count = len(self.members)
        many = f"all {count} maps" if count == self.maps else f"{count} of {self.maps} maps"
        too = f"as maps of {' and '.join(map(repr, others))} do, " if others else ""
        beside = (
            "where no other class looks"
            if self.elsewhere <= HARDLY
            else "unlike those of any other class"
        )
        seen = self.appearance
        shown = ", and the photos show the same thing there" if seen and seen.same_thing else ""
        return f"{many} of {name!r} look {self.where}, {too}{beside}{shown}"


def own_places(
    classes: Sequence[tuple[Iterable[Float], Sequence[Photos | None] | None]], seed: int = 0
) -> list[OwnPlace]:
    """Find the classes whose maps agree on a place of the frame at which hardly any other class
    looks.

    The place of a class is where the median of its maps is at least half of the median's maximum.
    It counts if

    - it is at most `AREA` of the frame, or `AREA_OF_A_THING` if the photos show the same thing;
    - at least half of the class's maps look there: they have at least half of their heat there;
    - at most half of the classes look there. Another class looks there if more than `ELSEWHERE` of
      its maps, beyond chance, overlap with the median of this class's maps as much as most of this
      class's maps do;
    - and the maps that look there have one cause: compared with other classes' photos, their photos
      show the same thing there and differ elsewhere; or their patterns differ by at most `STEADY`.
      The middle of the frame, where objects are, counts only if the photos show the same thing
      there.

    Args:
        classes: for each class, its maps, float32 (h, w) each, and its photos, as `find_clusters`
            takes them. Classes with fewer than `LEAST_MAPS` maps are left out; at least two others
            are needed.
        seed: seed for the choice of photos.

    Returns:
        At most one place for each class, in the order of the classes.

    Raises:
        InvalidImages: as `find_clusters` does.
    """
    frame = _Frame(classes, seed)
    return [place for number in frame.large if (place := frame.place_of(number)) is not None]


class _Frame:
    """The maps of all classes on one grid."""

    def __init__(
        self,
        classes: Sequence[tuple[Iterable[Float], Sequence[Photos | None] | None]],
        seed: int,
    ) -> None:
        owners: list[int] = []

        def owned() -> Iterator[Float]:
            for number, (maps, _) in enumerate(classes):
                for map_ in maps:
                    owners.append(number)
                    yield map_

        gridded = on_one_grid(owned())
        self.maps = gridded.maps
        self.shares = distributions(self.maps).reshape(self.maps.shape)
        kept = np.array(owners, np.int64)[gridded.kept]
        self.rows = [np.flatnonzero(kept == number) for number in range(len(classes))]
        """For each class, the positions of its maps among the maps that show something."""
        starts = np.searchsorted(np.array(owners), np.arange(len(classes)))
        self.own = gridded.kept - starts[kept]
        """Position of each map among the maps of its class."""
        large = [number for number, rows in enumerate(self.rows) if len(rows) >= LEAST_MAPS]
        self.large = large if len(large) > 1 else []
        self.photos = [
            None if photos is None else Thumbnails(photos, seed) for _, photos in classes
        ]

    def place_of(self, number: int) -> OwnPlace | None:
        """Return the place at which only this class looks; None if there is none."""
        mine = self.rows[number]
        hot = hot_place(self.maps[mine])
        if hot.mean() > AREA_OF_A_THING:
            return None
        looks = self.shares[:, hot].sum(1) >= MOST_OF
        members = mine[looks[mine]]
        if len(members) < MOST_OF * len(mine):
            return None
        shared = self._shared(number, members)
        if 2 * (1 + len(shared)) > len(self.large):
            return None
        spread = unsteadiness(self.maps[members])
        seen = self._look(number, members, shared)
        where = in_words(hot)
        steady = where and spread <= STEADY and int(hot.sum()) >= LEAST_HOT and hot.mean() <= AREA
        if (seen and seen.copies) or not (steady or (seen and seen.same_thing)):
            return None
        heat = self.shares[members].mean(0)[hot]
        rows, columns = np.nonzero(hot)
        height, width = hot.shape
        return OwnPlace(
            class_=number,
            members=self.own[members],
            maps=len(mine),
            place=(
                float((columns + 0.5) @ heat / heat.sum() / width),
                float((rows + 0.5) @ heat / heat.sum() / height),
            ),
            where=where or "at the middle",
            elsewhere=max(
                float(looks[self.rows[class_]].mean())
                for class_ in self.large
                if class_ not in (number, *shared)
            ),
            unsteadiness=spread,
            appearance=seen,
            shared=shared,
        )

    def _shared(self, number: int, members: NDArray[np.int64]) -> tuple[int, ...]:
        """Return the other classes that have more maps that lie as the members do than chance would
        give."""
        from scipy.special import bdtrc

        typical = np.median(self.shares[members], axis=0)
        overlaps = np.minimum(self.shares, typical / typical.sum()).sum((1, 2))
        alike = overlaps >= np.quantile(overlaps[members], AS_THESE)
        others = [class_ for class_ in self.large if class_ != number]
        chances = [
            bdtrc(int(alike[rows].sum()) - 1, len(rows), ELSEWHERE)
            for rows in (self.rows[class_] for class_ in others)
        ]
        return tuple(
            other
            for other, chance in zip(others, chances, strict=True)
            if chance < CHANCE / len(others)
        )

    def _look(
        self, number: int, members: NDArray[np.int64], shared: tuple[int, ...]
    ) -> Appearance | None:
        """Compare photos of a class with photos of the classes that do not share its place. Return
        None if too few of the photos can be read."""
        others = [class_ for class_ in self.large if class_ not in (number, *shared)]
        each_few = -(-OTHERS // len(others))
        mine = self._photos_of(number, members, MEMBERS)
        seen = [self._photos_of(class_, self.rows[class_], each_few) for class_ in others]
        beside = [photos for photos in seen if len(photos[0])]
        if min(len(mine[0]), sum(len(rows) for rows, _ in beside)) < LEAST_PHOTOS:
            return None
        rows, photos = (np.concatenate(columns) for columns in zip(*beside, strict=True))
        return appearance(self.maps[mine[0]], mine[1], self.maps[rows], photos)

    def _photos_of(
        self, number: int, rows: NDArray[np.int64], most: int
    ) -> tuple[NDArray[np.int64], Photos]:
        """Read at most `most` photos of some of a class's maps. Return the maps whose photos could
        be read, and these photos, uint8 (m, H, W, 3)."""
        thumbnails = self.photos[number]
        if thumbnails is None:
            return np.zeros(0, np.int64), np.zeros((0, 1, 1, 3), np.uint8)
        numbers, photos = thumbnails.some(self.own[rows], most)
        return rows[np.searchsorted(self.own[rows], numbers)], photos


def in_words(place: Mask) -> str | None:
    """Return in words where a place of the frame is, such as "at the bottom left"; None if it
    includes the middle of the frame, where most objects are.

    Args:
        place: bool (h, w).
    """
    height, width = place.shape
    middle = place[(height - 1) // 2 : height // 2 + 1, (width - 1) // 2 : width // 2 + 1]
    if middle.any() or not place.any():
        return None
    rows, columns = np.nonzero(place)
    y, x = (rows.mean() + 0.5) / height, (columns.mean() + 0.5) / width
    vertical = "top" if y < THIRD else "bottom" if y > 1 - THIRD else ""
    across = "left" if x < THIRD else "right" if x > 1 - THIRD else ""
    words = " ".join(word for word in (vertical, across) if word)
    return f"at the {words}" if words else "around the middle"
