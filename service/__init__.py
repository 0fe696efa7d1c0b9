"""gradcam-service: class activation maps over HTTP."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("gradcam-service")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+unknown"
