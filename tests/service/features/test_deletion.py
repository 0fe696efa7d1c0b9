"""A feature can be deleted: what is left is whole, and tests pass without what they do not need."""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Collection
from itertools import accumulate
from pathlib import Path

import grimp
import pytest

from service.core.settings import PREFIX
from service.features import FEATURES, operations
from service.settings import Settings
from tests.service.features.test_features import FOLDERS, folder_of, imports
from tests.tree import ROOT, check, copied, run, unlisted

pytestmark = pytest.mark.slow
ALL = sorted({*FOLDERS, "client"})
ASKED = {"explain", "predict"}
"""Folders of the operations that tests of the core and of the other features ask for."""
READ = re.compile(r"service\.(features|client|ray)\b")
"""Modules of what is deleted, and of what goes with some of it."""


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
    for setting in [setting for name in names for setting in settings_of(name)[:1]]:
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


def test_tests_that_need_no_feature_pass_without_any(tmp_path: Path) -> None:
    """Only `predict` and `explain` are left, because nearly all tests ask them. The document of
    OpenAPI is made anew, as whoever deletes a feature does."""
    tree = copied(tmp_path)
    shutil.copytree(ROOT / "tests", tree / "tests")
    for name in ("bench", "deploy", "docs"):
        (tree / name).symlink_to(ROOT / name)
    for folder in deleted(tree, FOLDERS - ASKED):
        shutil.rmtree(tree / "tests" / "service" / "features" / folder, ignore_errors=True)
    (tree / "openapi").mkdir()
    (tree / "openapi" / "openapi.json").write_text(run(tree, "python", "-m", "service", "openapi"))
    files = files_without_features()
    assert len(files) > 60
    run(tree, "python", "-m", "pytest", "-m", "not slow", "-p", "no:cacheprovider", *files)


def files_without_features() -> list[str]:
    """Return the files of the tests that import none but `ASKED`, nor does the `conftest` above
    them. Tests that import `tests.tree` are of the packages as a whole, and those in no folder of
    the documents."""
    graph = grimp.build_graph("bench", "cam", "service", "tests", cache_dir=None)
    for module in {*graph.modules}:
        if module.startswith("tests."):
            *above, _ = accumulate(module.split("."), "{}.{}".format)
            beside = (name for each in above for name in (each, f"{each}.conftest"))
            for name in graph.modules & {*beside} - {module}:
                graph.add_import(importer=module, imported=name)
        elif module.startswith("service.") and not READ.match(module):
            graph.remove_module(module)
    gone = {each for each in graph.modules if READ.match(each) and folder_of(each) not in ASKED}
    gone -= {"service.features"}
    return [
        module.replace(".", "/") + ".py"
        for module in sorted(graph.modules)
        if re.match(r"tests\.service\.\w+\.(\w+\.)?test_\w+$", module)
        if not graph.find_upstream_modules(module) & gone
        if folder_of(module[6:]) in {None, *ASKED}
        if not graph.direct_import_exists(importer=module, imported="tests.tree")
    ]


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


def settings_of(folder: str) -> list[str]:
    """Return the names of the settings of a folder."""
    kinds = [kind for kind in Settings.__mro__ if folder_of(kind.__module__) == folder]
    return [name for kind in kinds for name in kind.__annotations__]


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
