"""The clusters of each class's maps, the suspect ones first, as the report shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from cam.clusters import FEWEST, Cluster, Clusters, find_clusters, own_places
from cam.drawing.placement import Box
from service.core.files import written_whole
from service.features.report.census import ClassCount, ClassKey, Sample, class_of
from service.features.report.class_maps import ClassMaps, write_table
from service.features.report.means import map_of
from service.features.report.page import draw_map
from service.features.report.pictures import CoveredPhotos, Read, show
from service.features.tables.rows import HALVES, Row

Item = TypeVar("Item")
DOTS: Final = 2000
"""Largest number of maps in the scatter plot of a class, and at least one of each cluster."""
MEMBERS: Final = 200
"""Largest number of maps of a suspect cluster that are shown in addition to the sample."""
PROTOTYPES: Final = 2000
"""Largest number of prototypes that are shown in addition to the sample, over all clusters."""
COLOURS: Final = 8
"""Number of colours of clusters in report_style.css."""
MOST_USED: Final = 20_000_000
"""Largest count of numbers of one class by which its photos are grouped, in about 400 MB: 10,000
photos of a layer of 2,000 channels."""
FULL: Final = 24
"""Number of classes whose clusters have pictures of photos; suspect clusters always have them."""


@dataclass(eq=False)
class ClassRows(ClassMaps):
    """The maps of one class, and what the page needs of their rows."""

    rows: list[int] = field(default_factory=list)
    """Number of each map's row in the manifest."""
    pictures: list[str | None] = field(default_factory=list)
    boxes: list[Box | None] = field(default_factory=list)
    """The part of the photo that each map covers."""
    used: list[NDArray[np.float16] | None] = field(default_factory=list)
    """What the model used for each map, (K,)."""

    def take(self, row: Row, at: int) -> None:
        values = map_of(row)
        # A map that is missing shows nothing, as a constant one.
        self.add(row.id, row.number, np.zeros((1, 1), np.float32) if values is None else values)
        self.rows.append(at)
        self.pictures.append(row.picture)
        self.boxes.append(_covers(row))
        self.used.append(_used(row))

    @property
    def uses(self) -> list[NDArray[np.float16] | None] | None:
        """What the model used for the maps; None if they are not of one layer, or too many to be
        compared."""
        sizes = {len(each) for each in self.used if each is not None}
        few = len(sizes) == 1 and len(self.used) * max(sizes) <= MOST_USED
        return self.used if few else None


@dataclass(frozen=True, eq=False)
class ClassClusters:
    """The clusters of one class."""

    position: int
    """Index of the class in the census."""
    count: ClassCount
    maps: ClassRows
    found: Clusters
    looked: bool
    """Whether photos could be read, but for `found.unreadable` of them."""
    place: str | None = None
    """Sentence about the place of the frame at which hardly another class looks, if there is
    one."""
    by_use: bool = False
    """Whether what the model used was compared, too."""

    @property
    def suspects(self) -> int:
        return sum(cluster.suspect for cluster in self.found.clusters)


@dataclass(frozen=True)
class Prototype:
    """One of the most typical maps of a cluster, as the page shows it."""

    row: int
    """Number of its row in the manifest."""
    id: str
    """Id of the image."""
    thumbnail: str
    """As a data URI."""


@dataclass(frozen=True)
class ClusterPortrait:
    """A cluster as the page shows it."""

    number: int
    """Number of the cluster in its class, from 0."""
    maps: int
    share: float
    """Its maps as a share of those of the class that were clustered."""
    suspect: bool
    why: str
    """Its reasons as one sentence; empty if there are none."""
    mean: str
    """The mean map as a data URI."""
    prototypes: tuple[Prototype, ...]

    @property
    def colour(self) -> int:
        return self.number % COLOURS


@dataclass(frozen=True)
class ClustersPortrait:
    """A class's clusters as the page shows them."""

    position: int
    name: str
    maps: int
    """Number of maps that were clustered."""
    note: str | None
    """Why the maps were not split, so that no cluster was tested; None if they were."""
    place: str | None
    """Sentence about the place of the frame at which hardly another class looks, if there is
    one."""
    clusters: tuple[ClusterPortrait, ...]
    dots: tuple[tuple[int, str], ...]
    """Colour of a cluster, and an SVG path with a dot for each of its maps, in 0 … 100."""

    @property
    def grouped(self) -> int:
        """Number of maps in clusters. A map that shows nothing is in none."""
        return sum(cluster.maps for cluster in self.clusters)

    @property
    def suspects(self) -> list[ClusterPortrait]:
        return [cluster for cluster in self.clusters if cluster.suspect]

    @property
    def others(self) -> list[ClusterPortrait]:
        return [cluster for cluster in self.clusters if not cluster.suspect]


def cluster_classes(
    rows: Iterable[Row], classes: Sequence[ClassCount], read: Read | None, most: int
) -> list[ClassClusters]:
    """Find the clusters of each class of at least `cam.clusters.FEWEST` images, and the places of
    the frame that are hardly another class's. Of an image, only the first map of the class counts.

    Args:
        rows: rows of the manifest with their maps and with what the model used, read once.
        classes: the classes, as the census has them.
        read: returns the bytes of the image with an id; None if the images cannot be read.
        most: largest number of images in total. Of more, as many of each class are taken as there
            is room for, evenly spaced.

    Returns:
        The classes, those with a place of their own first, then those with the most suspicious
        clusters, then in the given order.
    """
    large = {class_.key: class_ for class_ in classes if class_.images >= FEWEST}
    sample = Sample({key: class_.images for key, class_ in large.items()}, most)
    kept = _collected(rows, large, sample)
    photos = {
        key: None if read is None else CoveredPhotos(read, maps.ids, maps.boxes)
        for key, maps in kept.items()
    }
    places = own_places([(maps.maps, photos[key]) for key, maps in kept.items()])
    keys = list(kept)
    place_of = {
        keys[place.class_]: _sentence(
            place.sentence(keys[place.class_].name, [keys[other].name for other in place.shared])
        )
        for place in places
    }
    clustered = [
        replace(
            _clustered(position, count, kept[count.key], photos[count.key]),
            place=place_of.get(count.key),
        )
        for position, count in enumerate(classes)
        if count.key in kept
    ]
    return sorted(clustered, key=_rank)


def _rank(class_: ClassClusters) -> tuple[bool, float]:
    # The first cluster of a class is the most suspicious one.
    return class_.place is None, -class_.found.clusters[0].suspicion if class_.suspects else 0.0


def _collected(
    rows: Iterable[Row], classes: Mapping[ClassKey, ClassCount], sample: Sample
) -> dict[ClassKey, ClassRows]:
    kept = {key: ClassRows(key.name) for key in classes}
    latest: dict[ClassKey, str] = {}
    for at, row in enumerate(rows):
        key = class_of(row)
        if row.error is not None or key not in kept or latest.get(key) == row.id:
            continue
        latest[key] = row.id
        if sample.takes(key):
            kept[key].take(row, at)
    return kept


def _clustered(
    position: int, count: ClassCount, maps: ClassRows, photos: CoveredPhotos | None
) -> ClassClusters:
    used = maps.uses
    clusters = find_clusters(maps.maps, photos, used=used)
    looked = photos is not None and (photos.any_read or not clusters.unreadable)
    by_use = looked and used is not None and all(each is not None for each in used)
    return ClassClusters(position, count, maps, clusters, looked, by_use=by_use)


def _used(row: Row) -> NDArray[np.float16] | None:
    """Return what a row says that the model used; None if it is missing or invalid."""
    if not row.used or len(row.used) % HALVES.itemsize:
        return None
    values = np.frombuffer(row.used, HALVES)
    return values if np.isfinite(values).all() else None


def _covers(row: Row) -> Box | None:
    edges = (row.covers_left, row.covers_top, row.covers_right, row.covers_bottom)
    left, top, right, bottom = edges
    if left is None or top is None or right is None or bottom is None:
        return None
    return Box(left, top, right, bottom) if left < right and top < bottom else None


def labels_of(classes: Iterable[ClassClusters]) -> dict[int, int]:
    """Return the cluster of each clustered map: number of its row in the manifest → number of the
    cluster in its class."""
    return {
        row: label
        for class_ in classes
        for row, label in zip(class_.maps.rows, class_.found.labels.tolist(), strict=True)
        if label >= 0
    }


def suspect_rows(classes: Iterable[ClassClusters], most: int) -> set[int]:
    """Return the row numbers of members of suspect clusters, at most `MEMBERS` of each, evenly
    spaced, and at most `most` in total, those of the most suspicious clusters first."""
    suspects = sorted(
        (
            (class_, cluster)
            for class_ in classes
            for cluster in class_.found.clusters
            if cluster.suspect
        ),
        key=lambda pair: -pair[1].suspicion,
    )
    chosen: list[int] = []
    for class_, cluster in suspects:
        chosen += [class_.maps.rows[number] for number in spaced(cluster.members.tolist(), MEMBERS)]
    return set(chosen[:most])


def prototype_rows(classes: Iterable[ClassClusters]) -> set[int]:
    """Return the row numbers of the clusters' prototypes, so that no cluster is without a map on
    the page. Of more than `PROTOTYPES`, the most typical one of each cluster comes first."""
    ranked = [
        (rank, class_.maps.rows[number])
        for class_ in classes
        for cluster in class_.found.clusters
        for rank, number in enumerate(cluster.prototypes.tolist())
    ]
    ranked.sort(key=lambda pair: pair[0])
    return {row for _, row in ranked[:PROTOTYPES]}


def write_clusters(classes: Iterable[ClassClusters], file: Path) -> None:
    """Write the table of all clustered maps. The file appears only when it is complete.

    Raises:
        OSError: if it cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with (
        written_whole(file) as temporary,
        temporary.open("w", encoding="utf-8", errors="replace", newline="") as written,
    ):
        write_table(((class_.maps, class_.found) for class_ in classes), written)


def portray(classes: Sequence[ClassClusters], output: Path, page: Path) -> list[ClustersPortrait]:
    """Draw the clusters of the classes.

    Args:
        output: the folder that contains the batch's pictures.
        page: the HTML file.
    """
    portraits = []
    for place, class_ in enumerate(classes):
        clusters = tuple(
            _portrait(number, cluster, class_.maps, output, page, cluster.suspect or place < FULL)
            for number, cluster in enumerate(class_.found.clusters)
        )
        portraits.append(
            ClustersPortrait(
                position=class_.position,
                name=class_.count.key.name,
                maps=int((class_.found.labels >= 0).sum()),
                note=class_.found.note,
                place=class_.place,
                clusters=clusters,
                dots=() if class_.found.note else tuple(_dots(class_.found)),
            )
        )
    return portraits


def _portrait(
    number: int, cluster: Cluster, maps: ClassRows, output: Path, page: Path, pictures: bool
) -> ClusterPortrait:
    shown = cluster.prototypes.tolist() if pictures else []
    return ClusterPortrait(
        number=number,
        maps=len(cluster.members),
        share=cluster.evidence.share,
        suspect=cluster.suspect,
        why=_sentence("; ".join(cluster.sentences)),
        mean=draw_map(cluster.mean),
        prototypes=tuple(
            Prototype(maps.rows[index], maps.ids[index], _picture(maps, index, output, page))
            for index in shown
        ),
    )


def _sentence(words: str) -> str:
    """Return words as a sentence; empty if there are none."""
    return f"{words[:1].upper()}{words[1:]}." if words else ""


def _picture(maps: ClassRows, number: int, output: Path, page: Path) -> str:
    """Return the thumbnail of a map's picture; of the map alone if the batch has no pictures."""
    return show(maps.pictures[number], output, page).thumbnail or draw_map(maps.maps[number])


def _dots(clusters: Clusters) -> Iterable[tuple[int, str]]:
    """Yield the dots of each cluster. Suspect clusters come last, so that they lie on top."""
    shown = np.flatnonzero(clusters.labels >= 0)
    positions = clusters.embedding
    low, high = positions[shown].min(0), positions[shown].max(0)
    places = 2 + 96 * (positions - low) / np.maximum(high - low, 1e-9)
    room = min(DOTS / len(shown), 1)
    for number, cluster in reversed([*enumerate(clusters.clusters)]):
        members = spaced(cluster.members.tolist(), max(int(len(cluster.members) * room), 1))
        path = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in places[members])
        yield number % COLOURS, path


def spaced(items: Sequence[Item], most: int) -> list[Item]:
    """Return at most `most` of the items, evenly spaced."""
    count = min(len(items), most)
    return [items[number * len(items) // count] for number in range(count)]
