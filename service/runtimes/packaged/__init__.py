"""The files that `gradcam compile` has compiled ahead of time, and how these are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from service.runtimes.runtime import Runtime

if TYPE_CHECKING:
    import torch

PACKAGED: Final = Runtime(name="torch", told="`torch`", path=f"{__name__}.path:path")


def sizes_record(layer: str, dtype: torch.dtype) -> str:
    """Return the name under which the sizes of the compiled files are kept, a list in JSON."""
    return f"packages {layer} {dtype}"


def package_record(layer: str, dtype: torch.dtype, size: int) -> str:
    """Return the name under which the compiled file of a size is kept."""
    return f"package {layer} {dtype} {size}"
