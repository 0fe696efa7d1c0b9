"""Asking a vision–language model about image files, without a server."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from service.backend.timings import Timings
from service.core.errors import Problem
from service.core.schemas import dump
from service.core.settings import CoreSettings
from service.features.answers.ask import ask
from service.features.answers.parameters import AnswerParameters
from service.local.output import Names, cell, make_folder, write_file
from service.local.session import local_session
from service.pipeline.images import read_file
from service.pipeline.instances import Instance


async def answer_files(
    photos: list[Path],
    settings: CoreSettings,
    parameters: AnswerParameters,
    *,
    model: str | None,
    folder: Path,
) -> int:
    """Answer a question about each file, write a picture of its words and the JSON answer of
    `:answer` into `folder`, and print the words with their probability and evidence.

    Returns:
        The exit code: 0, or 1 if a photo failed.

    Raises:
        ConfigError, Problem: if nothing can be answered at all.
    """
    failures, names, console = 0, Names(), Console()
    async with local_session(settings, model, images=len(photos)) as session:
        make_folder(folder)
        for index, photo in enumerate(photos):
            try:
                instance = Instance(index, photo.name, read_file(photo), "", parameters)
                result = await ask(session.pipeline, session.replicas, instance, Timings())
                said = result.as_json()
                file = folder / f"{names.of(photo)}.{said.method}.png"
                write_file(file, result.as_picture("image/png"))
                write_file(file.with_suffix(".json"), dump(said))
            except Problem as problem:
                failures += 1
                console.print(cell(f"{photo}: {problem.detail}", console, "red"))
                continue
            console.print(cell(f"{photo}: {said.text}", console))
            table = Table("word", "probability", "evidence", "said from")
            for word in said.words:
                evidence = "" if word.evidence is None else f"{word.evidence:z.2f}"
                source = {True: "language", False: "the photo", None: ""}[word.from_language]
                row = (word.text, f"{word.probability:.3f}", evidence, source)
                table.add_row(*(cell(text, console) for text in row))
            console.print(table)
            for warning in said.warnings:
                console.print(cell(warning, console, "yellow"))
            console.print(cell(str(file), console))
    return 1 if failures else 0
