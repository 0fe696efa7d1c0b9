"""Clusters of one class's maps, to find photos for which the model looks at something else."""

from cam.clusters.find import Cluster, Clusters, find_clusters

__all__ = ["Cluster", "Clusters", "find_clusters"]
