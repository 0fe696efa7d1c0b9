"""A colour map or a picture format that one table names is served."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service.live import ROOT

ADDED = {
    "cam/drawing/overlay.py": ('    "turbo": ', '    "red": _between((0, 0, 0), (255, 0, 0)),\n'),
    "service/pipeline/rendering.py": (
        '    "image/webp": ',
        '    "image/bmp": (".bmp", ()),\n',
    ),
}
"""File → the member of its table before which one is added."""
SERVED = """
from io import BytesIO

import numpy as np
from PIL import Image

from service.features.batch.configuration import FORMATS
from service.models.catalog import ModelEntry
from service.settings import Settings
from tests.service.conftest import encoded, noise, running_app

source = "factory:tests.service.factories:tiny"
entry = ModelEntry(name="m", source=source, weights="none", input_size=8)
with running_app(Settings(), [entry]) as client:
    answer = client.post(
        "/v1/models/m:explain?output=heatmap&colormap=red",
        content=encoded(noise(8, 8, 0)),
        headers={"Content-Type": "image/png", "Accept": "image/bmp", "Host": "localhost"},
    )
    assert answer.status_code == 200, answer.text
    with Image.open(BytesIO(answer.content)) as picture:
        assert picture.format == "BMP"
        red, *others = np.asarray(picture).transpose(2, 0, 1)
    assert red.max() == 255
    assert not np.any(others)
    document = client.get("/openapi.json", headers={"Host": "localhost"}).json()
operation = document["paths"]["/v1/models/{model}:explain"]["post"]
assert "`image/bmp`" in operation["description"]
assert "image/bmp" in operation["responses"]["200"]["content"]
assert "red" in document["components"]["schemas"]["Colormap"]["enum"]
assert FORMATS["bmp"] == "image/bmp"
"""


@pytest.mark.slow
def test_what_is_added_to_one_table_is_served(tmp_path: Path) -> None:
    for folder in ("cam", "service"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("node_modules")
        )
    for name, (before, added) in ADDED.items():
        file = tmp_path / name
        text = file.read_text()
        assert text.count(before) == 1, name
        file.write_text(text.replace(before, added + before))
    done = subprocess.run(
        [sys.executable, "-c", SERVED],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
