"""Detectors end to end: the best boxes, each with its map and its frame."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from cam.detectors.forms import DetectionForm
from service.core import choices
from service.models.catalog import read_catalog
from service.settings import Settings
from tests.service.conftest import encoded, noise, running_app
from tests.service.http.test_bad_input import check

CATALOG = """
[[models]]
name = "pyramid"
source = "factory:tests.zoo.factories:pyramid_detector"
weights = "none"
input_size = 128
mean = [0.0, 0.0, 0.0]
std = [1.0, 1.0, 1.0]

[[models]]
name = "yolo"
source = "factory:tests.zoo.factories:yolo"
weights = "none"
input_size = 64
detections = "yolov8"
min_score = 0.01
"""
PHOTO = noise(160, 120, seed=3).resize((320, 240))


@pytest.fixture(scope="module")
def detectors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    file: Path = tmp_path_factory.mktemp("detectors") / "models.toml"
    file.write_text(CATALOG)
    with running_app(Settings(), read_catalog(file)) as client:
        yield client


def test_the_catalog_takes_every_form_of_detections() -> None:
    assert set(get_args(choices.DetectionForm.__value__)) == {"auto", *get_args(DetectionForm)}


def explain(client: TestClient, model: str, **parameters: Any) -> Any:
    body = {
        "instances": [{"image": {"b64": base64.b64encode(encoded(PHOTO)).decode()}}],
        "parameters": {"fit": "squash", **parameters},
    }
    return client.post(f"/v1/models/{model}:explain", json=body)


def test_the_layers_of_a_detector(detectors: TestClient) -> None:
    about = detectors.get("/v1/models/pyramid").json()
    assert about["default_layer"] == "backbone.fpn.inner_blocks.2"
    assert about["levels"] == [
        *(f"backbone.fpn.layer_blocks.{turn}" for turn in (2, 1, 0)),
        "backbone.fpn.extra_blocks.p6",
        "backbone.fpn.extra_blocks.p7",
    ]
    layers = {each["name"]: each["layer"] for each in about["methods"] if "layer" in each}
    assert layers["odam"] == " + ".join(about["levels"])


@pytest.mark.parametrize("model", ["pyramid", "yolo"])
def test_the_best_boxes_are_explained(detectors: TestClient, model: str) -> None:
    response = explain(detectors, model, method="odam", top_k=3)
    assert response.status_code == 200, response.text
    found = response.json()["explanations"]
    best = response.json()["predictions"][0]["detections"]
    assert len(found) == len(best) == 3
    for each, said in zip(found, best, strict=True):
        assert each["target"]["box"] == pytest.approx(said["box"], abs=1e-3)
        assert each["target"]["index"] == said["index"]
        assert each["target"]["probability"] == pytest.approx(said["score"], rel=1e-4)
        assert each["warnings"] == []
    assert len(explain(detectors, model).json()["explanations"]) == 1


def test_fewer_boxes_than_asked_for_are_no_error(detectors: TestClient) -> None:
    response = explain(detectors, "yolo", method="odam", top_k=100, size="layer")
    count = len(response.json()["predictions"][0]["detections"])
    assert 0 < len(response.json()["explanations"]) == count < 100


@pytest.mark.slow
def test_boxes_at_many_layers_are_too_many_maps(detectors: TestClient) -> None:
    response = explain(detectors, "pyramid", layer="backbone.fpn.layer_blocks.*", top_k=60)
    words = ("60 targets at 6 layers would have 360 maps", "at most 100")
    check(response, 422, "invalid-parameter", *words)
    fused = {"layer": "backbone.fpn.layer_blocks.*", "fuse": "mean", "size": "layer"}
    assert explain(detectors, "pyramid", top_k=60, **fused).status_code == 200


def test_the_box_is_drawn_beside_its_map(detectors: TestClient) -> None:
    (found,) = explain(detectors, "pyramid", output="overlay", opacity=0).json()["explanations"]
    drawn = np.asarray(Image.open(io.BytesIO(base64.b64decode(found["overlay"]["data"]))))
    changed = np.argwhere((drawn != np.asarray(PHOTO)).any(-1))
    box = {name: min(max(edge, 0), 320) for name, edge in found["target"]["box"].items()}
    top, left = changed.min(0)
    bottom, right = changed.max(0)
    assert abs(left - box["left"]) <= 3
    assert abs(top - box["top"]) <= 3
    assert abs(right - box["right"]) <= 3
    assert abs(bottom - box["bottom"]) <= 3
    assert len(changed) < 0.5 * drawn.shape[0] * drawn.shape[1]


def test_d_rise(detectors: TestClient) -> None:
    (found,) = explain(detectors, "yolo", method="drise", budget=40).json()["explanations"]
    assert found["layer"] == "input"
    assert found["warnings"] == []


def test_a_picture_holds_one_box(detectors: TestClient) -> None:
    def ask(**query: Any) -> Any:
        return detectors.post(
            "/v1/models/yolo:explain",
            params=query,
            content=encoded(PHOTO),
            headers={"Content-Type": "image/png", "Accept": "image/png"},
        )

    assert ask().headers["Content-Type"] == "image/png"
    check(ask(top_k=2), 406, "not-acceptable", "exactly one map, and the answer has 2")


def test_a_classifier_has_no_boxes(client: TestClient) -> None:
    response = explain(client, "efficientnet-lite0", method="odam")
    check(
        response,
        422,
        "unsuited-method",
        "it explains a box: it needs a detector",
        pointer="/parameters/method",
    )
