"""Runtimes: each is a folder that the list has, one can be deleted alone, and one added."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

import service.runtimes
from cam.methods.method import load
from service.core.choices import RUNTIMES
from service.runtimes import OWN
from tests.tree import check, copied, run, unlisted

FOLDER = Path(service.runtimes.__file__).parent
FOLDERS = sorted(path.parent.name for path in FOLDER.glob("*/__init__.py"))
BESIDE = {
    "compiled": [f"cam/runtimes/{name}.py" for name in ("compiled", "cuda_graphs", "folding")],
    "openvino": [
        *("cam/runtimes/openvino.py", "cam/runtimes/tail.py"),
        *("service/features/export", "service/sources/graph"),
    ],
    "packaged": ["cam/runtimes/packaged.py"],
}
"""What is deleted with a runtime: its part of the library, and what needs that."""
COMPILE = "service/features/compile"
"""Needs what compiles, and where the files are kept."""
LISTS = [f"service/{package}/__init__.py" for package in ("features", "sources", "runtimes")]
CHOICE = ("service/app.py", "service/local/session.py", "service/process/engine.py")
"""The modules that give the engine the function that chooses."""
ENTRY = """
[[models]]
name = "m"
source = "timm:test_resnet"
weights = "none"
input_size = 64
max_batch = 2
mode = "fast"
"""
SERVED = """
import asyncio
import sys
from pathlib import Path

import numpy as np

from cam import ClassTarget, Question
from service.backend.work import Explain
from service.local.session import local_session
from service.models.preprocessing import ModelInput
from service.settings import Settings


async def main():
    settings = Settings(models=Path("models.toml"), runtime=sys.argv[1], cache=None)
    async with local_session(settings, None) as session:
        replicas = session.replicas
        seen = ModelInput.of(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
        question = Question((ClassTarget(3),), "gradcam", (replicas.model.default,))
        answer = (await replicas.ask(Explain(seen, [question]))).value
        assert answer.explanations[0].map.any()
        print(replicas.runtime, *answer.fast)


asyncio.run(main())
"""
REFUSED = """
from pathlib import Path
from service.core.errors import ConfigError
from service.models.catalog import read_catalog

try:
    read_catalog(Path("models.toml"))
except ConfigError as error:
    print(error)
"""
TOY = '''"""A runtime that plays: it answers as the exact path does."""

from service.runtimes.runtime import Runtime

TOY = Runtime(name="toy", told="`toy`, for play", path=f"{__name__}:path")


def path(model, others, *, dtype, sizes, head, reading):
    from cam.passes.compiled_path import CompiledPath
    from cam.passes.onepass import begin_batch

    class ToyPath(CompiledPath):
        runtime, way, layer = "toy", "played", model.default

        def __init__(self):
            self.dtype, self.sizes = dtype, tuple(sizes)

        def settle(self, image):
            return None

        def explain(self, images, questions):
            return begin_batch(model.module, images, questions, head=head, reading=reading)

    return ToyPath()
'''


def test_the_list_has_the_runtime_of_each_folder() -> None:
    assert sorted(str(runtime.path).split(".")[2] for runtime in OWN) == FOLDERS
    for runtime in OWN:
        assert callable(load(runtime.path))
        assert runtime.problem is None or callable(load(runtime.problem))
        assert RUNTIMES[runtime.name] == runtime.told
        assert f"`{runtime.name}`" in runtime.told


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the code, with a catalog."""
    (copied(tmp_path) / "models.toml").write_text(ENTRY)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("names", [[name] for name in FOLDERS] + [FOLDERS], ids="+".join)
def test_runtimes_are_deleted(names: list[str], tree: Path, known_types: Path) -> None:
    gone = [path for name in names for path in (f"service/runtimes/{name}", *BESIDE[name])]
    gone += [COMPILE] if {"compiled", "packaged"} & {*names} else []
    project = (tree / "pyproject.toml").read_text()
    if names == FOLDERS:  # what chooses goes, too, and the list is empty
        shutil.rmtree(tree / "cam" / "runtimes")
        gone = [path for path in gone if not path.startswith("cam/")]
        gone += ["service/runtimes/paths.py", "service/runtimes/warming.py"]
        for file in CHOICE:
            text = (tree / file).read_text()
            text, count = re.subn(r"from service\.runtimes.*\n| +fast_path=fast_path,\n", "", text)
            assert count == 2
            (tree / file).write_text(text)
        project = re.sub(r'    "runtimes",\n', "", project)
        for contract in ("A runtime imports no other one", "The core computes maps by the exact"):
            project = re.sub(rf'\[\[[\w.]+\]\]\nname = "{contract}(.*\n)*?\n(?=\[)', "", project)
    for path in gone:
        (shutil.rmtree if (tree / path).is_dir() else Path.unlink)(tree / path)
    folders = [path.split("/")[2] for path in gone if path.startswith("service/")]
    for lists in LISTS:
        forget(tree / lists, folders)
    project = re.sub(rf'    "service\.runtimes\.({"|".join(names)})",\n', "", project)
    (tree / "pyproject.toml").write_text(unlisted(project, folders))
    check(tree, known_types)
    run(tree, "python", "-m", "service", "openapi")
    if "compiled" not in names:  # a compiler would take minutes
        (tree / "models.toml").write_text(ENTRY.replace("fast", "exact"))
    wanted = "auto" if "openvino" in names else "torch"
    assert run(tree, "python", "-c", SERVED, wanted).split() == ["torch"]
    (tree / "models.toml").write_text(ENTRY + 'runtime = "openvino"\n')
    refusal = run(tree, "python", "-c", REFUSED)
    assert ("key 'runtime': 'openvino' is not allowed" in refusal) == ("openvino" in names)
    assert ("eager PyTorch: 'torch'; 'auto', the fastest" in refusal) == ("openvino" in names)


@pytest.mark.slow
def test_a_runtime_is_added(tree: Path) -> None:
    assert len(TOY.splitlines()) <= 40
    (tree / "service" / "runtimes" / "toy.py").write_text(TOY)
    listed = tree / "service" / "runtimes" / "__init__.py"
    text = listed.read_text().replace("    OPENVINO,\n", "    OPENVINO,\n    TOY,\n")
    listed.write_text(text.replace("\nOWN:", "\nfrom service.runtimes.toy import TOY\n\nOWN:"))
    (tree / "models.toml").write_text(ENTRY + 'runtime = "toy"\n')
    assert run(tree, "python", "-c", SERVED, "torch").split() == ["toy", "gradcam"]
    (tree / "models.toml").write_text(ENTRY + 'runtime = "play"\n')
    assert "'openvino', on the CPU; 'toy', for play" in run(tree, "python", "-c", REFUSED)


def forget(file: Path, folders: Sequence[str]) -> None:
    """Remove from a list what is in these folders."""
    text, some = file.read_text(), "|".join(folders)
    imports = rf"from service\.(?:runtimes|sources)\.(?:{some}) import (.*)\n"
    names = [name for found in re.findall(imports, text) for name in found.split(", ")]
    text = re.sub(rf'{imports}|    "(?:{some})": "service\.features.*\n', "", text)
    for name in names:
        text = text.replace(f"    {name},\n", "")
    file.write_text(text)
