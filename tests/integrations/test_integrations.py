"""The blocks of docs/integrations run against the real packages, which then hold what they should.

`make test-integrations` makes the environment that has them.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from service.client import Client
from tests.service.live import ROOT, serving

pytestmark = pytest.mark.slow
FOLDER = ROOT / "docs" / "integrations"
PAGE = (FOLDER / "index.md").read_text(encoding="utf-8")
BLOCKS = {
    title: re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for title, text in re.findall(r"^## (.*?)$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}
PHOTOS = sorted((ROOT / "docs" / "photos").glob("*.png"))
IMPORTS = (ast.Import, ast.ImportFrom)
LABELS = ["Egyptian cat", "espresso"]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(GRADCAM_DEADLINE_SECONDS="300") as (_, http):
        yield str(http.base_url).rstrip("/")


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address) as client:
        yield client


def ran(title: str, *, lines: int = 5, **given: Any) -> dict[str, Any]:
    """The names after a section's blocks, none of which has more lines of the user's own."""
    space = {"Image": Image, "BytesIO": BytesIO, "photos": PHOTOS, **given}
    for block in BLOCKS[title]:
        body = [each for each in ast.parse(block).body if not isinstance(each, IMPORTS)]
        own = [node for each in body for node in ast.walk(each) if isinstance(node, ast.stmt)]
        assert len(own) <= lines, block
        exec(block, space)
    return space


def test_data_frames(client: Client) -> None:
    pytest.importorskip("polars")
    space = ran("Data frames", client=client)
    assert space["frame"]["target_label"].tolist() == LABELS
    assert space["table"]["target_label"].to_list() == LABELS
    assert space["frame"]["target_probability"].between(0, 1).all()


def test_hugging_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    text = (ROOT / "docs" / "huggingface.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (made,) = re.findall(r"```python\n(# A folder with seeded.*?)```", text, re.DOTALL)
    exec(made, {})
    photo = Image.open(PHOTOS[0]).convert("RGB")
    space = ran("Hugging Face", photo=photo)
    assert space["explanation"].target.index == 1
    assert space["explanation"].map.ndim == 2


def test_timm_and_torchvision() -> None:
    from cam import explain

    photo = Image.open(PHOTOS[0]).convert("RGB")
    assert ran("timm and torchvision", photo=photo, explain=explain)["explanation"].map.max() > 0


def test_fiftyone(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its database is a program that it downloads; without it, samples are in no data set."""
    fo = pytest.importorskip("fiftyone")
    samples = [fo.Sample(filepath=str(path)) for path in PHOTOS]
    try:
        dataset = fo.Dataset("gradcam", overwrite=True)
    except fo.core.config.FiftyOneConfigError:
        dataset = samples
        monkeypatch.setattr(fo.Sample, "save", lambda sample: None)
    else:
        dataset.add_samples(samples)
    ran("FiftyOne", client=client, dataset=dataset)
    for sample, path, label in zip(dataset, PHOTOS, LABELS, strict=True):
        assert sample["prediction"].label == label
        assert isinstance(sample["gradcam"], fo.Heatmap)
        assert sample["gradcam"].map.shape == np.asarray(Image.open(path)).shape[:2]


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"file://{tmp_path}/runs")
    (tmp_path / "explained").mkdir()
    (tmp_path / "explained" / "manifest.parquet").write_bytes(b"PAR1")
    ran("MLflow")
    (found,) = (tmp_path / "runs").rglob("gradcam/manifest.parquet")
    assert found.read_bytes() == b"PAR1"


def test_weights_and_biases(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_SILENT", "true")
    ran("Weights & Biases", client=client)
    pictures = [Image.open(path).size for path in tmp_path.rglob("media/images/gradcam_*.png")]
    assert sorted(pictures) == sorted(Image.open(path).size for path in PHOTOS)


def test_gradio(client: Client) -> None:
    pytest.importorskip("gradio")
    space = ran("Gradio", client=client)
    picture, label = space["demo"].fn(str(PHOTOS[0]))
    assert (picture.size, label) == (Image.open(PHOTOS[0]).size, LABELS[0])
    names = [type(each).__name__ for each in space["demo"].output_components]
    assert names == ["Image", "Label"]


def test_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning")
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from torch import nn

    monkeypatch.syspath_prepend(FOLDER)

    class Classifier(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(
                nn.Conv2d(3, 4, 3),
                nn.ReLU(),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
                nn.Linear(4, 2),
            )

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.net(images)
            return logits

        def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
            self.log("mean", self(batch[0]).mean())

    photos = torch.rand(4, 3, 16, 16)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(photos), batch_size=4)
    trainer = Trainer(
        default_root_dir=tmp_path, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    ran("Lightning", trainer=trainer)
    trainer.validate(Classifier(), loader, verbose=False)
    maps = trainer.callbacks[-1].maps
    assert [tuple(each.shape) for each in maps] == [(14, 14)] * 4


def test_label_studio(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("label_studio_sdk")
    from label_studio_sdk.converter.brush import decode_rle
    from starlette.testclient import TestClient

    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setenv("GRADCAM_URL", address)
    sys.modules.pop("label_studio", None)
    backend = importlib.import_module("label_studio")
    config = (
        '<View><Image name="image" value="$image"/><BrushLabels name="what" toName="image">'
        '<Label value="Egyptian cat"/></BrushLabels></View>'
    )
    with TestClient(backend.app) as http:
        assert http.get("/health").json()["status"] == "UP"
        version = http.post("/setup", json={"schema": config}).json()["model_version"]
        tasks = [{"id": 1, "data": {"image": str(PHOTOS[0])}}]
        sent = {"tasks": tasks, "label_config": config}
        (prediction,) = http.post("/predict", json=sent).json()["results"]
    assert prediction["model_version"] == version
    (result,) = prediction["result"]
    assert result["value"]["brushlabels"] == ["Egyptian cat"]
    width, height = Image.open(PHOTOS[0]).size
    mask = decode_rle(result["value"]["rle"]).reshape(height, width, 4)[..., 3]
    with Client(address) as client:
        hot = client.explain(PHOTOS[0], fit="squash").map >= 0.5
    np.testing.assert_array_equal(mask > 0, hot)
