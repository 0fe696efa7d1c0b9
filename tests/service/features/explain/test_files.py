"""`gradcam explain`: the same engine without a server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient
from typer.main import get_command
from typer.testing import CliRunner

from service.cli.main import cli, main
from service.core.errors import ConfigError
from service.models.catalog import read_catalog
from service.pipeline.parameters import Parameters
from service.settings import Settings
from tests.service.conftest import MODEL, running_app
from tests.service.live import ROOT

pytestmark = pytest.mark.contract

CAT = "docs/photos/chelsea.png"


def explain(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["explain", *arguments], env={"COLUMNS": "200"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


PINNED = """
[[models]]
name = "efficientnet-lite0"
source = "embedded:efficientnet-lite0"
layout = "contiguous"
"""
"""Where it is told by trying, two copies may differ in the last bits."""


def test_its_version() -> None:
    result = CliRunner().invoke(cli, ["--version"])
    assert (result.exit_code, result.output) == (
        0,
        f"gradcam-service {version('gradcam-service')}\n",
    )


@pytest.mark.slow
def test_it_writes_what_the_service_answers(tmp_path: Path) -> None:
    models = tmp_path / "models.toml"
    models.write_text(PINNED)
    photos = (CAT, "docs/photos/coffee.png")
    code, text = explain(
        *photos, "--fit", "squash", "--models", str(models), "--output", str(tmp_path)
    )
    assert code == 0
    assert "285 Egyptian cat" in text
    assert "967 espresso" in text
    assert "0.773" in text
    written = tmp_path / "chelsea.gradcam.png"
    assert str(written) in text
    with running_app(Settings(), read_catalog(models)) as client:
        response = client.post(
            f"{MODEL}:explain",
            params={"fit": "squash"},
            content=Path(CAT).read_bytes(),
            headers={"Content-Type": "image/png", "Accept": "image/png"},
        )
    served = Image.open(BytesIO(response.content))
    assert Image.open(written).tobytes() == served.tobytes()


def test_it_has_each_parameter_of_explain() -> None:
    group: Any = get_command(cli)
    command = group.get_command(None, "explain")
    options = {option.name: option for option in command.params}
    for name, field in Parameters.model_fields.items():
        assert options[name].help == field.description
        assert f"--{name.replace('_', '-')}" in options[name].opts


@pytest.mark.slow
def test_the_parameters_are_those_of_http(tmp_path: Path, client: TestClient) -> None:
    asked = {"signed": "true", "size": "layer", "normalize": "percentile", "target": "espresso"}
    options = ["--signed", "--size", "layer", "--normalize", "percentile", "--target", "espresso"]
    code, text = explain(CAT, *options, "--output", "values", "--folder", str(tmp_path / "a"))
    assert code == 0, text
    answer = client.post(
        f"{MODEL}:explain",
        params=asked,
        content=Path(CAT).read_bytes(),
        headers={"Content-Type": "image/png", "Accept": "application/x-npy"},
    )
    found = np.load(tmp_path / "a" / "chelsea.gradcam.npy")
    assert np.allclose(found, np.load(BytesIO(answer.content)), atol=1e-3)
    assert found.min() < 0
    code, text = explain(CAT, "--output", "panel", "--folder", str(tmp_path / "b"))
    assert code == 0, text
    with Image.open(CAT) as photo, Image.open(tmp_path / "b" / "chelsea.gradcam.png") as panel:
        assert panel.width > 2 * photo.width


@pytest.mark.slow
def test_it_says_how_good_the_maps_are(tmp_path: Path) -> None:
    asked = ("--evaluate", "complexity", "--evaluate", "completeness")
    code, text = explain(CAT, *asked, "--output", str(tmp_path))
    assert code == 0
    assert "scores" in text
    assert re.search(r"complexity 0\.\d+", text)
    assert "completeness –" in text  # gradcam promises none


@pytest.mark.slow
def test_several_targets_and_layers_make_a_file_each(tmp_path: Path) -> None:
    code, text = explain(
        *(CAT, "--target", "285", "--target", "tabby", "--layer", "bn2", "--layer", "blocks.5"),
        *("--method", "layercam", "--output", str(tmp_path)),
    )
    assert code == 0
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == [f"chelsea.layercam{each}.png" for each in (".1", ".2", ".3", "")]
    assert text.count("285 Egyptian cat") == 2
    assert text.count("281 tabby") == 2


@pytest.mark.slow
def test_each_reason_makes_a_file(tmp_path: Path) -> None:
    asked = ("--fit", "squash", "--reasons", "3", "--output", str(tmp_path))
    code, text = explain("docs/photos/coffee.png", *asked)
    assert code == 0
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == [f"coffee.gradcam{each}.png" for each in (".1", ".2", "")]
    assert text.count("967 espresso") == 3
    (first, second, third) = map(float, re.findall(r" (0\.\d{3}) ", text))
    assert first > 0.8 > 0.2 > second > third  # as docs/methods.md tells


@pytest.mark.slow
def test_a_photo_that_fails_leaves_the_others(tmp_path: Path) -> None:
    (tmp_path / "not.png").write_text("I am a cat")
    code, text = explain(
        *(str(tmp_path / "not.png"), str(tmp_path / "missing.png"), CAT),
        *("--output", str(tmp_path / "out")),
    )
    assert code == 1
    assert "the 10 bytes are not a JPEG" in text
    assert "No such file" in text
    assert (tmp_path / "out" / "chelsea.gradcam.png").exists()


@pytest.mark.slow
def test_photos_of_one_name_have_a_picture_each(tmp_path: Path) -> None:
    names = ["a/cat.png", "b/cat.jpg", "CAT.png", "cat-2.png"]
    for shade, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (30 + shade, 30), (60 * shade, 0, 0)).save(tmp_path / name)
    output = tmp_path / "out"
    code, _ = explain(*(str(tmp_path / name) for name in names), "--output", str(output))
    assert code == 0
    widths = {}
    for file in output.iterdir():
        with Image.open(file) as picture:
            widths[file.name] = picture.width
    written = ["cat", "cat-2", "CAT-3", "cat-2-2"]
    assert widths == {f"{name}.gradcam.png": 30 + turn for turn, name in enumerate(written)}


@pytest.mark.slow
def test_what_has_no_end_is_no_photo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    code, text = explain(str(tmp_path / "pipe.png"), "/dev/zero", CAT, "--output", str(tmp_path))
    assert code == 1
    assert text.count("cannot be read: it is not a file") == 2
    assert (tmp_path / "chelsea.gradcam.png").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--method", "gradcam2"], "there is no method 'gradcam2'; the methods are gradcam,"),
        (["--model", "resnet"], "there is no model 'resnet'; the models are efficientnet-lite0"),
        (["--target", "kitten"], "no class is called 'kitten'; the nearest labels are"),
        (["--target", "1000"], "class index 1000 is out of range; model 'efficientnet-lite0'"),
        (["--layer", "conv9"], "model 'efficientnet-lite0' has no layer 'conv9'; the nearest"),
        (["--method", "rollout"], "model 'efficientnet-lite0' cannot do rollout: it needs a"),
        (["--prompts", "a cat"], "model 'efficientnet-lite0' takes no prompts: it is not an image"),
        (["--opacity", "2"], "opacity is '2': it should be a number from 0 to 1, or heat"),
        (["--opacity", "0.2", "--opacity", "0.3"], "opacity is given 2 times; give it once"),
        (["--size", "photo"], "size is 'photo': it should be 'image', 'model' or 'layer'"),
        (["--models", "missing.toml"], "missing.toml: cannot be read"),
    ],
)
def test_a_mistake_is_a_sentence_and_exit_code_2(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "out"
    command = ["gradcam", "explain", CAT, "--output", str(output), *arguments]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"gradcam: {words}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_names_that_are_no_text_are_escaped_when_they_are_printed(
    tmp_path: Path, encoding: str
) -> None:
    names = [os.fsdecode(b"caf\xe9.png"), "été [b].png"]
    for name in names:
        shutil.copy(CAT, tmp_path / name)
    photos = [str(tmp_path / name) for name in names]
    done = subprocess.run(
        [sys.executable, "-m", "service", "explain", *photos, "/caf\udce9", "--output", "out"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONIOENCODING": f"{encoding}:strict",
            "COLUMNS": "400",
        },
        capture_output=True,
    )
    assert done.returncode == 1, done.stderr
    said = done.stdout.decode(encoding)
    assert said.count("caf\\udce9.png") == 1
    assert "out/caf\\udce9.gradcam.png" in said
    assert "/caf\\udce9 cannot be read: No such file" in said
    assert ("été [b].png" if encoding == "utf-8" else r"\xe9t\xe9 [b].png") in said
    assert {os.fsencode(file.name) for file in (tmp_path / "out").iterdir()} == {
        *(b"caf\xe9.gradcam.png", "été [b].gradcam.png".encode())
    }


@pytest.mark.slow
def test_the_contract_is_utf_8_whatever_the_terminal_is() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "service", "openapi"],
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii:strict"},
        capture_output=True,
    )
    assert done.stdout == (ROOT / "openapi" / "openapi.json").read_bytes(), done.stderr


@pytest.mark.slow
def test_the_contract_needs_no_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "service", "openapi"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "fastapi" in imported
    assert not imported & {"torch", "torchvision", "timm"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("file", "file cannot be used: File exists"),
        ("file/out", "file/out cannot be used: Not a directory"),
        ("/proc/out", "/proc/out cannot be used: "),
        ("out", "out/chelsea.gradcam.png cannot be written: Is a directory"),
    ],
)
def test_pictures_that_cannot_be_written_are_told(tmp_path: Path, output: str, words: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "out" / "chelsea.gradcam.png").mkdir(parents=True)
    with pytest.raises(ConfigError) as error:
        explain(CAT, "--output", str(tmp_path / output))
    assert words in str(error.value)
