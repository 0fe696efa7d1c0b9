"""The command `gradcam batch`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.core.errors import ConfigError
from service.local.ending import end_after
from service.local.options import Fit, Model, Models, Target, settings_of

if TYPE_CHECKING:
    from service.features.batch.run import Explainer


def command(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A folder, a pattern like 'photos/**/*.jpg', a .zip, or a .csv or .parquet with a "
            "column path, and id and target if you like.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(help="Folder for pictures and manifest.parquet; goes on where it stopped."),
    ],
    model: Model = None,
    target: Target = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Method of class activation mapping, gradcam; repeat to compare several."
        ),
    ] = None,
    layer: Annotated[
        list[str] | None, typer.Option(help="Target layer; repeat for several.")
    ] = None,
    fit: Fit = "auto",
    other: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE: any other parameter of :explain; repeat."),
    ] = None,
    pictures: Annotated[str, typer.Option(help="jpg, png, webp, or none.")] = "jpg",
    report: Annotated[
        Path | None, typer.Option(help="A page to write: thumbnails, mean maps, failures.")
    ] = None,
    true_classes: Annotated[
        bool,
        typer.Option(
            "--true-classes",
            help="Each image's folder is its class: explain that, and count mistakes.",
        ),
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try those again that failed before.")
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option(help="Address of a Ray cluster to do it on: HOST:PORT, auto, or local."),
    ] = None,
    models: Models = None,
) -> None:
    """Explain images without a server, as many as there are: writes a picture of each and a table
    of all."""
    settings = settings_of(context, models)
    given: dict[str, Any] = {
        "method": _one_or_more(method, "gradcam"),
        "layer": layer or "auto",
        "fit": fit,
    }
    if target:
        given["target"] = target
    from service.features.batch.configuration import RunConfiguration
    from service.features.batch.run import Run, batch

    configuration = RunConfiguration({**given, **_pairs_of(other)}, output, pictures)
    run = Run(source, settings, configuration, model, retry_failed, true_classes)
    explain = None if ray is None else _on_ray(ray)
    end_after(lambda: batch(run, report=report, explain=explain))


def _on_ray(address: str) -> Explainer:
    """Return the function that explains a batch on the Ray cluster at `address`.

    Raises:
        ConfigError: if Ray is not installed.
    """
    try:
        from service.features.batch.on_ray import explain_on_ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ConfigError("--ray needs Ray: pip install 'gradcam-service[ray]'") from None
    return partial(explain_on_ray, address=address)


def _pairs_of(given: list[str] | None) -> dict[str, str]:
    """Return the name and the value of each NAME=VALUE.

    Raises:
        ConfigError: if one of the texts is not a NAME=VALUE; it names that text.
    """
    for pair in given or ():
        if "=" not in pair:
            raise ConfigError(f"--set {pair}: it should be NAME=VALUE")
    return {name: value for name, _, value in (pair.partition("=") for pair in given or ())}


def _one_or_more(given: list[str] | None, default: str) -> str | list[str]:
    """Return the values of an option that may be repeated; a single value is returned alone."""
    values = given or [default]
    return values[0] if len(values) == 1 else values
