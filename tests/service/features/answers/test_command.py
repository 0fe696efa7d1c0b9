"""The options of `gradcam answer`, of which mistakes are told before a model is loaded."""

from __future__ import annotations

from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from service.cli.main import cli
from service.core.errors import Problem
from service.features.answers.parameters import AnswerParameters

pytestmark = pytest.mark.contract


def test_it_has_each_parameter_of_answer() -> None:
    group: Any = get_command(cli)
    options = {each for option in group.get_command(None, "answer").params for each in option.opts}
    assert {f"--{name.replace('_', '-')}" for name in AnswerParameters.model_fields} <= options


def test_a_switch_that_is_on_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[AnswerParameters] = []

    async def noted(photos: Any, settings: Any, parameters: AnswerParameters, **other: Any) -> int:
        seen.append(parameters)
        return 0

    monkeypatch.setattr("service.features.answers.files.answer_files", noted)
    for switches in ([], ["--no-evidence"]):
        arguments = ["answer", "a.jpg", "--question", "which?", *switches]
        assert CliRunner().invoke(cli, arguments).exit_code == 0
    assert [each.evidence for each in seen] == [True, False]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "a question is needed, as in --question"),
        (["--question", " "], "a question is needed"),
        (["--question", "which?", "--method", "tim"], "method"),
        (["--question", "which?", "--alternatives", "99"], "alternatives"),
    ],
)
def test_mistakes(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(cli, ["answer", "a.jpg", *arguments])
    assert isinstance(result.exception, Problem)
    assert words in str(result.exception)
