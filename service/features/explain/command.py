"""The command `gradcam explain`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from service.core.settings import CoreSettings
from service.local.options import on_files
from service.pipeline.parameters import Parameters


@on_files(Parameters)
def command(
    photos: list[Path],
    settings: CoreSettings,
    parameters: Parameters,
    model: str | None,
    folder: Path,
) -> int:
    """Explain photos without a server: writes a picture of each map, and prints a table."""
    from service.features.explain.files import explain_files

    return asyncio.run(explain_files(photos, settings, parameters, model=model, folder=folder))
