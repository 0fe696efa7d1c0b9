"""`service.ray.proxy:gate`, which the environment of a cluster's nodes names."""

from service.features.ray.proxy import gate

__all__ = ["gate"]
