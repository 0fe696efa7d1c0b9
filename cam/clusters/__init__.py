"""Clusters of one class's maps, to find photos for which the model looks at something else."""

from cam.clusters.find import FEWEST, Cluster, Clusters, find_clusters, too_few
from cam.clusters.frame import OwnPlace, own_places
from cam.clusters.grid import reduced

__all__ = [
    "FEWEST",
    "Cluster",
    "Clusters",
    "OwnPlace",
    "find_clusters",
    "own_places",
    "reduced",
    "too_few",
]
