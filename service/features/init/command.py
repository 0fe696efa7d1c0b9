"""The command `gradcam init`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from service.local.options import settings_of


def command(
    context: typer.Context,
    checkpoint: Annotated[
        Path, typer.Argument(help="A file of weights, or the folder of a Hugging Face model.")
    ],
    photos: Annotated[
        str | None,
        typer.Option(
            help="Photos in a folder for each class, which tell the input size and preprocessing."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="File to write; models.toml beside the checkpoint.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model; the file's.")] = None,
) -> None:
    """Find out what model a checkpoint is, and write the models.toml with which it is served."""
    settings = settings_of(context, None)
    from service.features.init.write import write

    asks = sys.stdin.isatty() and sys.stdout.isatty()
    write(checkpoint, photos, output, name, settings, asks=asks)
