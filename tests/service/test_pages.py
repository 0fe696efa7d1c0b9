"""The page for people who come from another package, the cheat sheet and the notebook: what they
show runs, what they name exists, and the maps are those of the other packages."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
import torch
import typer.main
from torch import nn

import cam
from cam import METHODS, METRICS, ClassTarget
from cam.drawing.heatmap import minmax
from cam.drawing.placement import resize
from service.cli.main import cli
from service.pipeline.parameters import Parameters
from tests.service.live import ROOT

DOCS = ROOT / "docs"
HERE = "http://127.0.0.1:8000"
COMING_FROM = (DOCS / "coming-from.md").read_text()
CHEAT_SHEET = (DOCS / "cheat-sheet.md").read_text()
NOTEBOOK = json.loads((DOCS / "notebook.ipynb").read_text())
PEERS = ("pytorch_grad_cam", "captum", "torchcam")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def lines(text: str, word: str) -> list[str]:
    """The lines of the shell blocks that begin with a word."""
    return [line for line in "".join(blocks(text, "sh")).splitlines() if line.startswith(word)]


def table(text: str, header: str) -> list[list[str]]:
    """The cells of the rows below a table's header."""
    rows = text.partition(f"\n| {header} |")[2].partition("\n\n")[0].splitlines()[2:]
    assert rows, header
    return [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in rows]


def section(text: str, heading: str) -> str:
    return text.partition(f"\n{heading}\n")[2].partition("\n## ")[0]


def peers_of(block: str) -> list[str]:
    """The other packages that a block imports."""
    roots = {
        node.module.partition(".")[0]
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom) and node.module
    }
    return [peer for peer in PEERS if peer in roots]


def alike(one: Any, other: Any, share: float = 1e-4) -> None:
    np.testing.assert_allclose(one, other, rtol=0, atol=share * np.abs(one).max())


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the photos, in which the test runs and may write."""
    (tmp_path / "docs").symlink_to(DOCS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("peer", PEERS)
def test_each_section_shows_both_halves(peer: str) -> None:
    heading = peer.replace("pytorch_grad_cam", "pytorch-grad-cam")
    shown = [peers_of(block) for block in blocks(section(COMING_FROM, f"## {heading}"), "python")]
    assert [peer] in shown
    assert [] in shown
    assert all(each in ([peer], []) for each in shown)


@pytest.mark.slow
def test_the_page_for_those_who_come_from_another_package(clone: Path, address: str) -> None:
    """Blocks of a package that is not installed are only parsed; all others run, in order."""
    space: dict[str, Any] = {}
    asked: list[str] = []
    compared: list[str] = []
    for block in blocks(COMING_FROM, "python"):
        peers = peers_of(block)
        if not all(find_spec(peer) for peer in peers):
            continue
        asked = peers or asked
        with warnings.catch_warnings():
            if peers:
                warnings.simplefilter("ignore")
            exec(block.replace(HERE, address), space)
        if "served" in space:
            alike(space["explanation"].map, space.pop("served"), 1e-3)
            compared.append("served")
        if "ours" in space:
            ours = space.pop("ours")
            assert np.ptp(ours) > 0
            if "theirs" in space:
                alike(ours, space.pop("theirs"))
                compared += asked
    assert "theirs" not in space
    assert set(compared) == {"served", *(peer for peer in PEERS if find_spec(peer))}
    assert (space["smooth"].map.shape, space["fused"].map.shape) == ((7, 7), (14, 14))
    assert space["fused"].layer == "blocks.4 + bn2"


@pytest.mark.slow
@pytest.mark.parametrize("line", lines(COMING_FROM, "curl"))
def test_its_requests(line: str, clone: Path, address: str) -> None:
    said = shell(line.replace(HERE, address))
    if "-o overlay.png" in line:
        assert (clone / "overlay.png").read_bytes().startswith(b"\x89PNG")
        return
    (explanation,) = json.loads(said)["explanations"]
    side = 7 if "size=layer" in line else 224
    assert explanation["heatmap"]["shape"] == [side, side]
    assert explanation["heatmap"]["encoding"] == "float32"
    assert explanation["layer"] == "bn2"


def shell(line: str) -> str:
    command = re.sub(r"^curl -s ", "curl -sS --fail-with-body ", line, flags=re.MULTILINE)
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == 0, done
    return done.stdout


NAMES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "pytorch_grad_cam": (
        (
            "pytorch-grad-cam | `method` | what differs",
            "pytorch-grad-cam | `cam.explain(…, target=…)` | HTTP",
            "pytorch-grad-cam | metric",
        ),
        ("", ".utils.model_targets", ".metrics.road", ".metrics.cam_mult_image", ".metrics.arcc"),
    ),
    "captum": (("captum | `method` | what differs",), (".attr", ".metrics")),
    "torchcam": (("torchcam | `cam` | what differs",), (".methods", ".metrics", ".utils")),
}
"""Package → the tables of its names, and its modules that have them."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("peer", NAMES)
def test_what_its_tables_name_exists(peer: str) -> None:
    headers, modules = NAMES[peer]
    rows = [each for header in headers for each in table(COMING_FROM, header)]
    for _, ours, *_ in rows:
        names = set(re.findall(r"`([a-z]+\+*)`", ours))
        assert names <= {*METHODS, *METRICS}, ours
    for name in re.findall(r"`cam\.(\w+)\(", str(rows)):
        assert name in cam.__all__
    if find_spec(peer):
        there = {name for each in modules for name in vars(resolve_name(peer + each))}
        for theirs, *_ in rows:
            assert set(re.findall(r"`([A-Z]\w+|[a-z]+_[a-z]+)\b", theirs)) <= there | {
                "reshape_transform"
            }


def small(classes: int, *end: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    body = (nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU())
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, classes))
    return nn.Sequential(*body, *(end or head)).eval()


MASK = np.zeros((32, 32), np.float32)
MASK[8:20, 4:16] = 1
TARGETS: list[tuple[str, str, Callable[[], nn.Module], Any]] = [
    ("ClassifierOutputTarget(285)", "285", lambda: small(1000), {}),
    (
        "ClassifierOutputSoftmaxTarget(285)",
        'ClassTarget(285, of="probability")',
        lambda: small(1000),
        {},
    ),
    ("BinaryClassifierOutputTarget(1)", "1", lambda: small(1), {"activation": "sigmoid"}),
    ("BinaryClassifierOutputTarget(0)", "0", lambda: small(1), {"activation": "sigmoid"}),
    ("RawScoresOutputTarget()", "0", lambda: raised(small(1)), {"activation": "none"}),
    (
        "SemanticSegmentationTarget(7, mask)",
        "ClassTarget(7, mask=mask)",
        lambda: small(0, nn.Conv2d(16, 9, 1), nn.Upsample(scale_factor=4)),
        {},
    ),
]


def raised(model: nn.Module) -> nn.Module:
    """With outputs that nobody takes for probabilities."""
    bias = list(model.parameters())[-1]
    nn.init.constant_(bias, 40)
    return model


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("theirs", "ours", "build", "options"), TARGETS, ids=[each[0] for each in TARGETS]
)
def test_a_target_of_the_table_is_that_of_pytorch_grad_cam(
    theirs: str, ours: str, build: Callable[[], nn.Module], options: dict[str, Any]
) -> None:
    peer = pytest.importorskip("pytorch_grad_cam")
    targets = vars(resolve_name("pytorch_grad_cam.utils.model_targets"))
    assert f"`{theirs.partition('(')[0]}(" in COMING_FROM
    assert f"`{ours}`" in COMING_FROM
    model = build()
    image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with peer.GradCAM(model=model, target_layers=[model.get_submodule("2")]) as grad_cam:
        found = grad_cam(image, [eval(theirs, targets, {"mask": MASK})])[0]
    target = eval(ours, {"ClassTarget": ClassTarget, "mask": MASK.astype(bool)})
    (explanation,) = cam.explain(model, image, target=target, layer="2", **options)
    assert np.ptp(found) > 0
    alike(minmax(resize(explanation.map, 32, 32)), found)


def cells(kind: str) -> list[str]:
    return ["".join(each["source"]) for each in NOTEBOOK["cells"] if each["cell_type"] == kind]


def test_the_notebook_is_a_notebook_without_outputs() -> None:
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    assert NOTEBOOK.keys() == {"cells", "metadata", "nbformat", "nbformat_minor"}
    common = {"cell_type", "id", "metadata", "source"}
    for each in NOTEBOOK["cells"]:
        code = each["cell_type"] == "code"
        assert each.keys() == common | ({"execution_count", "outputs"} if code else set())
        assert not each.get("outputs")
        assert each.get("execution_count") is None
    names = [each["id"] for each in NOTEBOOK["cells"]]
    assert len({*names}) == len(names)
    for text in cells("markdown"):
        for address in re.findall(r"\]\(([^)]+)\)", text):
            assert (DOCS / address).exists()


@pytest.mark.slow
def test_the_notebook(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(DOCS)
    space: dict[str, Any] = {}
    for text in cells("code"):
        exec(text, space)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("espresso 0.9")
    assert "espresso" in said[2]
    assert float(said[2].split()[-1]) < 0.5 < float(said[2].split()[3].rstrip(","))
    assert space["explanation"].input.picture().shape == (224, 224, 3)
    assert len(space["maps"]) == 16


COMMANDS = lines(CHEAT_SHEET, "gradcam ")


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_cheat_sheet_is_read(line: str) -> None:
    _, name, *words = shlex.split(line.partition(" >>")[0], comments=True)
    group: Any = typer.main.get_command(cli)
    command = group.get_command(None, name)
    given = command.make_context(name, words).params
    asked = {word[2:].replace("-", "_") for word in words if word.startswith("--")}
    assert all(given["form" if each == "format" else each] for each in asked)


def test_the_cheat_sheet_has_each_command_once() -> None:
    group: Any = typer.main.get_command(cli)
    assert {line.split()[1] for line in COMMANDS} == {*group.list_commands(None)} - {"openapi"}
    assert len(COMMANDS) == 13


REQUESTS = lines(CHEAT_SHEET, "curl ")


@pytest.mark.slow
@pytest.mark.parametrize("line", REQUESTS)
def test_a_request_of_the_cheat_sheet(line: str, clone: Path, address: str) -> None:
    (named,) = lines(CHEAT_SHEET, "PHOTO=")
    said = shell(f"{named.replace(HERE, address)}\n{line}")
    written = re.findall(r"-o (\S+)", line)
    if written:
        assert (clone / written[0]).read_bytes().startswith(b"\x89PNG")
        return
    answer = json.loads(said)
    if ":explain" in line:
        assert len(answer["explanations"]) == max(line.count("method="), 1)
        assert "tabby" in {each["target"]["label"] for each in answer["explanations"]}
    else:
        expected = {":predict": "predictions", ":evaluate": "evaluations", "/jobs": "id"}
        (key,) = {name for word, name in expected.items() if word in line} or {"default_layer"}
        assert answer[key]


def test_the_library_on_the_cheat_sheet() -> None:
    assert len(REQUESTS) == 8
    (block,) = blocks(CHEAT_SHEET, "python")
    space: dict[str, Any] = {}
    exec(block, space)
    calls = ("explain", "evaluate", "survey", "observe", "Capture")
    assert all(f"{call}(model, " in block for call in calls)
    assert (space["explanation"].layer, space["explanation"].target.index) == ("layer4", 7)
    made = [space["explanation"], space["scores"]["deletion"], space["layers"][0], space["seen"]]
    for (call, gives), each in zip(
        table(CHEAT_SHEET, "call | what it gives"), [*made, space["capture"]], strict=True
    ):
        for name in re.findall(r"`(\w+)", gives):
            assert hasattr(each, name), (call, name)
    assert len(space["scores"]["deletion"].details["curve"]) == 31
    assert len(space["seen"].strongest(9, "activation")) == 9
    capture = space["capture"]
    assert not capture.activations["layer2"][:, 3].any()
    assert capture.gradients["layer4"].shape == capture.activations["layer4"].shape


def choices(name: str) -> list[Any]:
    """The values that the schema of a parameter lists, and the bounds of its numbers."""
    schema = Parameters.model_json_schema()

    def found(part: Any) -> Iterator[Any]:
        if isinstance(part, dict):
            yield from part.get("enum", ())
            yield from (part[key] for key in ("const", "minimum", "maximum") if key in part)
            if "$ref" in part:
                yield from found(schema["$defs"][part["$ref"].rpartition("/")[2]])
            part = list(part.values())
        for each in part if isinstance(part, list) else ():
            yield from found(each)

    return list(dict.fromkeys(found(schema["properties"][name])))


@contextmanager
def row(cells_: list[str]) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{cells_}: {error}") from error


def test_the_parameters_of_the_cheat_sheet() -> None:
    rows = table(CHEAT_SHEET, "parameter | values | default | what")
    assert len(rows) >= 15
    explain: Any = typer.main.get_command(cli)
    options = {each.name for each in explain.get_command(None, "explain").params}
    for cells_ in rows:
        name, values, default, _ = cells_
        with row(cells_):
            field = Parameters.model_fields[name.strip("`")]
            assert name.strip("`") in options
            known = choices(name.strip("`"))
            listed = re.findall(r"`(\w+)`", values)
            allowed = [each for each in known if isinstance(each, str)]
            if "others" in values or not allowed or "](" in values:
                assert set(listed) <= {*allowed, "true", "false"}
            else:
                assert listed == allowed
            usual = re.findall(r"^`([\w.]+)`", default)
            if field.default not in (None, []):
                assert usual == [str(field.default).lower()]
            if bounds := re.match(r"([\d.]+) … ([\d.]+)", values):
                assert {float(bounds[1]), float(bounds[2])} <= {*known}


def test_the_targets_and_methods_of_the_cheat_sheet() -> None:
    for target, _ in table(CHEAT_SHEET, "target | what is explained"):
        for each in re.findall(r"`([^`]+)`", target):
            Parameters.model_validate({"target": json.loads(each) if "{" in each else each})
    for _, methods in table(CHEAT_SHEET, "what for | method"):
        assert set(re.findall(r"`(\w+)`", methods)) <= {*METHODS, "minus"}
