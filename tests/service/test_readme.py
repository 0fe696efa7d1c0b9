"""What the README and the pages of docs/ say is so: examples run, tables are the code's.

The pages whose blocks build on one another are in test_documents.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from PIL import Image
from pydantic import BaseModel
from starlette.testclient import TestClient

from cam import COLORMAPS, METHODS
from service.app import create_app
from service.cli.main import cli
from service.core.settings import PREFIX
from service.features import operations
from service.models.catalog import ModelEntry, read_catalog
from service.pipeline.outputs import OUTPUTS
from service.pipeline.parameters import Parameters
from service.settings import Settings
from tests.service.live import ROOT, serving
from tests.waiting import until

README = (ROOT / "README.md").read_text()
HTTP_API, JOBS, CONFIGURATION, SECURITY, DEPLOYMENT, INDEX = (
    (ROOT / "docs" / f"{name}.md").read_text()
    for name in (
        "http-api",
        "batch-and-jobs",
        "configuration",
        "security",
        "deployment",
        "index",
    )
)
FENCES = re.findall(
    r"```(\w+)\n(.*?)```",
    "\n".join((README, INDEX, HTTP_API, JOBS, CONFIGURATION, SECURITY, DEPLOYMENT)),
    re.DOTALL,
)


def fences(language: str, word: str) -> list[str]:
    """The blocks with that word, each once."""
    found = [text for name, text in FENCES if name == language and word in text]
    assert found
    return list(dict.fromkeys(found))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder in which examples may write, with the repository's photos."""
    shutil.copytree(ROOT / "docs" / "photos", tmp_path / "docs" / "photos")
    return tmp_path


def commands(word: str) -> list[str]:
    text = "\n".join(fences("sh", word)).replace("\\\n", "")
    return list(dict.fromkeys(line for line in text.splitlines() if line.startswith(word)))


def test_the_readme_is_short_and_begins_with_what_a_stranger_needs() -> None:
    lines = README.splitlines()
    assert len(lines) <= 150
    top = "\n".join(lines[:40])
    for each in ("![", "\nmake serve ", "\nmake test ", "\ncurl --data-binary @docs/photos/"):
        assert each in top
    assert README.count("![") == 2, "what the service returns, and the page"
    assert f"{len(METHODS)} methods" in README
    assert f"[{len(METHODS)} methods]" in INDEX
    (block,) = fences("python", "from service.client import Client\n\nwith Client")[:1]
    assert len(block.splitlines()) <= 10


@pytest.mark.parametrize("line", [line for line in commands("curl") if "$KEY" not in line])
def test_curl(line: str, address: str, clone: Path) -> None:
    line = line.replace("http://127.0.0.1:8000", address)
    command = line.replace("curl ", "curl --fail-with-body -sS ", 1)
    done = subprocess.run(command, shell=True, cwd=clone, capture_output=True, text=True)
    assert done.returncode == 0, done
    if "-o overlay.png" in line:
        assert (clone / "overlay.png").read_bytes().startswith(b"\x89PNG")
    else:
        assert ('"id":' if "/v1/jobs" in line else '"label":') in done.stdout


@pytest.mark.slow
def test_with_keys(tmp_path: Path) -> None:
    """The lines that make keys, and those that use them."""
    made = [line for line in commands("gradcam key") if ">> keys.toml" in line]
    gradcam = f"{sys.executable} -m service"
    said = [
        subprocess.run(
            line.replace("gradcam", f"PYTHONPATH={ROOT} {gradcam}", 1),
            shell=True,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stderr
        for line in made
    ]
    keys = [re.findall(r"gradcam_\S{43}", each)[0] for each in said]
    arguments = ("--keys", str(tmp_path / "keys.toml"))
    with serving(*arguments, GRADCAM_ALLOWED_SOURCES="timm:*") as (_, http):
        lines = [line for line in commands("curl") if "$KEY" in line]
        assert len(lines) == 3
        for line, key in zip(lines, (keys[0], keys[1], keys[1]), strict=True):
            line = line.replace("http://127.0.0.1:8000", str(http.base_url).rstrip("/"))
            line = line.replace('torchvision:resnet50"', 'timm:test_resnet", "weights": "none"')
            command = line.replace("curl ", "curl --fail-with-body -sS ", 1)
            done = subprocess.run(f"KEY={key}; {command}", shell=True, capture_output=True)
            assert done.returncode == 0, done
            if "POST" in line:
                asked = partial(http.get, "/v1/models/r50", headers={"X-API-Key": key})
                until(lambda asked=asked: asked().status_code != 503, 120)  # type: ignore[misc]
        models = http.get("/v1/models", headers={"X-API-Key": keys[0]}).json()
        assert models == {"models": ["efficientnet-lite0"]}


def python(text: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_python_client(address: str, clone: Path) -> None:
    (text,) = fences("python", 'explain("docs/photos')
    said = python(text.replace("http://127.0.0.1:8000", address), clone)
    assert re.fullmatch(r"tabby 0\.0\d+ .*\n\(300, 451\) 1\.0\n", said), said
    assert (clone / "chelsea.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_jobs_in_python(address: str, clone: Path) -> None:
    (text,) = fences("python", "client.submit")
    said = python(text.replace("http://127.0.0.1:8000", address), clone)
    assert sorted(said.splitlines()) == [
        "docs/photos/chelsea.png Egyptian cat",
        "docs/photos/coffee.png espresso",
    ]
    assert zipfile.is_zipfile(clone / "job.zip")


@pytest.mark.slow
def test_a_batch(clone: Path) -> None:
    (line,) = [line for line in commands("gradcam batch") if "/shared" not in line]
    words = line.replace("gradcam", f"{sys.executable} -m service", 1).split()
    done = subprocess.run(
        words,
        cwd=clone,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (clone / "explained" / "manifest.parquet").exists()
    assert "Egyptian cat" in (clone / "explained" / "report.html").read_text()


@pytest.mark.slow
def test_photos_without_a_server(clone: Path) -> None:
    (line,) = commands("gradcam explain")
    done = subprocess.run(
        line.replace("gradcam", f"{sys.executable} -m service", 1),
        shell=True,
        cwd=clone,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Egyptian cat" in done.stdout
    assert len(list((clone / "explanations").iterdir())) == 2


@pytest.mark.skipif(not shutil.which("node"), reason="there is no node")
def test_javascript(address: str, clone: Path) -> None:
    (text,) = fences("js", "fetch")
    around = (
        "const { readFileSync } = require('fs'); const picture = {};"
        "const photo = new Blob([readFileSync('docs/photos/chelsea.png')], {type: 'image/png'});"
        "(async () => {%s; console.log(picture.src.slice(0, 22)) })()"
    )
    script = around % text.replace("http://127.0.0.1:8000", address)
    done = subprocess.run(
        ["node", "-e", script], cwd=clone, capture_output=True, text=True, check=False
    )
    assert "Egyptian cat 0.7" in done.stdout, done.stderr
    assert "data:image/png;base64," in done.stdout


def test_the_commands_are_the_makefiles() -> None:
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("\nmake test\nmake check")
    makefile = (ROOT / "Makefile").read_text()
    told = (ROOT / "docs" / "contributing.md").read_text()
    named = re.findall(r"^\| `make (\S+)` \|", told, re.MULTILINE)
    assert len(named) > 5
    for target in [*named, *(line.split()[1] for line in commands("make "))]:
        assert f"\n{target}:" in makefile


def test_the_commands_of_the_command_line() -> None:
    group: Any = typer.main.get_command(cli)
    names = group.list_commands(None)
    first, second = CONFIGURATION.partition("The\noptions are:")[::2]
    assert set(re.findall(r"^\| `gradcam (\w+)` \|", first, re.MULTILINE)) == set(names)
    schemas = {operation.name: operation.parameters for operation in operations()}

    def of_all(operation: re.Match[str]) -> str:
        names = schemas[operation[1]].model_fields
        return ", ".join(f"`--{name.replace('_', '-')}`" for name in names)

    second = re.sub(r"one for each \[parameter\]\(\S+\) of `:(\w+)`", of_all, second)
    told = dict(re.findall(r"^\| `gradcam (\w+)` \| (.*) \|$", second, re.MULTILINE))
    for name in names:
        parameters = group.get_command(None, name).params
        options = [each for option in parameters for each in option.opts if each[:2] == "--"]
        assert told.get(name, "") == ", ".join(f"`{each}`" for each in options)


def test_the_measurements_that_are_named_exist() -> None:
    told = (ROOT / "docs" / "contributing.md").read_text()
    modules = re.findall(r"`python (?:-m bench\.|bench/)(\w+)", told)
    assert len(modules) > 10
    for module in modules:
        assert (ROOT / "bench" / f"{module}.py").exists()


def table(model: type[BaseModel], prefix: str = "") -> str:
    rows = ["| | default | |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        shown = "" if field.is_required() or field.default in (None, "") else f"`{field.default}`"
        shown = "required" if field.is_required() else shown
        rows.append(
            f"| `{prefix}{name if not prefix else name.upper()}` | {shown} | {field.description} |"
        )
    return "\n".join(rows)


@pytest.mark.parametrize(
    ("mark", "expected"),
    [("settings", table(Settings, PREFIX)), ("models", table(ModelEntry))],
)
def test_configuration_tables(mark: str, expected: str) -> None:
    found = re.search(rf"<!-- {mark} -->\n(.*?)\n?<!-- /{mark} -->", CONFIGURATION, re.DOTALL)
    assert found
    assert found[1] == expected


def rows(header: str) -> dict[str, str]:
    section = HTTP_API[HTTP_API.index(header) :].partition("\n\n")[0]
    return dict(re.findall(r"^\| (.+?) \| (.*) \|$", section, re.MULTILINE)[1:])


def test_the_parameters() -> None:
    named = rows("| parameter | default | what |")
    assert {name.strip("`") for name in named} == set(Parameters.model_fields)
    assert named["`output`"].endswith(
        "; ".join(f"`{name}`: {form.told}" for name, form in OUTPUTS.items())
    )
    for name in METHODS:
        assert f"`{name}`" in named["`method`"]
    for name in COLORMAPS:
        assert f"`{name}`" in named["`colormap`"]


def test_the_routes() -> None:
    named = " ".join(rows("| route | what |"))
    paths: dict[str, Any] = create_app(Settings()).openapi()["paths"]
    for path, verbs in paths.items():
        for verb in verbs:
            assert f"`{verb.upper()} {path}`" in named


def test_the_examples_of_models_are_catalogs(tmp_path: Path) -> None:
    named = []
    for text in fences("toml", "[[models]]"):
        (tmp_path / "models.toml").write_text(text)
        named.append([entry.name for entry in read_catalog(tmp_path / "models.toml")])
    assert named == [["birds"], ["resnet50", "birds", "mine"]]


def test_the_architecture_names_every_module() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    for file in [*ROOT.glob("cam/**/*.py"), *ROOT.glob("service/*/**/*.py")]:
        folder, name = file.parent, file.stem
        if folder.name.startswith("_"):  # it stands in the table of the package around it
            folder, name = folder.parent, f"{folder.name}/{name}"
        path = folder.relative_to(ROOT).as_posix()
        part = text.partition(f"### {path}\n")[2].partition("\n### ")[0]
        if file.stem != "__init__":
            assert f"| `{name}` |" in part, file


def test_the_overlays_are_what_the_service_makes(client: TestClient) -> None:
    for name in ("chelsea", "coffee"):
        response = client.post(
            "/v1/models/efficientnet-lite0:explain",
            params={"fit": "squash"},
            content=(ROOT / "docs" / "photos" / f"{name}.png").read_bytes(),
            headers={"Content-Type": "image/png", "Accept": "image/png"},
        )
        shown = (ROOT / "docs" / "overlays" / f"{name}.gradcam.png").read_bytes()
        assert alike(response.content, shown)


def test_the_figures_are_what_the_service_makes(client: TestClient) -> None:
    contrast = '{"class": "tabby", "minus": "tiger cat"}'
    figures = {
        "panel": (":explain", {"output": "panel"}),
        "signed": (":explain", {"output": "panel", "signed": "true", "target": contrast}),
        "concepts": (":activations", {"concepts": "5"}),
    }
    for name, (verb, query) in figures.items():
        response = client.post(
            f"/v1/models/efficientnet-lite0{verb}",
            params={"fit": "squash", **query},
            content=(ROOT / "docs" / "photos" / "chelsea.png").read_bytes(),
            headers={"Content-Type": "image/png", "Accept": "image/png"},
        )
        shown = (ROOT / "docs" / "overlays" / f"chelsea.{name}.png").read_bytes()
        assert alike(response.content, shown), name


def alike(one: bytes, other: bytes) -> bool:
    first, second = (np.asarray(Image.open(BytesIO(each)), float) for each in (one, other))
    return first.shape == second.shape and float(np.abs(first - second).mean()) < 1
