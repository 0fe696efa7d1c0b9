"""`service.ray.serve:build`, which `serve run` and the files of `serve deploy` name."""

from service.features.ray.serve import build

__all__ = ["build"]
