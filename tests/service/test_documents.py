"""The pages of docs/ that people paste from: every block runs as it stands."""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.service.live import ROOT, serving, until_ready

LINES = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "cookbook.md").read_text(), re.DOTALL)
CLIENT = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "client.md").read_text(), re.DOTALL)
TUTORIAL = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "library.md").read_text(), re.DOTALL)


def test_the_tutorial_of_the_library() -> None:
    space: dict[str, Any] = {}
    for block in TUTORIAL:
        exec(block, space)
    assert space["seen"].output.shape == space["seen"].gradient.shape == (8, 32, 32)
    assert space["capture"].activations["last"].shape == (2, 16, 16, 16)
    assert space["capture"].gradients["last"].shape == (2, 16, 16, 16)
    picture = space["picture"]
    assert (picture.dtype, picture.shape[2]) == (np.uint8, 3)
    assert len(picture) > 32
    assert space["maps"][0].map.shape == (16, 16)
    assert space["leaves"](space["model"])[:3] == ["first", "relu", "last"]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving() as (process, http):
        until_ready(process, http)
        yield str(http.base_url).rstrip("/")


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
    assert "chelsea.png Egyptian cat\n" in said
    assert "422 urn:gradcam-service:unknown-label" in said
    assert "there is no job 'never-submitted'" in said
    assert "failed" not in said


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
