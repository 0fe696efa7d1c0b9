"""The command `gradcam audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from service.local.ending import end_after
from service.local.options import Fit, Model, Models, Target, settings_of


def command(
    context: typer.Context,
    photos: Annotated[
        str,
        typer.Argument(
            help="A folder, a pattern like 'photos/**/*.jpg', a .zip, or a .csv or .parquet with a "
            "column path, and id and target (the photo's class) if you like.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(help="Folder for report.html and audit.json; goes on where it stopped."),
    ],
    model: Model = None,
    target: Target = None,
    method: Annotated[
        list[str] | None, typer.Option(help="A method to measure; repeat. Else the usual ones.")
    ] = None,
    layer: Annotated[
        list[str] | None,
        typer.Option(help="A layer to measure; repeat. Else the default and a finer one."),
    ] = None,
    evaluate: Annotated[
        list[str] | None,
        typer.Option(help="A metric of faithfulness, like road; repeat. Else the usual ones."),
    ] = None,
    fit: Fit = "auto",
    most: Annotated[
        int,
        typer.Option(
            min=1,
            help="Largest number of photos to measure; of more photos, evenly drawn ones are used.",
        ),
    ] = 200,
    within: Annotated[
        str | None,
        typer.Option(
            help="Time limit, such as 90s, 10m or 1h; fewer photos are measured if necessary."
        ),
    ] = None,
    question: Annotated[
        str | None,
        typer.Option(
            help="A question to a vision-language model about each photo: which method explains "
            "the words of its answers? Of the other options, --method, --model and --most count."
        ),
    ] = None,
    models: Models = None,
) -> None:
    """Measure which methods and layers explain a model: writes a report, a recommendation, and the
    numbers of each photo."""
    settings = settings_of(context, models)
    from service.features.audit.run import audit, seconds_of
    from service.features.batch.configuration import RunConfiguration
    from service.features.batch.run import Run

    given: dict[str, Any] = {}
    if question is None:
        given = {"fit": fit, "method": method, "layer": layer, "evaluate": evaluate}
        given["target"] = target[0] if target and len(target) == 1 else target
    given = {name: values for name, values in given.items() if values}
    run = Run(photos, settings, RunConfiguration(given, output, "none", "audit"), model)
    if question is not None:
        from service.features.audit.answers import audit_answers

        end_after(lambda: audit_answers(run, question, method or (), most=most))
    seconds = None if within is None else seconds_of(within)
    end_after(lambda: audit(run, most=most, within=seconds))
