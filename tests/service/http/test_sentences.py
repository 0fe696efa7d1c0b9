"""What callers and operators are told where something is wrong: the value, and what is allowed."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from PIL import Image
from starlette.testclient import TestClient

from service.app import create_app
from service.core.errors import ConfigError
from service.features.keys.keys import new_key
from service.models.catalog import EMBEDDED, ModelEntry
from service.settings import Settings
from tests.service.conftest import MODEL, encoded, noise, running_app, wait_until_ready
from tests.waiting import until

PNG = {"Content-Type": "image/png"}
PHOTO = encoded(noise(32, 32))
TINY: dict[str, Any] = {"weights": "none", "input_size": 8}


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("signed=maybe", "signed is 'maybe': it should be true or false"),
        ("opacity=50", "opacity is '50': it should be a number from 0 to 1, or heat"),
        ("opacity=cold", "opacity is 'cold': it should be a number from 0 to 1, or heat"),
        ("top_k=0", "top_k is '0': it should be a number from 1 to 1000"),
        ("output=mask&output=overlay", "output is given 2 times; give it once"),
        (
            'target={"class":"tabby"',
            "it should be a JSON object if it starts with a brace",
        ),
        ("target=zzzzqqq", "e.g. 'tench' is one, and GET /v1/models/MODEL lists all"),
    ],
)
def test_a_parameter(client: httpx2.Client, query: str, said: str) -> None:
    answer = client.post(f"{MODEL}:explain?{query}", content=PHOTO, headers=PNG)
    assert answer.status_code == 422
    assert said in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            {"instances": [{"image": base64.b64encode(PHOTO).decode()}]},
            'at /instances/0/image: it should be an object, {"b64": …} or {"url": …}',
        ),
        ({"images": []}, "there is no field 'images' at /images; the fields are instances, param"),
        ({"parameters": {}}, "at /instances: it is missing"),
        ({"instances": []}, "at /instances: it should have at least 1 item"),
    ],
)
def test_a_body(client: httpx2.Client, body: dict[str, Any], said: str) -> None:
    answer = client.post(f"{MODEL}:explain", json=body)
    assert answer.status_code in (400, 422)
    assert said in answer.json()["detail"]


@pytest.mark.slow
def test_a_vast_image_is_told_its_size(client: httpx2.Client) -> None:
    vast = encoded(Image.new("1", (30_000, 30_000)))
    answer = client.post(f"{MODEL}:predict", content=vast, headers=PNG)
    assert answer.status_code == 413
    assert "the image has 900 megapixels; at most 50 megapixels" in answer.json()["detail"]


@pytest.mark.slow
def test_an_unknown_key_is_not_a_missing_one(tmp_path: Path) -> None:
    secret, entry = new_key("somebody", ["explain"], None)
    keys = tmp_path / "keys.toml"
    keys.write_text(entry)
    with running_app(Settings(keys=keys)) as client:
        for headers, said in (
            ({}, "send an API key: Authorization: Bearer KEY, or X-API-Key: KEY"),
            (
                {"X-API-Key": f"{secret}x"},
                "the API key that was sent is not known; send an API key",
            ),
        ):
            answer = client.get("/v1/models", headers=headers)
            assert answer.status_code == 401
            assert answer.json()["detail"].startswith(said)
    with pytest.raises(ConfigError, match="it should begin with a letter or a digit"):
        new_key("Bad Name", ["explain"], None)


@pytest.mark.parametrize(
    ("origins", "good"),
    [
        ("https://app.example, http://localhost:5173", True),
        ("*", True),
        ("app.example", False),
        ("https://app.example/page", False),
    ],
)
def test_an_origin_that_never_matches_is_refused(origins: str, good: bool) -> None:
    environment = {"GRADCAM_CORS_ORIGINS": origins}
    if good:
        assert Settings.read(environment).cors_origins
        return
    with pytest.raises(ConfigError, match=r"an origin is like https://app\.example"):
        Settings.read(environment)


@pytest.mark.slow
def test_more_images_than_may_wait_are_refused_as_a_whole() -> None:
    with running_app(Settings(max_queue=4)) as client:
        files = [("image", PHOTO)] * 6
        answer = client.post(f"{MODEL}:predict", files=files)
        assert answer.status_code == 413
        assert answer.json()["detail"] == "the request has more than the 4 instances allowed"
        assert client.post(f"{MODEL}:predict", files=files[:4]).status_code == 200


def test_a_service_whose_last_model_was_removed_says_so_and_gets_it_back(tmp_path: Path) -> None:
    secret, entry = new_key("boss", ["explain", "admin"], None)
    keys = tmp_path / "keys.toml"
    keys.write_text(entry)
    headers = {"X-API-Key": secret}
    entries = [ModelEntry(name="tiny", source="factory:tests.zoo.factories:tiny", **TINY)]
    with TestClient(create_app(Settings(keys=keys), entries), headers=headers) as client:
        wait_until_ready(client)
        assert client.delete("/v1/models/tiny").status_code == 204
        assert client.get("/readyz").status_code == 200
        none = "no model is loaded; add one with POST /v1/models"
        assert client.get("/v1/models").json() == {"models": [], "detail": none}
        missing = client.post("/v1/models/tiny:predict", content=PHOTO, headers=PNG)
        assert missing.json()["detail"] == none
        other = {"name": "other", "source": EMBEDDED.source}
        refused = client.post("/v1/models", json=other)
        assert refused.status_code == 403
        assert "allowed are factory:tests.zoo.factories:tiny" in refused.json()["detail"]
        for wrong, said in (
            ({"name": "x/../y", "source": "timm:a"}, "name is 'x/../y': it should begin with a"),
            (
                {"name": "x", "source": "hub:a"},
                "source is 'hub:a': it can be embedded:efficientnet-lite0, ",
            ),
        ):
            assert said in client.post("/v1/models", json=wrong).json()["detail"]
        again = {"name": "tiny", "source": entries[0].source, **TINY}
        assert client.post("/v1/models", json=again).status_code == 202
        until(lambda: client.get("/v1/models/tiny").status_code == 200)
        assert client.post("/v1/models/tiny:predict", content=PHOTO, headers=PNG).status_code == 200
        assert client.get("/v1/models").json() == {"models": ["tiny"]}


@pytest.mark.slow
def test_attributions_that_do_not_add_up_are_told(client: httpx2.Client, cat: bytes) -> None:
    def warned(method: str, budget: int) -> tuple[float, list[str]]:
        query: dict[str, str | int] = {
            "method": method,
            "budget": budget,
            "fit": "squash",
            "size": "layer",
        }
        answer = client.post(f"{MODEL}:explain", params=query, content=cat, headers=PNG)
        (found,) = json.loads(answer.text)["explanations"]
        told = found["completeness"]
        most = max(abs(told["difference"]), abs(told["attributed"]))
        return abs(told["attributed"] - told["difference"]) / most, found["warnings"]

    gap, said = warned("fullgrad", 1)
    assert gap > 0.1
    assert any("not all of the model is made of rectifiers" in each for each in said)
    gap, said = warned("integratedgradients", 2)
    assert gap > 0.1
    assert "a larger budget reduces the difference" in said[0]
    gap, said = warned("integratedgradients", 30)
    assert (gap > 0.1) == any("the attributions add up to" in each for each in said)
