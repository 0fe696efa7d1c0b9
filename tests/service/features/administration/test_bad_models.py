"""Every mistake in a model to load: a problem that names the key, its value and what is allowed;
and none of them leaves anything behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.service.features.administration.test_routes import NEW, served
from tests.service.http.test_bad_input import check

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with served(tmp_path_factory.mktemp("admin")) as client:
        yield client


@pytest.fixture(autouse=True)
def nothing_is_added(admin: TestClient) -> Iterator[None]:
    yield
    assert admin.get("/v1/models").json() == {"models": ["fragile"]}
    assert admin.get("/readyz").status_code == 200


KEYS: dict[str, tuple[str, Any, list[str]]] = {
    "weights as a path": ("weights", "/etc/passwd", ["'/etc/passwd'", "'default' or 'none'"]),
    "weights as a relative path": ("weights", "../w.safetensors", ["'../w.safetensors'"]),
    "weights as an address": ("weights", "https://x/w.pt", ["'https://x/w.pt'", "'default'"]),
    "labels as a path": ("labels", "/etc/passwd", ["'/etc/passwd'", "'imagenet'"]),
    "a name with a slash": ("name", "a/b", ["'a/b'", "letters, digits"]),
    "a name with a colon": ("name", "a:explain", ["'a:explain'", "letters, digits"]),
    "a name of dots": ("name", "..", ["'..'", "letters, digits"]),
    "a name that is empty": ("name", "", ["''", "letters, digits"]),
    "a name with a line break": ("name", "a\nb", ["letters, digits"]),
    "a name that is a number": ("name", 7, ["'7'", "text"]),
    "a source of no kind": (
        "source",
        "hub:resnet",
        ["'hub:resnet'", "torchvision:NAME, timm:NAME"],
    ),
    "a source that is an address": ("source", "https://x/m.py", ["'https://x/m.py'"]),
    "a source that is a file": ("source", "/tmp/m.py", ["'/tmp/m.py'"]),
    "a source with a path": ("source", "timm:../../x", ["'timm:../../x'"]),
    "a source of more": ("source", "factory:tests.a:b:c", ["'factory:tests.a:b:c'"]),
    "no source": ("source", None, ["None", "text"]),
    "a seed in words": ("seed", "one", ["'one'", "whole number"]),
    "a seed below 0": ("seed", -1, ["'-1'", "at least 0"]),
    "a seed of 65 bits": ("seed", 2**64, [str(2**64)[:20]]),
    "a layer that is none": ("layer", "", ["''", "at least 1"]),
    "a layer without end": ("layer", "x" * 5000, ["xxx", "at most 200"]),
    "an input of 7 pixels": ("input_size", 7, ["'7'", "at least 8"]),
    "an input of 5000 pixels": ("input_size", 5000, ["'5000'", "at most 4096"]),
    "three sizes": ("input_size", [8, 8, 8], ["[8, 8, 8]"]),
    "a mean of one": ("mean", [0.5], ["mean"]),
    "a deviation of 0": ("std", [0, 1, 1], ["greater than 0"]),
    "no such device": ("device", "tpu", ["'tpu'", "cuda"]),
    "a device with a path": ("device", "cuda:0/../1", ["'cuda:0/../1'"]),
    "no such precision": ("dtype", "int8", ["'int8'", "'float32', 'bfloat16' or 'float16'"]),
    "no such mode": ("mode", "faster", ["'faster'", "'exact', 'fast' or 'auto'"]),
    "a batch of 0": ("max_batch", 0, ["'0'", "at least 1"]),
    "a batch of a million": ("max_batch", 10**6, ["'1000000'", "at most 1024"]),
    "a batch of half an image": ("max_batch", 0.5, ["'0.5'", "whole number"]),
}


@pytest.mark.parametrize("case", KEYS)
def test_a_value_that_is_not_allowed(admin: TestClient, case: str) -> None:
    key, value, words = KEYS[case]
    response = admin.post("/v1/models", json={**NEW, key: value})
    check(response, 422, "invalid-parameter", f"{key} is ", *words, pointer=f"/{key}")
    assert len(response.json()["detail"]) < 400


@pytest.mark.parametrize("key", ["sha256", "method_layers", "path", "file", "copies", "_file"])
def test_a_key_that_there_is_not(admin: TestClient, key: str) -> None:
    response = admin.post("/v1/models", json={**NEW, key: "x"})
    words = [f"'{key}'", "name, source, weights, seed, labels"]
    check(response, 422, "unknown-parameter", *words, pointer=f"/{key}")


@pytest.mark.parametrize("key", ["name", "source"])
def test_a_key_that_is_missing(admin: TestClient, key: str) -> None:
    response = admin.post("/v1/models", json={k: v for k, v in NEW.items() if k != key})
    check(response, 422, "invalid-parameter", key, "required", pointer=f"/{key}")
    assert "{" not in response.json()["detail"], "a key that is missing has no value"


BODIES: dict[str, tuple[bytes, dict[str, str], int, str, list[str]]] = {
    "nothing": (b"", JSON, 400, "malformed-request", ["not JSON"]),
    "words": (b"name = 'x'", JSON, 400, "malformed-request", ["not JSON"]),
    "half of it": (b'{"name": "x"', JSON, 400, "malformed-request", ["not JSON", "EOF"]),
    "no UTF-8": (b'{"name": "\xff"}', JSON, 400, "malformed-request", ["not JSON"]),
    "a list": (b"[]", JSON, 400, "malformed-request", ["not an object", "name", "source"]),
    "null": (b"null", JSON, 400, "malformed-request", ["not an object"]),
    "brackets": (b"[" * 9000, JSON, 400, "malformed-request", ["not JSON"]),
    "TOML": (
        b'name = "x"',
        {"Content-Type": "application/toml"},
        415,
        "unsupported-media-type",
        ["'application/toml'", "application/json"],
    ),
    "a form": (
        b"name=x",
        {"Content-Type": "application/x-www-form-urlencoded"},
        415,
        "unsupported-media-type",
        ["'application/x-www-form-urlencoded'"],
    ),
    "without a type": (b"{}", {}, 415, "unsupported-media-type", ["application/json"]),
    "10 kB": (
        json.dumps({**NEW, "layer": "x" * 10_000}).encode(),
        JSON,
        413,
        "body-too-large",
        ["at most 10000"],
    ),
    "11 MB": (bytes(11_000_000), JSON, 413, "body-too-large", ["at most 10000000"]),
}


@pytest.mark.parametrize("case", BODIES)
def test_a_body_that_is_no_model(admin: TestClient, case: str) -> None:
    content, headers, status, kind, words = BODIES[case]
    response = admin.post("/v1/models", content=content, headers=headers)
    check(response, status, kind, *words)


@pytest.mark.parametrize(
    ("allowed", "source"),
    [
        ((), "factory:tests.zoo.factories:tiny"),
        ((), "embedded:efficientnet-lite0"),
        (("torchvision:resnet*", "timm:vit_*"), "torchvision:vgg16"),
        (("torchvision:resnet*", "timm:vit_*"), "timm:resnet18"),
        (("torchvision:resnet*", "timm:vit_*"), "torchvision:ResNet18"),
        (("torchvision:resnet*", "timm:vit_*"), "factory:torchvision:resnet18"),
        (("factory:tests.*",), "factory:os:system"),
        (("factory:tests.*",), "factory:tests:x"),
        (("factory:tests.?",), "factory:tests.zoo.factories:tiny"),
    ],
)
def test_a_source_that_is_not_allowed(
    tmp_path: Path, allowed: tuple[str, ...], source: str
) -> None:
    with served(tmp_path, wait=False, allowed_sources=allowed) as client:
        response = client.post("/v1/models", json={**NEW, "source": source})
        told = allowed or ["GRADCAM_ALLOWED_SOURCES"]
        check(response, 403, "forbidden", repr(source), "is not allowed", *told)
        assert client.get("/v1/models").json() == {"models": ["fragile"]}


def test_json_may_say_its_charset(tmp_path: Path) -> None:
    with served(tmp_path, wait=False) as client:
        headers = {"Content-Type": "Application/JSON; charset=utf-8"}
        response = client.post("/v1/models", content=json.dumps(NEW), headers=headers)
        assert response.status_code == 202
