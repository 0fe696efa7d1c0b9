"""The command line: `gradcam serve`, `gradcam explain`, `gradcam openapi`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from service.catalog import read_catalog
from service.errors import ConfigError, Problem
from service.settings import Settings, read_settings

cli = typer.Typer(
    name="gradcam",
    help="Explains what vision models look at.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Models = Annotated[
    Path | None, typer.Option(help="The TOML file that names the models; else the embedded one.")
]


@cli.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    models: Models = None,
) -> None:
    """Serve explanations over HTTP. GRADCAM_… variables set the rest: see the README."""
    settings = read_settings(os.environ, host=host, port=port, models=models)
    entries = read_catalog(settings.models)
    from service.server import run

    raise typer.Exit(run(settings, entries))


@cli.command()
def explain(
    photos: Annotated[list[Path], typer.Argument(help="Image files.")],
    model: Annotated[str | None, typer.Option(help="Its name; else the first.")] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="Class index or label; repeat for several.")
    ] = None,
    method: Annotated[str, typer.Option(help="Method of class activation mapping.")] = "gradcam",
    layer: Annotated[
        list[str] | None, typer.Option(help="Target layer; repeat for several.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("explanations"),
    fit: Annotated[str, typer.Option(help="crop, squash or pad.")] = "crop",
    colormap: Annotated[str, typer.Option(help="The colours of heat.")] = "turbo",
    opacity: Annotated[float, typer.Option(help="Of the colours over the photo, 0 … 1.")] = 0.5,
    models: Models = None,
) -> None:
    """Explain photos without a server: writes an overlay for each, and prints a table."""
    settings = read_settings(os.environ, models=models)
    given: dict[str, Any] = {
        "target": target,
        "method": method,
        "layer": layer or "auto",
        "fit": fit,
        "colormap": colormap,
        "opacity": opacity,
    }
    from service.command import explain_files

    raise typer.Exit(explain_files(photos, settings, model=model, given=given, output=output))


@cli.command()
def openapi() -> None:
    """Print the HTTP contract as an OpenAPI document."""
    from service.app import create_app

    print(json.dumps(create_app(Settings()).openapi(), indent=2, ensure_ascii=False))


def main() -> None:
    try:
        cli()
    except (ConfigError, Problem) as error:
        print(f"gradcam: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
