"""Where the log is JSON, each line that the service writes is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.service.live import serving, starting


def lines(*written: str) -> list[dict[str, str]]:
    return [json.loads(line) for text in written for line in text.splitlines()]


def catalog(folder: Path, factory: str) -> str:
    file = folder / "models.toml"
    file.write_text(
        f'[[models]]\nname = "m"\nsource = "factory:{factory}"\nweights = "none"\ninput_size = 8\n'
    )
    return str(file)


@pytest.mark.slow
@pytest.mark.parametrize("doors", ["0", "1"])
def test_the_greeting_and_warnings_of_models_are_lines_of_json(tmp_path: Path, doors: str) -> None:
    named = catalog(tmp_path, "tests.zoo.factories:warning")
    with serving("--models", named, GRADCAM_DOORS=doors, GRADCAM_LOG_FORMAT="json") as (process, _):
        assert process.stdout
        assert process.stderr
        said: list[str] = []
        while "Ready. " not in "".join(said[-1:]):  # a stop that comes before leaves it out
            assert process.poll() is None
            said.append(process.stderr.readline())
        process.terminate()
        told = lines(*said, process.stderr.read(), process.stdout.read())
        assert process.wait() == 0
    assert [one for one in told if one["event"].startswith("Ready. Drop a photo on http://127.0.")]
    assert [one for one in told if "torch would say this" in one["event"]]


@pytest.mark.slow
@pytest.mark.parametrize("doors", ["0", "1"])
def test_a_model_that_cannot_be_loaded_is_told_in_json(tmp_path: Path, doors: str) -> None:
    named = catalog(tmp_path, "tests.zoo.factories:raising")
    with starting("--models", named, GRADCAM_DOORS=doors, GRADCAM_LOG_FORMAT="json") as (
        process,
        _,
    ):
        told = lines(*process.communicate(timeout=240))
        assert process.returncode == 2
    assert told[-1]["level"] == "critical"
    assert "model 'm': key 'source': " in told[-1]["event"]
