"""The files that `gradcam compile` has compiled ahead of time."""

from __future__ import annotations

from typing import Final

from service.core.runtime import Runtime

PACKAGED: Final = Runtime(name="torch", told="`torch`", path=f"{__name__}.path:path")
