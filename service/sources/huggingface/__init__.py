"""Models of Hugging Face transformers, from a folder or from the hub."""

from __future__ import annotations

from typing import Final

from service.models.source import PLACE, Source

HUGGINGFACE: Final = Source(
    name="hf",
    what=PLACE,
    told="`hf:FOLDER` (from the TOML file's folder) or `hf:NAME` (on the hub) of a Hugging Face "
    "model",
    build=f"{__name__}.build:build",
    check=f"{__name__}.build:check",
    answering=f"{__name__}.build:answering",
    packages=("transformers",),
    takes_prompts=True,
)
