"""Sources of models: each is a folder that the list has, and one can be deleted alone."""

from __future__ import annotations

import re
import shutil
from importlib import import_module
from pathlib import Path

import grimp
import pytest

import service.sources
from service.models.source import Source
from service.sources import OWN
from tests.tree import check, copied, run, unlisted

FOLDERS = {path.parent.name for path in Path(service.sources.__file__).parent.glob("*/__init__.py")}
FOR_THE_DEFAULT = {"embedded", "timm", "huggingface"}
"""What the model needs that is served where no models.toml names any."""
WITH = {"graph": "export"}
"""The feature that needs a source."""
LEFT = """
from service.loading.served_model import load
from service.models.catalog import EMBEDDED
from service.models.sources import SOURCES

assert load(EMBEDDED).default == "bn2"
print(*SOURCES)
"""


def test_the_list_has_the_sources_of_each_folder() -> None:
    found = [source for folder in FOLDERS for source in names_of(folder).values()]
    assert {source.name for source in found} == {source.name for source in OWN}


def test_nothing_but_features_imports_a_source() -> None:
    graph = grimp.build_graph("service", exclude_type_checking_imports=True)
    inside = {module for module in graph.modules if f"{module}.".startswith("service.sources.")}
    outside = {
        module
        for each in inside
        for module in graph.find_modules_that_directly_import(each) - inside
    }
    assert outside
    assert {module.split(".")[1] for module in outside} == {"features"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FOLDERS - FOR_THE_DEFAULT))
def test_a_source_is_deleted(name: str, tmp_path: Path, known_types: Path) -> None:
    copied(tmp_path)
    shutil.rmtree(tmp_path / "service" / "sources" / name)
    project = tmp_path / "pyproject.toml"
    text = unlisted(project.read_text(), [name])
    if feature := WITH.get(name):
        shutil.rmtree(tmp_path / "service" / "features" / feature)
        commands = tmp_path / "service" / "features" / "__init__.py"
        commands.write_text(re.sub(rf'    "{feature}": .*\n', "", commands.read_text()))
        text = unlisted(text, [feature])
    project.write_text(re.sub(rf'    "service\.\S+ -> service\.sources\.{name}\..*\n', "", text))
    listed = tmp_path / "service" / "sources" / "__init__.py"
    text, gone = listed.read_text(), names_of(name)
    text = re.sub(rf"from service\.sources\.{name} import .*\n", "", text)
    listed.write_text(re.sub(rf"    ({'|'.join(gone)}),\n", "", text))
    check(tmp_path, known_types)
    left = run(tmp_path, "python", "-c", LEFT).split()
    assert set(left) == {source.name for source in OWN} - {each.name for each in gone.values()}


def names_of(folder: str) -> dict[str, Source]:
    """Return the sources of a folder by the names of the variables that hold them."""
    held = vars(import_module(f"service.sources.{folder}"))
    return {name: source for name, source in held.items() if isinstance(source, Source)}
