"""A compiled copy of a model; on a CUDA device, one that is recorded as CUDA graphs."""

from __future__ import annotations

from typing import Final

from service.runtimes.runtime import Runtime

COMPILED: Final = Runtime(name="torch", told="`torch`", path=f"{__name__}.path:path")
