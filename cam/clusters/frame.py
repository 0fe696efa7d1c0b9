"""Compare classes with each other: a place of the frame at which one class alone looks.

Clusters of one class's maps cannot show a mark that most of its photos carry: the marked photos are
the class. But then the maps agree on one place of the frame, whatever the photos show elsewhere,
and the maps of other classes have little heat there.
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
ELSEWHERE: Final = 0.1
"""Largest share of any other class's maps that look at the place."""
AREA: Final = 0.3
"""Largest share of the frame that is one place."""
THIRD: Final = 1 / 3
STEADY: Final = 0.1
"""Largest unsteadiness of maps whose photos do not show that they look at the same thing."""


@dataclass(frozen=True, eq=False)
class OwnPlace:
    """A place of the frame at which most maps of one class look, and hardly any of another class.

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
    """Largest share of another class's maps that look there."""
    unsteadiness: float
    """How much the patterns of the members' maps differ: see `cam.clusters.suspects`."""
    appearance: Appearance | None
    """What the members' photos show there, against other classes' photos; None without photos."""

    def sentence(self, name: str) -> str:
        """Return what was found about the class of this name, without a full stop."""
        count = len(self.members)
        many = f"all {count} maps" if count == self.maps else f"{count} of {self.maps} maps"
        seen = self.appearance
        shown = ", and the photos show the same thing there" if seen and seen.same_thing else ""
        return f"{many} of {name!r} look {self.where}, where no other class looks{shown}"


def own_places(
    classes: Sequence[tuple[Iterable[Float], Sequence[Photos | None] | None]], seed: int = 0
) -> list[OwnPlace]:
    """Find the classes whose maps agree on a place of the frame that is no other class's.

    The place of a class is where the median of its maps is at least half of the median's maximum.
    It counts if

    - it is at most `AREA` of the frame and not in the middle, where objects are;
    - at least half of the class's maps look there: they have at least half of their heat there;
    - of each other class with enough maps, at most `ELSEWHERE` of the maps look there;
    - and the maps that look there have one cause: their photos show the same thing there and differ
      elsewhere, against photos of other classes, or their patterns differ by at most `STEADY`.

    Args:
        classes: each class's maps, float32 (h, w) each, and its photos, as `find_clusters` takes
            them. At least two classes with `LEAST_MAPS` maps are needed; others are left out.
        seed: of the choice of photos.

    Returns:
        At most one place of each class, in the classes' order.

    Raises:
        InvalidImages: as `find_clusters`.
    """
    found = _Frame(classes, seed)
    return [place for number in found.large if (place := found.place_of(number)) is not None]


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
                for each in maps:
                    owners.append(number)
                    yield each

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
        where = in_words(hot)
        if where is None or hot.mean() > AREA:
            return None
        looks = self.shares[:, hot].sum(1) >= MOST_OF
        members = mine[looks[mine]]
        elsewhere = max(
            float(looks[self.rows[each]].mean()) for each in self.large if each != number
        )
        if len(members) < MOST_OF * len(mine) or elsewhere > ELSEWHERE:
            return None
        spread = unsteadiness(self.maps[members])
        seen = self._look(number, members)
        steady = spread <= STEADY and int(hot.sum()) >= LEAST_HOT
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
            where=where,
            elsewhere=elsewhere,
            unsteadiness=spread,
            appearance=seen,
        )

    def _look(self, number: int, members: NDArray[np.int64]) -> Appearance | None:
        """Compare photos of maps of a class with photos of the other classes; None if too few of
        them can be read."""
        others = [each for each in self.large if each != number]
        each_few = -(-OTHERS // len(others))
        mine = self._photos_of(number, members, MEMBERS)
        found = [self._photos_of(each, self.rows[each], each_few) for each in others]
        beside = [each for each in found if len(each[0])]
        if min(len(mine[0]), sum(len(each) for each, _ in beside)) < LEAST_PHOTOS:
            return None
        rows, photos = (np.concatenate(each) for each in zip(*beside, strict=True))
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
    words = " ".join(each for each in (vertical, across) if each)
    return f"at the {words}" if words else "around the middle"
