"""The pages of docs/: every block that people paste runs as it stands, every link leads somewhere,
and what they list is the code's."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import warnings
import zipfile
from dataclasses import fields
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, get_args

import numpy as np
import pytest
import torch
from PIL import Image

import cam
import service.client
from cam import METHODS, METRICS
from cam.evaluation.metrics import MetricOptions
from cam.methods.method import Family
from service.features.evaluate.parameters import EvaluateParameters
from service.loading.served_model import load
from service.models.catalog import EMBEDDED
from service.pipeline.parameters import Parameters
from tests.service.conftest import KEPT
from tests.service.live import ROOT

LINES = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "cookbook.md").read_text(), re.DOTALL)
CLIENT = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "client.md").read_text(), re.DOTALL)
TUTORIAL = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "library.md").read_text(), re.DOTALL)


def test_the_tutorial_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    space: dict[str, Any] = {}
    for block in TUTORIAL:
        exec(block, space)
    lines = capsys.readouterr().out.splitlines()  # of the block at the top
    assert len(lines) == 4
    assert all(re.fullmatch(r"\d+ \S+ \(\d+, \d+\)", line) for line in lines)
    assert space["seen"].output.shape == space["seen"].gradient.shape == (8, 32, 32)
    assert space["capture"].activations["last"].shape == (2, 16, 16, 16)
    assert space["capture"].gradients["last"].shape == (2, 16, 16, 16)
    picture = space["picture"]
    assert (picture.dtype, picture.shape[2]) == (np.uint8, 3)
    assert len(picture) > 32
    assert space["maps"][0].map.shape == (16, 16)
    assert space["leaves"](space["model"])[:3] == ["first", "relu", "last"]


@pytest.mark.slow
def test_the_client(
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {}
    for block in CLIENT:
        exec(block.replace("http://127.0.0.1:8000", address), space)
    with Image.open("overlay.png") as overlay, Image.open("docs/photos/chelsea.png") as photo:
        assert overlay.size == photo.size
    assert zipfile.is_zipfile("job.zip")
    assert space["raw"].map.shape == (7, 7)
    assert space["jpeg"].startswith(b"\xff\xd8")
    assert [(each.method, each.target.label) for each in space["maps"]] == [
        (method, label) for method in ("gradcam", "layercam") for label in ("tabby", "Egyptian cat")
    ]
    assert space["job"].state == "done"
    said = capsys.readouterr().out
    assert said.startswith("espresso\n")  # of AsyncClient
    assert {"chelsea.png Egyptian cat", "coffee.png espresso"} <= set(said.splitlines())
    assert "422 urn:gradcam-service:unknown-label" in said
    assert "there is no job 'never-submitted'" in said
    assert "failed" not in said


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for each in LINES for line in each.splitlines()])
def test_the_cookbook(line: str, address: str, tmp_path: Path) -> None:
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    line = line.replace("http://127.0.0.1:8000", address).replace("curl -s", "curl -fsS")
    done = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if "-o overlay.png" in line:
        assert (tmp_path / "overlay.png").read_bytes().startswith(b"\x89PNG")
        return
    said = json.loads(done.stdout)
    if ":explain" in line:
        found = [each["target"] for each in said["explanations"]]
        photos = line.count("image=@") + line.count('"id"') + line.count("--data-binary")
        targets = max(line.count("target=") // photos, 1)
        methods = max(line.count("method="), 1)
        assert len(found) == photos * targets * methods
        compared = [each.get("agreement", {}) for each in said["explanations"]]
        assert {len(each) for each in compared} == {methods - 1}
        assert all("error" not in each for each in found)
    else:
        assert "predictions" in said or said["name"] == "efficientnet-lite0"


@pytest.mark.slow
def test_the_cookbooks_retries(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs" / "cookbook.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    space: dict[str, Any] = {}
    exec(block.replace("http://127.0.0.1:8000", address), space)
    said = capsys.readouterr().out.splitlines()
    assert said == ["chelsea.png Egyptian cat", "coffee.png espresso"]
    tries = space["tries"]
    for status in (429, 503):
        assert tries.is_retry("POST", status, has_retry_after=True)
    assert not tries.is_retry("POST", 504, has_retry_after=False)
    assert not tries.is_retry("POST", 422, has_retry_after=False)


@pytest.mark.slow
def test_the_page_of_onnx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("openvino")
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "onnx.md").read_text()
    blocks = {
        kind: re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)
        for kind in ("python", "toml", "sh")
    }
    (written, read), (catalog,) = blocks["python"], blocks["toml"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporter warns of itself
        exec(written, {})
    (tmp_path / "models.toml").write_text(catalog)
    for line in blocks["sh"]:
        done = subprocess.run(
            f"{Path(sys.executable).parent}/{line}", shell=True, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert len([*Path("explained").glob("*.png")]) == 2
    space: dict[str, Any] = {}
    exec(read, space)
    assert "Egyptian cat (7, 7)" in capsys.readouterr().out
    (explained,) = cam.explain(
        load(EMBEDDED, KEPT).module,
        torch.from_numpy(space["pixels"].transpose(2, 0, 1)[None]),
        target=space["best"],
        method="cam",
        layer="bn2",
    )
    np.testing.assert_allclose(space["heat"], explained.map, atol=1e-4 * explained.map.max())


def test_the_page_of_metrics_is_the_codes() -> None:
    text = (ROOT / "docs" / "evaluation.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*)\|$", text, re.MULTILINE))
    for name, metric in METRICS.items():
        summary, better, options = (each.strip() for each in rows[name].split("|"))
        assert (summary, better) == (metric.summary, metric.better)
        named = metric.options or (("region",) if metric.needs == "region" else ())
        assert re.findall(r"`(\w+)`", options) == list(named)
        assert f"- `{name}`: {metric.convention(MetricOptions())}." in text
    own = set(EvaluateParameters.model_fields) - set(Parameters.model_fields)
    assert own <= rows.keys()
    assert {each.name for each in fields(MetricOptions)} - {"baselines", "random_maps"} <= own


@pytest.mark.slow
def test_the_request_of_that_page(address: str, tmp_path: Path) -> None:
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    (line,) = re.findall(
        r"```sh\n(.*?)```", (ROOT / "docs" / "evaluation.md").read_text(), re.DOTALL
    )
    line = line.replace("http://127.0.0.1:8000", address)
    done = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert "evaluations" in done.stdout, done.stdout
    (found,) = json.loads(done.stdout)["evaluations"]
    assert list(found["scores"]) == ["insertion", "road", "stability"]


PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/*/*.md")])


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", each.lower()).strip().replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    for address in re.findall(r"\]\(\s*([^)\s]+)\)", text):
        if re.match(r"\w+:", address):
            continue
        path, _, anchor = address.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name}: {address}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {address}"
        if page.parent != ROOT:  # what lies elsewhere is not on the site
            assert target.resolve().is_relative_to(ROOT / "docs"), f"{page.name}: {address}"


METHODS_PAGE = (ROOT / "docs" / "methods.md").read_text()


@cache
def code_of_methods() -> str:
    """The docstrings of the methods' functions and modules."""
    return " ".join(
        " ".join((ast.get_docstring(node) or "").split())
        for pattern in ("methods/**/*.py", "detectors/methods.py")
        for file in ROOT.glob(f"cam/{pattern}")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.Module)
    )


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_described(name: str) -> None:
    """Its formula is that of the code, its cost and budget are what the code says."""
    section = re.split(r"\n###? ", METHODS_PAGE.partition(f"\n### {name}\n")[2])[0]
    (formula,) = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    for line in formula.splitlines():
        assert line in code_of_methods()
    method = METHODS[name]
    number, kind = method.cost.rstrip("s").split()
    passes = f"{number} {kind} pass" + ("" if number == "one" else "es")
    assert f"- **Cost:** {passes}" in section
    assert not method.budget or f"{method.budget:,}" in section
    assert f"- **Paper:** {method.paper}" in section
    assert len(method.paper) > 20
    assert "- **Use it** " in section
    assert f"](methods/{name}.jpg)" in section or "- **Picture:** none" in section


def test_a_chapter_of_methods_is_a_family() -> None:
    chapters = re.split(r"\n## ", METHODS_PAGE)
    named = (re.findall(r"^### (\S+)$", each, re.M) for each in chapters)
    found = [{METHODS[name].family for name in names if name in METHODS} for names in named]
    families = [family for chapter in found for family in chapter]
    assert all(len(chapter) <= 1 for chapter in found)
    assert sorted(families) == sorted({*get_args(Family)} - {"other"})


def test_the_pictures_of_methods_are_small() -> None:
    """As `python -m bench.method_pictures` makes them, of every method that has one."""
    files = [*(ROOT / "docs" / "methods").iterdir()]
    assert {f"methods/{file.name}" for file in files} == {
        *re.findall(r"\]\((methods/[^)]+)\)", METHODS_PAGE)
    }
    assert sum(file.stat().st_size for file in files) <= 600_000
    for file in files:
        with Image.open(file) as picture:
            assert (picture.format, picture.width) == ("JPEG", 256)


@pytest.mark.parametrize(
    ("page", "module", "names"),
    [
        ("api-cam", "cam", cam.__all__),
        ("api-client", "service.client", service.client.__all__),
    ],
)
def test_the_reference_has_every_public_name(page: str, module: str, names: list[str]) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    shown = re.findall(rf"^::: {module}\.(\S+)$", text, re.MULTILINE)
    for name in shown:
        assert resolve_name(f"{module}.{name}")
    # A function in a module of its name is named in the module.
    assert sorted(each.rpartition(".")[2] for each in shown) == sorted(names)


def test_the_site_has_every_page() -> None:
    told = (ROOT / ".zensical.toml").read_text()
    docs = ROOT / "docs"
    for page in [*docs.glob("*.md"), *docs.glob("platforms/*.md"), *docs.glob("integrations/*.md")]:
        assert f'"{page.relative_to(docs).as_posix()}"' in told
