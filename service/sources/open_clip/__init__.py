"""Image–text models of open_clip."""

from __future__ import annotations

from typing import Final

from service.models.source import Source

OPEN_CLIP: Final = Source(
    name="open_clip",
    told="`open_clip:NAME`",
    build=f"{__name__}.build:build",
    check=f"{__name__}.build:check",
    packages=("open_clip_torch",),
    takes_prompts=True,
    own_weights=True,
)
