"""The blocking client is what the generator makes of the awaited one, and the options are what it
makes of the service's parameters."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from service.client import AsyncClient, AsyncJob, Client, Job, tasks, threads
from tests.service.client import generate, generate_options


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return generate.generate()


def test_the_blocking_client_is_current(files: dict[str, str]) -> None:
    assert generate.outdated(files) == [], "run `make client`"


def test_the_options_are_current() -> None:
    assert generate_options.TARGET.read_text() == generate_options.generate(), "run `make client`"


def test_the_type_of_an_option_is_that_of_its_schema() -> None:
    whole = {"$defs": {"Fit": {"enum": ["crop", "pad"], "type": "string"}}}
    for schema, kind in (
        ({"$ref": "#/$defs/Fit"}, "Literal['crop', 'pad']"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "int"),
        ({"type": "array", "items": {"type": "number"}}, "Sequence[float]"),
        ({"enum": list("abcdefghijk"), "type": "string"}, "str"),
        (
            {"anyOf": [{"type": "integer"}, {"const": "fine", "type": "string"}]},
            "int | Literal['fine']",
        ),
    ):
        assert generate_options._type(schema, whole) == kind


def test_what_is_not_current_is_found_and_written(files: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "_sync"
    generate.write(files, folder)
    assert generate.outdated(files, folder) == []
    (folder / "job.py").write_text(files["job.py"].replace("Look at it.", "Look."))
    (folder / "transport.py").unlink()
    (folder / "old.py").touch()
    assert generate.outdated(files, folder) == ["job.py", "old.py", "transport.py"]
    generate.write(files, folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(files)
    assert generate.outdated(files, folder) == []


def test_a_text_that_is_nowhere_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(generate.TEXTS, "no such text", "")
    with pytest.raises(ValueError, match="no file of service/client/_async has the text 'no such"):
        generate.generate()


def test_the_command_checks() -> None:
    command = [sys.executable, "-m", "tests.service.client.generate", "--check"]
    subprocess.run(command, cwd=generate.ROOT, check=True)


def test_nothing_is_awaited_in_the_blocking_client(files: dict[str, str]) -> None:
    for name, content in files.items():
        first, _, code = content.partition("\n")
        assert first == f"{generate.HEADER}{name}."
        for word in ("async ", "await", "asyncio"):
            assert word not in code, name


@pytest.mark.parametrize(("blocking", "awaited"), [(Client, AsyncClient), (Job, AsyncJob)])
def test_both_have_the_same_methods_and_parameters(blocking: type, awaited: type) -> None:
    def public(kind: type) -> dict[str, list[tuple[str, object, object]] | None]:
        return {
            name: [(each.name, each.kind, each.default) for each in parameters(value)]
            if callable(value)
            else None
            for name, value in vars(kind).items()
            if not name.startswith("_") or name == "__init__"
        }

    assert public(blocking) == public(awaited)


def test_tasks_and_threads_have_the_same_functions_and_parameters() -> None:
    def public(module: object) -> dict[str, list[str]]:
        return {
            name: [each.name for each in parameters(value)]
            for name, value in vars(module).items()
            if inspect.isfunction(value)
            and value.__module__ == vars(module)["__name__"]
            and not name.startswith("_")
        }

    assert public(tasks) == public(threads)


def parameters(function: object) -> list[inspect.Parameter]:
    assert callable(function)
    return list(inspect.signature(function).parameters.values())
