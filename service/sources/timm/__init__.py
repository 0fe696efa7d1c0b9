"""Models of timm."""

from __future__ import annotations

from typing import Final

from service.models.source import Source

TIMM: Final = Source(
    name="timm",
    told="`timm:NAME`",
    build=f"{__name__}.build:build",
    check=f"{__name__}.build:check",
    library="timm",
    packages=("timm",),
)
