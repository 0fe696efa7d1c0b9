"""The clusters of the maps of a job that has ended, class by class."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from cachetools import LRUCache
from PIL import Image

from cam.clusters import FEWEST, Cluster, Clusters, find_clusters
from cam.drawing.heatmap import Float
from service.core.cluster_schemas import (
    ClusteredClass,
    ClusterPlace,
    ClustersOfClass,
    JobClusters,
    MapCluster,
)
from service.core.schemas import ExplainedTarget
from service.jobs.errors import UnknownJob
from service.jobs.folder import Folder
from service.jobs.records import Job
from service.jobs.result_store import ResultStore, line_of
from service.pipeline.class_maps import MOST, ClassMaps, write_table
from service.pipeline.json_records import title_of

PAGE: Final = 100
KEPT: Final = 2
"""Largest number of jobs whose clusters are kept in memory, about 20 MB each."""
DIGITS: Final = 4


@dataclass(frozen=True, slots=True)
class Key:
    """A class. A label alone does not identify it: two classes may be called crane."""

    index: int | None
    label: str


@dataclass(frozen=True, eq=False)
class Found:
    key: Key
    maps: ClassMaps
    clusters: Clusters | None
    """None if the class has too few maps."""


class Clusterings:
    """Finds the clusters of jobs. Each method blocks, for a minute if there are many maps.

    The photos of a job may be gone when it has ended, so that its maps are the only evidence.
    """

    def __init__(self, results: ResultStore, folder: Folder) -> None:
        self._results = results
        self._folder = folder
        self._known: LRUCache[str, list[Found]] = LRUCache(KEPT)

    def document(self, job: Job) -> JobClusters:
        """Return the clusters of a job of kind "explain" that has ended.

        Raises:
            InternalError: if a result is gone from the disk.
            UnknownJob: if the job was removed meanwhile.
        """
        return JobClusters(classes=[_describe(each) for each in self._found(job)])

    def table(self, job: Job) -> str:
        """Return the table of the clustered maps in CSV; see `write_table`. It raises the same."""
        file = io.StringIO(newline="")
        found = self._found(job)
        write_table(((each.maps, each.clusters) for each in found if each.clusters), file)
        return file.getvalue()

    def _found(self, job: Job) -> list[Found]:
        found = self._known.get(job.id)
        if found is None:
            found = [_clustered(key, maps) for key, maps in self._maps(job).items()]
            found.sort(key=_rank)
            self._known[job.id] = found
        return found

    def _maps(self, job: Job) -> dict[Key, ClassMaps]:
        """Return the maps of each class, one of each item: of several methods the first. Of more
        than `MOST` items, as many are read, evenly spaced."""
        step = max(-(-job.done // MOST), 1)
        classes: dict[Key, ClassMaps] = {}
        for line in self._lines(job, step):
            for number, explanation in enumerate(line["explanations"]):
                target = ExplainedTarget.model_validate(explanation["target"])
                key = Key(target.index, title_of(target))
                maps = classes.setdefault(key, ClassMaps(key.label))
                if not maps.has(line["item"]):
                    maps.add(line["item"], number, map_of(explanation["heatmap"]))
        return classes

    def _lines(self, job: Job, step: int) -> Iterator[dict[str, Any]]:
        """Yield the results of every `step`-th item that is explained, in the order of the
        items."""
        after, told, explained = -1, 0, 0
        while page := self._results.in_order(job, after, PAGE):
            for each in page:
                if each.problem is None:
                    if explained % step == 0:
                        yield json.loads(line_of(self._folder, job, each))
                    explained += 1
            after, told = page[-1].number, told + len(page)
        if told < job.settled:
            raise UnknownJob(f"job {job.id} was removed while its results were read")


def map_of(heatmap: dict[str, Any]) -> Float:
    """Return the map of a result as float32 (h, w). An 8-bit map is 0 … 255; where the clusters are
    found, each map is scaled."""
    data = base64.b64decode(heatmap["data"])
    if heatmap["encoding"] == "float32":
        return np.frombuffer(data, "<f4").reshape(heatmap["shape"])
    with Image.open(io.BytesIO(data)) as drawn:  # the service drew it, in gray
        return np.asarray(drawn, np.float32)


def _clustered(key: Key, maps: ClassMaps) -> Found:
    return Found(key, maps, find_clusters(maps.maps) if len(maps.ids) >= FEWEST else None)


def _rank(found: Found) -> tuple[float, int, str]:
    """Return what classes are sorted by: the most suspicious one first, then the largest."""
    clusters = found.clusters.clusters if found.clusters else ()
    suspicion = max((each.suspicion for each in clusters if each.suspect), default=0.0)
    return -suspicion, -len(found.maps.ids), found.key.label


def _describe(found: Found) -> ClustersOfClass:
    count = len(found.maps.ids)
    note: str | None = f"{count} maps are too few to be split into clusters; {FEWEST} are needed"
    clusters: tuple[Cluster, ...] = ()
    if found.clusters is not None:
        note, clusters = found.clusters.note, found.clusters.clusters
    return ClustersOfClass(
        class_=ClusteredClass(index=found.key.index, label=found.key.label),
        maps=count,
        note=note,
        clusters=[_cluster(number, each, found.maps) for number, each in enumerate(clusters)],
    )


def _cluster(number: int, cluster: Cluster, maps: ClassMaps) -> MapCluster:
    members = cluster.members.tolist()
    x, y = cluster.place
    return MapCluster(
        cluster=number,
        suspect=cluster.suspect,
        reasons=list(cluster.reasons),
        sentences=list(cluster.sentences),
        items=[maps.ids[each] for each in members],
        numbers=[maps.numbers[each] for each in members],
        mean=[[round(float(each), DIGITS) for each in row] for row in cluster.mean],
        place=ClusterPlace(x=round(x, DIGITS), y=round(y, DIGITS)),
        border=round(cluster.border, DIGITS),
        tightness=round(cluster.tightness, DIGITS),
    )
