"""Models of torchvision."""

from __future__ import annotations

from typing import Final

from service.models.source import Source

TORCHVISION: Final = Source(
    name="torchvision",
    told="`torchvision:NAME`",
    build=f"{__name__}.build:build",
    check=f"{__name__}.build:check",
    library="torchvision",
    packages=("torchvision",),
)
