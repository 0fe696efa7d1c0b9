"""The command `gradcam batch`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.core.errors import ConfigError
from service.local.ending import end_after
from service.local.options import Model, Models, folder_of, settings_of, with_parameters
from service.pipeline.parameters import Parameters

if TYPE_CHECKING:
    from service.features.batch.run import Explainer


def _command(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A folder, a pattern like 'photos/**/*.jpg', a .zip, or a .csv or .parquet with a "
            "column path, and id and target if you like.",
        ),
    ],
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder for pictures and manifest.parquet; goes on where it stopped."),
    ] = None,
    model: Model = None,
    other: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE: another way to give a parameter; repeat."),
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
    **values: Any,
) -> None:
    settings = settings_of(context, models)
    folder = folder or folder_of(values)
    if folder is None:
        raise ConfigError("--folder is needed: the folder for pictures and manifest.parquet")
    given = {
        name: sent[0] if isinstance(sent, list) and len(sent) == 1 and name != "target" else sent
        for name, sent in values.items()
        if sent not in (None, [])
    }
    from service.features.batch.configuration import RunConfiguration
    from service.features.batch.run import Run, batch

    configuration = RunConfiguration({**given, **_pairs_of(other)}, folder, pictures)
    run = Run(source, settings, configuration, model, retry_failed, true_classes)
    explain = None if ray is None else _on_ray(ray)
    end_after(lambda: batch(run, report=report, explain=explain))


command = with_parameters(
    Parameters,
    _command,
    "Explain images without a server, as many as there are: writes a picture of each and a table "
    "of all.",
)


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
