"""The command `gradcam answer`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from service.core.errors import InvalidParameter
from service.core.settings import CoreSettings
from service.features.answers.parameters import AnswerParameters
from service.local.options import on_files


@on_files(AnswerParameters)
def command(
    photos: list[Path],
    settings: CoreSettings,
    parameters: AnswerParameters,
    model: str | None,
    folder: Path,
) -> int:
    """Ask a vision-language model about photos without a server: prints each word with its
    evidence, and writes a picture of where the model sees it, and the answer as JSON."""
    if not parameters.question.strip():
        raise InvalidParameter("a question is needed, as in --question 'what is in the picture?'")
    from service.features.answers.files import answer_files

    return asyncio.run(answer_files(photos, settings, parameters, model=model, folder=folder))
