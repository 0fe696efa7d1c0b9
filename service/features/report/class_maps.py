"""The maps of one class, kept small to find their clusters, and the clusters as a table."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from cam.clusters import Clusters, reduced
from cam.drawing.placement import Float

MOST: Final = 20_000
"""Largest number of maps of a batch or a job that are clustered. Their time, about 3 ms each, is a
tenth of the time in which a processor explains them."""
COLUMNS: Final = ("id", "number", "class", "cluster", "suspect", "reasons", "x", "y")
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""Characters with which a formula begins in a spreadsheet."""


@dataclass(eq=False)
class ClassMaps:
    """At most one map of each image. Maps of one image by several methods resemble each other more
    than they resemble maps of other images, and would be clusters of their own."""

    name: str
    """Name of the class."""
    ids: list[str] = field(default_factory=list)
    """Id of each map's image."""
    numbers: list[int] = field(default_factory=list)
    """Number of each map among the maps of its image."""
    maps: list[Float] = field(default_factory=list)
    """Each float32 (h, w), at least 0, with a longer side of at most 14."""

    def add(self, image: str, number: int, values: Float) -> None:
        self.ids.append(image)
        self.numbers.append(number)
        self.maps.append(reduced(values))


class Written(Protocol):
    """A text file that is open for writing."""

    def write(self, text: str, /) -> object: ...


def write_table(classes: Iterable[tuple[ClassMaps, Clusters]], file: Written) -> None:
    """Write a CSV table (RFC 4180) with the columns `COLUMNS` and a row for each map: whose it is,
    the number of its cluster in the class, whether this is suspect and why, and the map's position
    in two dimensions. A map that shows nothing has no cluster and no position.

    An id or a class that begins with one of `FORMULA` has an apostrophe before it. Ids are names of
    files, which anybody may have chosen; a spreadsheet would compute one that is a formula."""
    table = csv.writer(file)
    table.writerow(COLUMNS)
    for maps, clusters in classes:
        told = [
            (number, str(cluster.suspect).lower(), "; ".join(cluster.reasons))
            for number, cluster in enumerate(clusters.clusters)
        ]
        for image, number, label, place in zip(
            maps.ids,
            maps.numbers,
            clusters.labels.tolist(),
            clusters.embedding.tolist(),
            strict=True,
        ):
            of_cluster = ("", "", "") if label < 0 else told[label]
            x, y = (f"{number_:.6g}" if math.isfinite(number_) else "" for number_ in place)
            table.writerow((_text(image), number, _text(maps.name), *of_cluster, x, y))


def _text(cell: str) -> str:
    """Return what a spreadsheet takes for this text."""
    return f"'{cell}" if cell.startswith(FORMULA) else cell
