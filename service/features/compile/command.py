"""The command `gradcam compile`."""

from __future__ import annotations

from typing import Annotated

import typer

from service.local.options import Models, settings_of
from service.models.catalog import entry_named, read_catalog


def command(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    size: Annotated[
        list[int] | None,
        typer.Option(help="A size of a batch; repeat. Else 1, 32 and the model's max_batch."),
    ] = None,
    models: Models = None,
) -> None:
    """Compile a model's fast path ahead of time, into the folder that GRADCAM_CACHE names: the
    service loads it at its next start. Needs a C++ compiler, which the service then does not."""
    settings = settings_of(context, models)
    entry = entry_named(read_catalog(settings.models), model)
    from service.features.compile.packages import compile_model

    compile_model(entry, settings, size or ())
