"""The command `gradcam explain`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from service.core.settings import read_settings
from service.local.options import (
    Folder,
    Model,
    Models,
    folder_of,
    parameters_of,
    with_parameters,
)
from service.pipeline.parameters import Parameters


@with_parameters(Parameters)
def command(
    photos: Annotated[list[Path], typer.Argument(help="Image files.")],
    given: dict[str, Any],
    model: Model = None,
    folder: Folder = Path("explanations"),
    models: Models = None,
) -> None:
    """Explain photos without a server: writes a picture of each map, and prints a table."""
    settings = read_settings(os.environ, models=models)
    folder = folder_of(given, folder)
    parameters = parameters_of(Parameters, given)
    from service.features.explain.files import explain_files

    raise typer.Exit(explain_files(photos, settings, parameters, model=model, folder=folder))
