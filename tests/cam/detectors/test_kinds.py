"""Detectors are one of the kinds of output: another one can be added, and they can be deleted."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cam
from cam.detectors import DETECTIONS
from cam.errors import NotLogits
from cam.outputs import KINDS
from cam.outputs.kind import kinds
from cam.outputs.outputs import outputs_of
from tests.tree import ROOT, check, copied, run
from tests.zoo.parts import Net

CELL = 4
"""Pixels of the image on each side of a cell of `NETWORK`."""


def centre_net(x: Tensor, cells: nn.Module) -> dict[str, Tensor]:
    """Where the middle of an object is, and how large it is: as CenterNet returns both."""
    heat = cells(x)[:, :2]
    return {"heat": heat, "sides": torch.full_like(heat, 2.0 * CELL)}


NETWORK = Net(centre_net, cells=nn.AvgPool2d(CELL))


def read(
    raw: Any, size: tuple[int, int] | None, reading: cam.Reading, model: nn.Module | None
) -> dict[str, Any] | None:
    if not isinstance(raw, dict) or raw.keys() != {"heat", "sides"}:
        return None
    found = []
    for heat, sides in zip(raw["heat"], raw["sides"], strict=True):
        scores, labels = heat.flatten(1).max(0)
        order = scores.detach().argsort(descending=True, stable=True)
        height, width = heat.shape[1:]
        y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        middles = (torch.stack([x, y]).flatten(1).T + 0.5) * CELL
        half = sides.flatten(1).T / 2
        boxes = torch.cat([middles - half, middles + half], 1)
        found.append(cam.Detections(boxes[order], labels[order], scores[order]))
    return {"detections": tuple(found)}


CENTRES = replace(DETECTIONS, read=read)
IMAGE = torch.zeros(1, 3, 16, 24)
IMAGE[0, 1, 4:8, 8:12] = 0.75  # the cell in row 1 and column 2 has class 1


@pytest.fixture
def centres(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(KINDS, "centres", f"{__name__}:CENTRES")
    kinds.cache_clear()
    yield
    kinds.cache_clear()


@pytest.mark.usefixtures("centres")
@pytest.mark.parametrize("method", ["hirescam", "odam"])
def test_a_form_of_output_is_added(method: str) -> None:
    """y = A_1(1, 2), so gradient times activation is 0.75 there, and 0 elsewhere."""
    (found,) = cam.explain(NETWORK, IMAGE, method=method, layer="cells")
    assert found.target == cam.ClassTarget(1, box=(6.0, 2.0, 14.0, 10.0))
    assert found.probability == 0.75
    expected = np.zeros((4, 6), np.float32)
    expected[1, 2] = 0.75
    np.testing.assert_allclose(found.map, expected)
    with pytest.raises(NotLogits, match=r"nor a list of detections, nor a list of centres$"):
        outputs_of(IMAGE[0])


def test_a_form_that_is_not_listed_is_refused() -> None:
    with pytest.raises(NotLogits, match="2 tensors that could be its logits"):
        cam.explain(NETWORK, IMAGE, layer="cells")


EXPLAINED = """
import hashlib, json
import torch
from torch import nn
import cam

class Returns(nn.Module):
    def __init__(self, head):
        super().__init__()
        self.trunk, self.head = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU()), head

    def forward(self, x):
        return self.head(self.trunk(x))

class Boxes(nn.Module):
    def forward(self, x):
        scores = x.mean((1, 2, 3)).sigmoid()
        box = torch.tensor([[0.0, 0, 8, 8]])
        return [
            {"boxes": box, "labels": torch.tensor([1]), "scores": each[None]} for each in scores
        ]

torch.manual_seed(0)
pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
x, said = torch.rand(1, 3, 32, 32), []
for head in (pooled, nn.Conv2d(8, 4, 1)):
    model = Returns(head).eval()
    for method in ("gradcam", "refinecam", "rise"):
        (found,) = cam.explain(model, x, method=method, budget=None if method != "rise" else 8)
        said.append([found.layer, found.score, hashlib.sha256(found.map.tobytes()).hexdigest()])
try:
    (found,) = cam.explain(Returns(Boxes()).eval(), x, layer="trunk")
    refused = found.target.box
except cam.CamError as error:
    refused = f"{type(error).__name__}: {error}"
print(json.dumps([said, refused, list(cam.METHODS)]))
"""
SERVED = """
from service.core.errors import ConfigError
from service.loading.served_model import load
from service.models.catalog import EMBEDDED

assert load(EMBEDDED).default == "bn2"
try:
    load(EMBEDDED.model_copy(update={"detections": "yolov8"}))
except ConfigError as error:
    print(error)
"""


@pytest.mark.slow
def test_detectors_are_deleted(tmp_path: Path, known_types: Path) -> None:
    """With the folder go its line in the list of kinds, its methods' entries, its contract, and the
    module that has the released name of `read_detections`."""
    copied(tmp_path)
    shutil.rmtree(tmp_path / "cam" / "detectors")
    (tmp_path / "cam" / "outputs" / "detection.py").unlink()
    methods = (
        r' {8}_\w+\(\n {12}"\w+",\n(?:(?! {8}\),\n).*\n)*?.*"cam\.detectors\.(?:.*\n)*? {8}\),\n'
    )
    contract = r"(?m)^# Nor does cam.*\n\[\[tool\.importlinter\.contracts\]\]\n(?:.+\n)*\n"
    for file, pattern in (
        ("cam/outputs/__init__.py", r'    "\w+": "cam\.detectors:\w+",\n'),
        ("cam/methods/__init__.py", methods),
        ("pyproject.toml", contract),
        ("pyproject.toml", r"detectors \| "),
    ):
        text, count = re.subn(pattern, "", (tmp_path / file).read_text())
        assert count == (2 if pattern == methods else 1), pattern
        (tmp_path / file).write_text(text)
    check(tmp_path, known_types)
    before, box, every = json.loads(run(ROOT, "python", "-c", EXPLAINED))
    after, refused, left = json.loads(run(tmp_path, "python", "-c", EXPLAINED))
    assert (after, box) == (before, [0, 0, 8, 8])
    assert refused == (
        "NotLogits: the model's output is list, not logits of shape (batch, classes) or (batch, "
        "classes, height, width)"
    )
    assert left == [name for name in every if name not in ("odam", "drise")]
    assert "this service reads no detections" in run(tmp_path, "python", "-c", SERVED)
