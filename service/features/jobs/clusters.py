"""The clusters of the maps of a job that has ended, class by class."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, replace
from typing import Final

from cachetools import LRUCache

from cam.clusters import (
    FEWEST,
    Cluster,
    Clusters,
    OwnPlace,
    find_clusters,
    own_places,
    reduced,
    too_few,
)
from cam.counts import counted
from cam.drawing.placement import Float
from service.features.jobs.cluster_schemas import (
    ClusteredClass,
    ClusterPlace,
    ClustersOfClass,
    JobClusters,
    MapCluster,
)
from service.features.jobs.cluster_schemas import OwnPlace as PlaceSchema
from service.features.jobs.errors import NoMaps
from service.features.jobs.job_files import Folder
from service.features.jobs.records import Job
from service.features.jobs.results import ResultStore, all_finished, maps_of
from service.features.report.census import ClassKey
from service.features.report.class_maps import MOST, ClassMaps, write_table
from service.pipeline.json_records import title_of

MOST_PIXELS: Final = 4_000_000_000
"""Largest number of pixels of all maps that are read, in about 40 s."""
KEPT: Final = 2
"""Largest number of jobs whose clusters are kept in memory, about 20 MB each."""
DIGITS: Final = 4


@dataclass(frozen=True, eq=False)
class ClusteredMaps:
    key: ClassKey
    maps: ClassMaps
    clusters: Clusters | None
    """None if the class has too few maps."""
    place: OwnPlace | None = None
    """The place of the frame at which hardly another class looks, if there is one."""
    shared: tuple[str, ...] = ()
    """The labels of the classes that share the place."""


@dataclass(frozen=True, eq=False)
class Clustering:
    """The clusters of a job."""

    classes: list[ClusteredMaps]
    explained: int
    """Number of items that are explained."""
    read: int
    """Number of these whose maps were read."""


class Clusterings:
    """Finds the clusters of jobs. Each method blocks, for a minute if there are many maps.

    The photos of a job may be gone when it has ended, so that its maps are the only evidence.
    """

    def __init__(self, results: ResultStore, folder: Folder) -> None:
        self._results = results
        self._folder = folder
        self._known: LRUCache[str, Clustering] = LRUCache(KEPT)

    def document(self, job: Job) -> JobClusters:
        """Return the clusters of a job of kind "explain" that has ended.

        Raises:
            NoMaps: if no item was explained.
            InternalError: if a result is gone from the disk.
            UnknownJob: if the job was removed meanwhile.
        """
        clustering = self._found(job)
        note = None
        if clustering.read < clustering.explained:
            note = (
                f"{clustering.read} of {clustering.explained} items were read, evenly spaced: at "
                f"most {MOST:,} maps are clustered, of at most {MOST_PIXELS:,} pixels in total; "
                "with size=layer a job's maps are small"
            )
        classes = [_describe(class_) for class_ in clustering.classes]
        return JobClusters(
            explained=clustering.explained, read=clustering.read, note=note, classes=classes
        )

    def table(self, job: Job) -> str:
        """Return the table of the clustered maps in CSV; see `write_table`.

        Raises:
            NoMaps: also if no class has enough maps.
            InternalError, UnknownJob: as `document`.
        """
        clustering = self._found(job)
        if not any(class_.clusters for class_ in clustering.classes):
            largest = max(clustering.classes, key=lambda class_: len(class_.maps.ids))
            raise NoMaps(
                f"no class of job {job.id} has the {FEWEST} maps that clusters need; the largest, "
                f"{largest.key.name[:80]!r}, has {len(largest.maps.ids)}"
            )
        file = io.StringIO(newline="")
        write_table(
            ((class_.maps, class_.clusters) for class_ in clustering.classes if class_.clusters),
            file,
        )
        return file.getvalue()

    def _found(self, job: Job) -> Clustering:
        clustering = self._known.get(job.id)
        if clustering is None:
            maps, explained, read = self._maps(job)
            if not maps:
                items = counted(job.total, "item")
                why = f"{job.failed} of its {items} failed" if job.failed else "no item"
                raise NoMaps(f"job {job.id} has no maps: {why}, and none is explained")
            classes = [_clustered(key, of_class) for key, of_class in maps.items()]
            for place in own_places([(class_.maps.maps, None) for class_ in classes]):
                shared = tuple(classes[number].key.name for number in place.shared)
                classes[place.class_] = replace(classes[place.class_], place=place, shared=shared)
            classes.sort(key=_rank)
            clustering = self._known[job.id] = Clustering(classes, explained, read)
        return clustering

    def _maps(self, job: Job) -> tuple[dict[ClassKey, ClassMaps], int, int]:
        """Return the maps of each class, one of each item: of several methods the first. Then the
        number of items that are explained, and of those that were read.

        Of more than `MOST` maps or `MOST_PIXELS` pixels, as many are read, evenly spaced.
        """
        explained = [item for item in all_finished(self._results, job) if item.problem is None]
        maps = pixels = 0
        taken: dict[int, dict[ClassKey, tuple[int, Float]]] = {}
        for rank in spread(len(explained)):
            if maps >= MOST or pixels >= MOST_PIXELS:
                break
            of_item = taken[rank] = {}
            for record in maps_of(self._folder, job, explained[rank]):
                target = record.facts.target
                key = ClassKey(target.index, title_of(target))
                if key not in of_item:
                    of_item[key] = record.number, reduced(record.map)
                pixels += math.prod(record.picture_shape)
            maps += len(of_item)
        classes: dict[ClassKey, ClassMaps] = {}
        for rank in sorted(taken):
            for key, (number, heat) in taken[rank].items():
                of_class = classes.setdefault(key, ClassMaps(key.name))
                of_class.add(explained[rank].id, number, heat)
        return classes, len(explained), len(taken)


def spread(count: int) -> list[int]:
    """Return the numbers 0 … count − 1, ordered so that the first n of them are evenly spaced for
    every n: by their reversed binary digits (van der Corput's sequence)."""
    digits = max(count - 1, 1).bit_length()
    return sorted(range(count), key=lambda number: int(f"{number:0{digits}b}"[::-1], 2))


def _clustered(key: ClassKey, maps: ClassMaps) -> ClusteredMaps:
    return ClusteredMaps(key, maps, find_clusters(maps.maps) if len(maps.ids) >= FEWEST else None)


def _rank(class_: ClusteredMaps) -> tuple[bool, float, int, str]:
    """Return what classes are sorted by: those with a place of their own first, then the most
    suspicious one, then the largest."""
    clusters = class_.clusters.clusters if class_.clusters else ()
    suspicion = max((cluster.suspicion for cluster in clusters if cluster.suspect), default=0.0)
    return class_.place is None, -suspicion, -len(class_.maps.ids), class_.key.name


def _describe(class_: ClusteredMaps) -> ClustersOfClass:
    count = len(class_.maps.ids)
    note: str | None = too_few(count)
    clusters: tuple[Cluster, ...] = ()
    if class_.clusters is not None:
        note, clusters = class_.clusters.note, class_.clusters.clusters
    return ClustersOfClass(
        class_=ClusteredClass(index=class_.key.index, label=class_.key.name),
        maps=count,
        note=note,
        own_place=None if class_.place is None else _place(class_.place, class_),
        clusters=[
            _cluster(number, cluster, class_.maps) for number, cluster in enumerate(clusters)
        ],
    )


def _place(place: OwnPlace, of: ClusteredMaps) -> PlaceSchema:
    members = place.members.tolist()
    x, y = place.place
    return PlaceSchema(
        sentence=place.sentence(of.key.name, of.shared),
        where=place.where,
        place=ClusterPlace(x=round(x, DIGITS), y=round(y, DIGITS)),
        items=[of.maps.ids[member] for member in members],
        numbers=[of.maps.numbers[member] for member in members],
    )


def _cluster(number: int, cluster: Cluster, maps: ClassMaps) -> MapCluster:
    members = cluster.members.tolist()
    x, y = cluster.place
    return MapCluster(
        cluster=number,
        suspect=cluster.suspect,
        reasons=list(cluster.reasons),
        sentences=list(cluster.sentences),
        items=[maps.ids[member] for member in members],
        numbers=[maps.numbers[member] for member in members],
        mean=[[round(float(value), DIGITS) for value in row] for row in cluster.mean],
        place=ClusterPlace(x=round(x, DIGITS), y=round(y, DIGITS)),
        border=round(cluster.border, DIGITS),
        tightness=round(cluster.tightness, DIGITS),
    )
