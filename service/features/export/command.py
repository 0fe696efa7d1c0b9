"""The command `gradcam export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.local.options import Models, settings_of
from service.models.catalog import entry_named, read_catalog


def command(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    output: Annotated[Path, typer.Option(help="File to write: .onnx, or .xml beside its .bin.")],
    form: Annotated[str, typer.Option("--format", help="onnx or openvino.")] = "onnx",
    layer: Annotated[str, typer.Option(help="Layer of the map; auto is the default.")] = "auto",
    models: Models = None,
) -> None:
    """Write a model as a file whose second output is the map, for devices without this service."""
    entry = entry_named(read_catalog(settings_of(context, models).models), model)
    from service.features.export.write import export_entry

    written = export_entry(entry, output, form, None if layer == "auto" else layer)
    batch = "any number of images" if written.any_batch else "one image at a time"
    print(f"{output}: logits, and maps by {written.method} at {written.layer}; takes {batch}")
