"""The command `gradcam reference`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.local.ending import end_after
from service.local.options import Fit, Model, Models, settings_of


def command(
    context: typer.Context,
    photos: Annotated[
        str,
        typer.Argument(
            help="Good photos: a folder, a pattern like 'photos/**/*.jpg', a .zip, or a table."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option(help="File to write; without it, the standard output.")
    ] = None,
    model: Model = None,
    method: Annotated[
        str, typer.Option(help="Method of the maps; it must need only one pass.")
    ] = "gradcam",
    layer: Annotated[str, typer.Option(help="Layer of the maps; auto is the default.")] = "auto",
    fit: Fit = "auto",
    models: Models = None,
) -> None:
    """Record the statistics of good photos' maps as the reference of a model: writes Parquet."""
    settings = settings_of(context, models)
    from service.features.drift.make import make_reference

    given = {"method": method, "layer": layer, "fit": fit}
    end_after(lambda: make_reference(photos, settings, given, model=model, output=output))
