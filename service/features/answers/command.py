"""The command `gradcam answer`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from service.core.errors import InvalidParameter
from service.core.settings import read_settings
from service.features.answers.parameters import AnswerParameters
from service.local.options import (
    Folder,
    Model,
    Models,
    folder_of,
    parameters_of,
    with_parameters,
)


@with_parameters(AnswerParameters)
def command(
    photos: Annotated[list[Path], typer.Argument(help="Image files.")],
    given: dict[str, Any],
    model: Model = None,
    folder: Folder = Path("explanations"),
    models: Models = None,
) -> None:
    """Ask a vision-language model about photos without a server: prints each word with its
    evidence, and writes a picture of where the model sees it, and the answer as JSON."""
    settings = read_settings(os.environ, models=models)
    folder = folder_of(given, folder)
    parameters = parameters_of(AnswerParameters, given)
    if not parameters.question.strip():
        raise InvalidParameter("a question is needed, as in --question 'what is in the picture?'")
    from service.features.answers.files import answer_files

    raise typer.Exit(answer_files(photos, settings, parameters, model=model, folder=folder))
