"""Explaining image files with the service's pipeline, without a server."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from service.core.errors import Problem
from service.core.schemas import MapFacts
from service.core.settings import CoreSettings
from service.local.output import Names, cell, make_folder, write_file
from service.local.session import local_session
from service.pipeline.images import read_file
from service.pipeline.instances import Instance
from service.pipeline.json_records import title_of
from service.pipeline.parameters import Parameters
from service.pipeline.record import MapRecord
from service.pipeline.rendering import Drawing, encode_values
from service.pipeline.resolve import questions_of


async def explain_files(
    photos: list[Path],
    settings: CoreSettings,
    parameters: Parameters,
    *,
    model: str | None,
    folder: Path,
) -> int:
    """Explain each file, write a file for each map into `folder`, and print a table.

    Returns:
        The exit code: 0, or 1 if a photo failed.

    Raises:
        ConfigError, Problem: if nothing can be explained at all.
    """
    failures = 0
    names = Names()
    console = Console()
    async with local_session(settings, model, images=len(photos)) as session:
        served = session.replicas.model
        table = Table(
            Column("photo", overflow="fold"),
            "label",
            "value" if served.kind == "value" else "probability",
            Column("file", overflow="fold"),
            *(["scores"] if parameters.evaluate else []),
        )
        questions_of(served, parameters)  # a mistake in them would fail every photo
        make_folder(folder)
        for index, photo in enumerate(photos):
            try:
                instance = Instance(index, photo.name, read_file(photo), "", parameters)
                async with session.pipeline.explain(session.replicas, instance) as result:
                    save = partial(_save, folder / names.of(photo), parameters)
                    for facts, file in await result.each(save):
                        told = _told(photo, facts, file, valued=served.kind == "value")
                        table.add_row(*(cell(text, console) for text in told))
            except Problem as problem:
                failures += 1
                failed = cell(problem.detail, console, "red")
                table.add_row(cell(str(photo), console), failed, "", "")
    console.print(table)
    return 1 if failures else 0


def _save(
    start: Path, parameters: Parameters, record: MapRecord, drawing: Drawing
) -> tuple[MapFacts, str]:
    """Write the map's picture, or its numbers, and return what is known of the map, and the path.

    Args:
        start: beginning of the path, before the method's name.
    """
    suffix = f".{drawing.number}" if drawing.number else ""
    name = f"{start.name}.{drawing.explanation.method}{suffix}"
    if parameters.output == "values":
        file, content = start.with_name(f"{name}.npy"), encode_values(drawing.numbers)
    else:
        file, content = start.with_name(f"{name}.png"), drawing.encoded("image/png")
    write_file(file, content)
    return record.facts, str(file)


def _told(photo: Path, facts: MapFacts, file: str, *, valued: bool) -> list[str]:
    """Return a map's row of the printed table, with its scores if it has some. The number of a
    model of values is the value, otherwise the probability."""
    target = facts.target
    name = title_of(target)
    if target.index is not None and target.label:
        name = f"{target.index} {name}"
    shown = target.score if valued else target.probability
    sure = "" if shown is None else f"{shown:.4g}" if valued else f"{shown:.3f}"
    scores = [
        f"{metric} {'–' if score.value is None else f'{score.value:.3g}'}"
        for metric, score in (facts.scores or {}).items()
    ]
    return [str(photo), name, sure, file, *(["\n".join(scores)] if scores else [])]
