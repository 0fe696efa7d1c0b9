"""Layers by pattern, and a reshape of tokens in models.toml."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from service.models.catalog import read_catalog
from service.settings import Settings
from tests.service.conftest import running_app

CATALOG = """
[[models]]
name = "turned"
source = "factory:tests.zoo.factories:turned"
weights = "none"
input_size = 40
layer = "block"
reshape = {"block*" = "tokens 5 5 1"}

[[models]]
name = "efficient"
source = "embedded:efficientnet-lite0"

[[models]]
name = "plain"
source = "factory:tests.zoo.factories:turned"
weights = "none"
input_size = 40
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    file = tmp_path_factory.mktemp("patterns") / "models.toml"
    file.write_text(CATALOG)
    with running_app(Settings(), read_catalog(file)) as client:
        yield client


def explained(client: TestClient, body: bytes, model: str = "turned", **query: str) -> list[str]:
    answer = client.post(
        f"/v1/models/{model}:explain",
        params=query,
        content=body,
        headers={"Content-Type": "image/png"},
    )
    assert answer.status_code == 200, answer.text
    return [each["layer"] for each in answer.json()["explanations"]]


@pytest.mark.slow
def test_a_pattern_means_all_explainable_layers_that_it_matches(
    client: TestClient, cat: bytes
) -> None:
    assert explained(client, cat, layer="block.?") == ["block.0", "block.1", "block.2"]
    assert explained(client, cat, layer="bl*", fuse="mean") == [
        "block.0 + block.1 + block.2 + block"
    ]
    assert explained(client, cat) == ["block"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ({"layer": "nothing.*"}, 422, "no layer of model 'turned' at which a map can be made"),
        ({"layer": "hea*"}, 422, "matches 'hea*'"),  # it has no positions
    ],
)
def test_a_pattern_that_matches_nothing_is_refused(
    client: TestClient, cat: bytes, query: dict[str, str], status: int, words: str
) -> None:
    answer = client.post(
        "/v1/models/turned:explain",
        params=query,
        content=cat,
        headers={"Content-Type": "image/png"},
    )
    assert answer.status_code == status
    assert words in answer.json()["detail"]
    assert answer.json()["pointer"] == "/query/layer"


@pytest.mark.slow
def test_a_pattern_that_matches_too_many_is_refused(client: TestClient, cat: bytes) -> None:
    answer = client.post(
        "/v1/models/turned:explain",
        params={"layer": "*"},
        content=cat,
        headers={"Content-Type": "image/png", "Accept": "image/png"},
    )
    assert answer.status_code == 406
    many = client.post(
        "/v1/models/efficient:explain",
        params={"layer": "*"},
        content=cat,
        headers={"Content-Type": "image/png"},
    )
    assert many.status_code == 422
    assert "layers of model 'efficient'; at most 16 are allowed" in many.json()["detail"]


@pytest.mark.slow
def test_what_cannot_be_located_is_refused_unless_it_is_declared(client: TestClient) -> None:
    declared = client.get("/v1/models/turned/layers").json()["layers"]
    plain = client.get("/v1/models/plain/layers").json()["layers"]
    wanted = {"block", "block.0", "block.1", "block.2"}
    assert {each["name"] for each in declared if each["explainable"]} == wanted | {"embed"}
    assert {each["name"] for each in plain if each["explainable"]} == {"embed"}
    assert next(each["grid"] for each in declared if each["name"] == "block") == [5, 5]
    (reason,) = {each["reason"] for each in plain if each["name"] == "block"}
    assert "does not lie on the image" in reason
    one, other = (client.get(f"/v1/models/{name}").json() for name in ("turned", "plain"))
    assert one["fingerprint"] != other["fingerprint"]
