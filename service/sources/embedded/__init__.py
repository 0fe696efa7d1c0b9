"""Models whose weights come with the packages: nothing is downloaded."""

from __future__ import annotations

from typing import Final

from service.models.source import Source

EMBEDDED: Final = Source(
    name="embedded",
    told="`embedded:efficientnet-lite0`, `embedded:efficientnet-lite0-prompts`, `embedded:shapes`",
    build=f"{__name__}.build:build",
    check=f"{__name__}.build:check",
    answering=f"{__name__}.build:answering",
    library="timm",
    packages=("timm", "transformers"),
    prompted=("efficientnet-lite0-prompts",),
)
