"""Copies a folder of models from a store, such as S3 or Google Cloud Storage, to this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import fsspec

from service.core.errors import ConfigError, one_line


@contextmanager
def copied(address: str) -> Iterator[Path]:
    """Yield a folder with a copy of the files below an address, which is removed at the end.

    Args:
        address: an address of fsspec, like `s3://bucket/model` or `gs://bucket/model`.

    Raises:
        ConfigError: if the store's package is not installed, or nothing can be read there.
    """
    with TemporaryDirectory(prefix="gradcam-models-") as name:
        folder = Path(name) / "model"
        try:
            files, root = fsspec.core.url_to_fs(address)
            files.get(root.rstrip("/") + "/", f"{folder}/", recursive=True)
        except ImportError as error:  # its message names the package
            raise ConfigError(f"GRADCAM_MODELS_URI={address}: {one_line(error)}") from None
        except Exception as error:
            reason = one_line(error) or type(error).__name__
            raise ConfigError(f"GRADCAM_MODELS_URI={address}: cannot be read: {reason}") from None
        if not folder.is_dir() or not any(folder.iterdir()):
            raise ConfigError(f"GRADCAM_MODELS_URI={address}: there is no file below it")
        yield folder
