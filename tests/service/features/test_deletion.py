"""A feature can be deleted: what is left is whole, and each test passes without what it does not
need."""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Collection
from pathlib import Path

import pytest

from service.core.settings import PREFIX
from service.features import FEATURES, operations
from service.settings import Settings
from tests.service.features.test_features import FOLDERS, folder_of, imports
from tests.tree import check, copied, run, unlisted

pytestmark = pytest.mark.slow
ALL = sorted({*FOLDERS, "client"})


def with_those_that_need(names: Collection[str]) -> set[str]:
    """Return the folders that are deleted with some."""
    found = {*names}
    while more := {each.folder for each in FEATURES if found & {*each.needs}} - found:
        found |= more
    return found & FOLDERS


def read_by(outside: str) -> set[str]:
    """Return the folders of features that a package of `service` imports."""
    graph = imports()
    modules = {f"service.{outside}", *graph.find_descendants(f"service.{outside}")}
    imported = set[str]().union(*map(graph.find_modules_directly_imported_by, modules))
    return {folder for module in imported if (folder := folder_of(module))}


@pytest.mark.parametrize("names", [[name] for name in ALL] + [ALL], ids=[*ALL, "all"])
def test_features_are_deleted(names: list[str], tmp_path: Path, known_types: Path) -> None:
    """With it, those that need it go, the client if it reads what one of them answers, and Ray's
    names. Nothing of the service needs the client, which stands beside the features."""
    folders = deleted(copied(tmp_path), names)
    check(tmp_path, known_types)
    for setting in settings_of(names):
        given = {f"{PREFIX}{setting.upper()}": "1"}
        refused = run(tmp_path, "python", "-m", "service", "serve", code=2, **given)
        assert f"there is no setting {PREFIX}{setting.upper()};" in refused
    document = json.loads(run(tmp_path, "python", "-m", "service", "openapi"))
    paths = document["paths"]
    used = {tag for path in paths.values() for one in path.values() for tag in one.get("tags", ())}
    left = {path.rpartition(":")[2] for path in paths if path.startswith("/v1/models/{model}:")}
    assert left == {
        operation.name
        for operation in operations()
        if operation.work.__module__.split(".")[2] not in folders
    }
    unused = {tag["name"] for tag in document["tags"]} - used
    assert unused == (set() if left else {"explain"})  # the core's own tag, of all operations


def deleted(tree: Path, names: Collection[str]) -> set[str]:
    """Delete features, or the client, and what goes with them. Return the folders that are gone."""
    folders = with_those_that_need(names)
    packages = [each for each in ("client", "ray") if each in names or folders & read_by(each)]
    for path in [*packages, *(f"features/{folder}" for folder in folders)]:
        shutil.rmtree(tree / "service" / path)
    for folder in folders:
        forget(tree / "service", folder)
    project = tree / "pyproject.toml"
    project.write_text(unlisted(project.read_text(), [*folders, *packages]))
    return folders


def settings_of(folders: Collection[str]) -> list[str]:
    """Return the names of a setting of each folder that has some: a service without the folder must
    not start as if it were not given."""
    kinds = [
        kind
        for kind in Settings.__mro__
        if kind.__module__.split(".")[2:3] in ([f] for f in folders)
    ]
    return [next(iter(kind.__annotations__)) for kind in kinds]


def forget(service: Path, folder: str) -> None:
    """Remove the lines of a folder from the list of the features and from the settings."""
    features = service / "features/__init__.py"
    lines = features.read_text().splitlines(keepends=True)
    (entry,) = (
        node
        for node in ast.walk(ast.parse("".join(lines)))
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.args[0]) == repr(folder)
    )
    del lines[entry.lineno - 1 : entry.end_lineno]
    features.write_text("".join(lines))
    settings = service / "settings.py"
    text = settings.read_text()
    for name in re.findall(rf"service\.features\.{folder}\.\w+ import (\w+)\n", text):
        text = re.sub(rf"(?m)^(from .* import {name}|    {name},)\n", "", text)
    settings.write_text(text)
