"""`gradcam explain`: the service's own way of an image, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from service.core.errors import ConfigError, Problem
from service.core.settings import Settings
from service.engine.timings import Timings
from service.pipeline.descriptions import caption_of, describe_target
from service.pipeline.explainer import Explained, Explainer
from service.pipeline.instances import Instance
from service.pipeline.parameters import Parameters
from service.pipeline.photo_file import read_file
from service.pipeline.rendering import encode
from service.pipeline.resolve import questions_of
from service.pipeline.session import local_session
from service.pipeline.validation import parameter_problem
from service.pipeline.work_item import WorkItem


def explain_files(
    photos: list[Path],
    settings: Settings,
    *,
    model: str | None,
    given: dict[str, Any],
    output: Path,
) -> int:
    """Explain each file, write an overlay per map into `output`, and print a table.

    Returns:
        The exit code: 0, or 1 if a photo failed.

    Raises:
        ConfigError, Problem: where nothing can be explained at all.
    """
    try:
        parameters = Parameters.model_validate(given)
    except ValidationError as error:
        raise parameter_problem(error, Parameters) from None
    return asyncio.run(_explain(photos, settings, model, parameters, output))


async def _explain(
    photos: list[Path],
    settings: Settings,
    model: str | None,
    parameters: Parameters,
    output: Path,
) -> int:
    table = Table(
        Column("photo", overflow="fold"),
        "label",
        "probability",
        Column("file", overflow="fold"),
    )
    failures = 0
    names = Names()
    console = Console()
    async with local_session(settings, model) as session:
        questions_of(session.replicas.model, parameters)  # a mistake in it would be every photo's
        _make(output)
        for index, photo in enumerate(photos):
            try:
                instance = Instance(index, photo.name, read_file(photo), "", parameters)
                async with session.explainer.work_item(
                    session.replicas, instance, Timings()
                ) as work_item:
                    explained = await session.explainer.explain(work_item)
                    for row in _drawn(work_item, explained, photo, output / names.of(photo)):
                        table.add_row(*(_cell(each, console) for each in row))
            except Problem as problem:
                failures += 1
                told = _cell(problem.detail, console, "red")
                table.add_row(_cell(str(photo), console), told, "", "")
    console.print(table)
    return 1 if failures else 0


def _cell(text: str, console: Console, style: str = "") -> Text:
    """A name of a file need be no text, nor in the terminal's letters: others are escaped."""
    encoding = console.encoding
    return Text(text.encode(encoding, "backslashreplace").decode(encoding), style)


class Names:
    """What the pictures of a run's photos are called: no two photos' alike."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def of(self, photo: Path) -> str:
        """The photo's own name, with a number where another one has it already."""
        choices = chain([photo.stem], (f"{photo.stem}-{turn}" for turn in count(2)))
        # Not every file system tells capitals from small letters.
        name = next(each for each in choices if each.casefold() not in self._taken)
        self._taken.add(name.casefold())
        return name


def _drawn(
    work_item: WorkItem[Parameters], explained: Explained, photo: Path, start: Path
) -> Iterator[tuple[str, str, str, str]]:
    """Draws each map into a file, and yields its row of the table.

    Args:
        start: of the files' paths.
    """
    model, parameters = work_item.replicas.model, work_item.instance.parameters
    for number, explanation in enumerate(explained.answer.explanations):
        drawing = Explainer.draw(explained, explanation, parameters)
        picture = Explainer.picture(model, explained, explanation, drawing, parameters)
        suffix = f".{number}" if number else ""
        file = start.with_name(f"{start.name}.{explanation.method}{suffix}.png")
        _write(file, encode(picture, "image/png"))
        target = describe_target(explanation, model.labels, explained.seen)
        name = caption_of(explanation, target, model).title
        if target.index is not None and target.label:
            name = f"{target.index} {name}"
        sure = "" if target.probability is None else f"{target.probability:.3f}"
        yield str(photo), name, sure, str(file)


def _make(folder: Path) -> None:
    """
    Raises:
        ConfigError: where it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be used: {error.strerror}") from None


def _write(file: Path, picture: bytes) -> None:
    """
    Raises:
        ConfigError: where it cannot be written.
    """
    try:
        file.write_bytes(picture)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from None
