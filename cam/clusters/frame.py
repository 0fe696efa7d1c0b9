"""Compare classes with each other: a place of the frame at which hardly another class looks.

Clusters of one class's maps cannot show a mark that most of its photos carry: the marked photos are
the class. But then the maps agree on one place of the frame, whatever the photos show elsewhere,
and maps of other classes do not lie as they do.
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
from cam.drawing.heatmap import Float

Mask = NDArray[np.bool_]

LEAST_MAPS: Final = 30
"""Least number of maps of a class that is compared."""
LEAST_PHOTOS: Final = 8
"""Least number of photos of a class, and of others, that are compared."""
MOST_OF: Final = 0.5
"""Share of a map's heat in a place from which on the map looks there, and share of a class's maps
from which on the class does."""
AS_THESE: Final = 0.1
"""Quantile of the overlaps of a class's maps with its typical map from which on a map lies as they
do. Half of the heat of an object at a random place may lie in a third of the frame by chance, but
not in the same pattern."""
ELSEWHERE: Final = 0.05
"""Share of another class's maps that may lie as these do; more of them do so by chance."""
CHANCE: Final = 0.05
"""Probability that as many maps of any of the other classes lie as these do by chance, below which
that class looks there, too."""
HARDLY: Final = 0.1
"""Largest share of any other class's maps that have half of their heat in a place at which, as it
is said, no other class looks."""
AREA: Final = 0.4
"""Largest share of the frame that is one place."""
AREA_OF_A_THING: Final = 0.75
"""The same if the photos show the same thing there, such as a border around them."""
THIRD: Final = 1 / 3
STEADY: Final = 0.1
"""Largest unsteadiness of maps whose photos do not show that they look at the same thing."""


@dataclass(frozen=True, eq=False)
class OwnPlace:
    """A place of the frame at which most maps of one class look, and those of most classes do not.

    It is a reason to look at the photos. If the objects of the class lie there on all photos, such
    as a road below its cars, nothing is wrong.
    """

    class_: int
    """Position of the class among the given classes."""
    members: NDArray[np.int64]
    """Positions of the maps that look there among the class's maps, int64, ascending."""
    maps: int
    """Number of the class's maps that show something."""
    place: tuple[float, float]
    """Centre of the place, (x, y) as shares of the width and the height, 0 … 1."""
    where: str
    """The place in words, such as "at the bottom left"."""
    elsewhere: float
    """Largest share of another class's maps that look there, but for the classes that share the
    place."""
    unsteadiness: float
    """How much the patterns of the members' maps differ: see `cam.clusters.suspects`."""
    appearance: Appearance | None
    """What the members' photos show there, against other classes' photos; None without photos."""
    shared: tuple[int, ...] = ()
    """Positions of other classes whose maps lie there in the same way, ascending."""

    def sentence(self, name: str, others: Sequence[str] = ()) -> str:
        """Return what was found about the class of this name, without a full stop.

        Args:
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
    """Find the classes whose maps agree on a place of the frame that is hardly another class's.

    The place of a class is where the median of its maps is at least half of the median's maximum.
    It counts if

    - it is at most `AREA` of the frame, or `AREA_OF_A_THING` if the photos show the same thing;
    - at least half of the class's maps look there: they have at least half of their heat there;
    - at most half of the classes look there. Another class does if more than `ELSEWHERE` of its
      maps, beyond chance, overlap with these maps' median as well as most of these do;
    - and the maps that look there have one cause: their photos show the same thing there and differ
      elsewhere, against photos of other classes, or their patterns differ by at most `STEADY`. The
      middle of the frame, where objects are, counts only if the photos show the same thing there.

    Args:
        classes: each class's maps, float32 (h, w) each, and its photos, as `find_clusters` takes
            them. At least two classes with `LEAST_MAPS` maps are needed; others are left out.
        seed: of the choice of photos.

    Returns:
        At most one place of each class, in the classes' order.

    Raises:
        InvalidImages: as `find_clusters`.
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
        """Of each class, the positions of its maps among those that show something."""
        starts = np.searchsorted(np.array(owners), np.arange(len(classes)))
        self.own = gridded.kept - starts[kept]
        """Position of each map among the maps of its class."""
        large = [number for number, rows in enumerate(self.rows) if len(rows) >= LEAST_MAPS]
        self.large = large if len(large) > 1 else []
        self.photos = [
            None if photos is None else Thumbnails(photos, seed) for _, photos in classes
        ]

    def place_of(self, number: int) -> OwnPlace | None:
        """Return the place of a class; None if it has none of its own."""
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
        """Return the other classes of which more maps lie as the members do than by chance."""
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
        """Compare photos of maps of a class with photos of the classes that do not share its place;
        None if too few of them can be read."""
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
        """Return whose photos could be read of some of a class's maps, and at most `most` photos,
        uint8 (m, H, W, 3)."""
        thumbnails = self.photos[number]
        if thumbnails is None:
            return np.zeros(0, np.int64), np.zeros((0, 1, 1, 3), np.uint8)
        numbers, photos = thumbnails.some(self.own[rows], most)
        return rows[np.searchsorted(self.own[rows], numbers)], photos


def in_words(place: Mask) -> str | None:
    """Return where a place of the frame is, bool (h, w), as words such as "at the bottom left";
    None if it reaches the middle of the frame, where most objects are."""
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
