"""The faster ways to compute a model's maps at one layer, each beside the exact one."""
