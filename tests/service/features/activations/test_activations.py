"""POST :activations, over HTTP."""

from __future__ import annotations

import base64
import math
from io import BytesIO

import numpy as np
import pytest
from httpx2 import Response
from PIL import Image
from starlette.testclient import TestClient

from service.loading.served_model import load
from service.models.catalog import EMBEDDED
from service.settings import Settings
from tests.service.conftest import KEPT, MODEL, encoded, running_app
from tests.service.http import test_cycles as cycles
from tests.service.http.test_bad_input import check
from tests.service.models import test_reading as reading

ACTIVATIONS = f"{MODEL}:activations"
PNG = {"Content-Type": "image/png"}
served = reading.served


@pytest.mark.slow
def test_statistics_are_those_of_the_arrays(client: TestClient, cat: bytes) -> None:
    query = {"layer": ["conv_stem", "blocks.6*bn2", "classifier"], "target": "tabby"}
    response = client.post(ACTIVATIONS, params=query, content=cat, headers=PNG)
    found = response.json()["activations"]
    assert [each["layer"] for each in found] == ["conv_stem", "blocks.6.0.bn2", "classifier"]
    packed = client.post(
        ACTIVATIONS, params=query, content=cat, headers={**PNG, "Accept": "application/x-npz"}
    )
    assert packed.headers["content-type"] == "application/x-npz"
    arrays = np.load(BytesIO(packed.content))
    for each in found:
        for kind in ("input", "output", "gradient"):
            values = arrays[f"{each['layer']}.{kind}"]
            assert each[kind]["shape"] == list(values.shape)
            assert np.isclose(each[kind]["mean"], values.mean(), atol=1e-4)
            assert each[kind]["maximum"] == values.max()
    # The last layer's output is the logits, and the gradient of one of them is 1 there.
    logits = arrays["classifier.output"]
    assert logits.shape == (1000,)
    one = np.zeros(1000, np.float32)
    one[281] = 1
    np.testing.assert_array_equal(arrays["classifier.gradient"], one)
    head = load(EMBEDDED, KEPT).module.get_submodule("classifier")
    weight, bias = (head.get_parameter(name).numpy() for name in ("weight", "bias"))
    np.testing.assert_allclose(logits, weight @ arrays["classifier.input"] + bias, atol=1e-4)


@pytest.mark.contract
def test_a_gallery_of_the_strongest_channels(client: TestClient, cat: bytes) -> None:
    query = {"layer": "blocks.1", "top_k": "12", "by": "gradient"}
    (found,) = client.post(ACTIVATIONS, params=query, content=cat, headers=PNG).json()[
        "activations"
    ]
    assert len(set(found["channels"])) == 12
    drawn = client.post(
        ACTIVATIONS, params=query, content=cat, headers={**PNG, "Accept": "image/png"}
    )
    picture = np.asarray(Image.open(BytesIO(drawn.content)))
    assert picture.shape == (3 * 136 + 6, 4 * 118 + 6, 3)
    tiles = {picture[6:118, 6 + 118 * i : 118 + 118 * i].tobytes() for i in range(4)}
    assert len(tiles) == 4


@pytest.mark.contract
def test_pydantic_errors(client: TestClient, cat: bytes) -> None:
    image = {**PNG, "Accept": "image/png"}

    def ask(headers: dict[str, str], **query: str) -> Response:
        return client.post(ACTIVATIONS, params=query, content=cat, headers=headers)

    check(ask(PNG, layer="bn3"), 422, "unknown-layer", "'bn3'", "bn2", pointer="/query/layer")
    check(ask(PNG, layer="blocks*"), 422, "invalid-parameter", "at most 64", "narrower")
    check(ask(PNG, target="crane"), 422, "ambiguous-label", "134", pointer="/query/target")
    check(ask(image, layer="blocks.?"), 406, "not-acceptable", "exactly one layer", "7")
    check(ask(image, layer="classifier"), 406, "not-acceptable", "no feature maps")
    check(ask(PNG, colormap="red"), 422, "invalid-parameter", "viridis", pointer="/query/colormap")
    good = {"image": {"b64": base64.b64encode(cat).decode()}}
    body = {"instances": [{"image": {"b64": "AAAA"}}, good]}
    found = client.post(ACTIVATIONS, json=body).json()["activations"]
    assert "not a JPEG" in found[0]["error"]
    assert found[1]["instance"] == 1
    several = client.post(ACTIVATIONS, json=body, headers={"Accept": "image/png"})
    check(several, 406, "not-acceptable", "exactly one")


def test_concepts_have_the_models_probabilities(served: TestClient) -> None:
    for model, index, probability in (("binary", 0, reading.SURE), ("softmaxed", 0, 0.51)):
        response = served.post(
            f"/v1/models/{model}:activations?layer=layer&concepts=2",
            content=encoded(Image.effect_noise((8, 8), 90).convert("RGB")),
            headers={"Content-Type": "image/png"},
        )
        assert response.status_code == 200, response.text
        (seen,) = response.json()["activations"]
        for concept in seen["concepts"]:
            best = concept["classes"][0]
            assert best["index"] == index
            first, second = (each["probability"] for each in concept["classes"])
            assert first + second == pytest.approx(1)
            if model == "softmaxed":
                assert best["score"] == pytest.approx(best["probability"])
                assert 0.5 < best["probability"] <= probability + 0.01
            else:
                assert best["probability"] == pytest.approx(1 / (1 + math.exp(-best["score"])))


def test_no_photo_of_a_refused_request_is_left_in_a_cycle() -> None:
    with running_app(Settings(cache_bytes=0)) as client:
        cycles.test_no_photo_is_left_in_a_cycle(client, ":activations?layer=nope", cycles.JPEG, 422)
