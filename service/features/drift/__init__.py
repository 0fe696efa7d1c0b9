"""Drift: the maps that a live model serves are compared with a reference of good photos' maps."""
