"""A served model whose layers all run twice in a forward pass."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from torch import nn

from service.models.catalog import ModelEntry
from service.settings import Settings
from tests.service.conftest import encoded, noise, running_app, values
from tests.zoo.convolutional import twice

HERE = "factory:tests.service.pipeline.test_reused_layers:brightened"
GIVEN: dict[str, Any] = {
    "source": HERE,
    "weights": "none",
    "input_size": 32,
    "layout": "contiguous",
}
BUDGETS = {"occlusion": {"budget": 9}, "rise": {"budget": 9}}
ADDRESS = "/v1/models/twice"


def brightened() -> nn.Module:
    """Test-time augmentation: the image, and the image 1.5 times as bright."""
    return twice(lambda x: 1.5 * x)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    models = [
        ModelEntry(name="twice", **GIVEN),
        ModelEntry(name="second", layer="relu#2", **GIVEN),
    ]
    with running_app(Settings(), models) as opened:
        yield opened


def explained(client: TestClient, model: str, **parameters: Any) -> dict[str, Any]:
    photo = base64.b64encode(encoded(noise(32, 32, 1))).decode()
    asked = {"instances": [{"image": {"b64": photo}}], "parameters": parameters}
    answer: dict[str, Any] = client.post(f"/v1/models/{model}:explain", json=asked).json()
    return answer


def test_it_is_described(client: TestClient) -> None:
    assert client.get(ADDRESS).json()["default_layer"] is None
    assert client.get("/v1/models/second").json()["default_layer"] == "relu#2"
    layers = {each["name"]: each for each in client.get(f"{ADDRESS}/layers").json()["layers"]}
    assert "runs 2 times in a forward pass" in layers["conv"]["reason"]
    assert [name for name, each in layers.items() if each["explainable"]] == [
        *("conv#1", "relu#1", "conv#2", "relu#2"),
    ]
    assert not any(each["default"] for each in layers.values())


@pytest.mark.parametrize("method", ["occlusion", "rise", "gradient", "fullgrad"])
def test_methods_at_the_image_explain_it(client: TestClient, method: str) -> None:
    answer = explained(client, "twice", method=method, **BUDGETS.get(method, {}))
    (found,) = answer["explanations"]
    assert (found["method"], found["layer"]) == (method, "input")
    assert found["heatmap"]["shape"] == [32, 32]


@pytest.mark.parametrize("method", ["gradcam", "refinecam", "scorecam"])
def test_methods_at_a_layer_say_why_there_is_no_default(client: TestClient, method: str) -> None:
    problem = explained(client, "twice", method=method)
    assert problem["status"] == 422
    assert "'twice' has no default layer: every layer" in problem["detail"]
    assert "name one call, such as 'relu#1', or use a method" in problem["detail"]


def test_a_call_is_chosen_by_the_caller_or_in_the_models_file(client: TestClient) -> None:
    (named,) = explained(client, "twice", layer="relu#2", target=1)["explanations"]
    (usual,) = explained(client, "second", target=1)["explanations"]
    assert named["layer"] == usual["layer"] == "relu#2"
    np.testing.assert_array_equal(values(named), values(usual))
    (first,) = explained(client, "second", target=1, layer="relu#1")["explanations"]
    assert first["layer"] == "relu#1"
    assert "no layer 'relu#3'" in explained(client, "twice", layer="relu#3")["detail"]
