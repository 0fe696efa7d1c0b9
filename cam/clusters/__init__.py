"""Clusters of one class's maps, to find photos for which the model looks at something else."""
