"""A map that rounding decides comes with a warning."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from PIL import Image
from starlette.testclient import TestClient

from service.models.catalog import ModelEntry
from service.settings import Settings
from tests.service.conftest import encoded, running_app


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    entry = ModelEntry(
        name="seeing",
        source="factory:tests.zoo.by_hand:seeing",
        kind="classes",
        weights="none",
        input_size=8,
        layer="stem",
        mean=(0, 0, 0),
        std=(1, 1, 1),
    )
    with running_app(Settings(), [entry]) as client:
        yield client


def warnings_of(client: TestClient, green: int) -> list[str]:
    photo = Image.new("RGB", (8, 8))
    photo.putpixel((2, 2), (255, 0, 0))
    photo.putpixel((5, 5), (0, green, 0))
    response = client.post(
        "/v1/models/seeing:explain?method=eigencam&fit=squash",
        content=encoded(photo),
        headers={"Content-Type": "image/png"},
    )
    assert response.status_code == 200, response.text
    (explanation,) = json.loads(response.content)["explanations"]
    return [each for each in explanation["warnings"] if "does not depend on the class" not in each]


def test_two_colours_equally_strong(client: TestClient) -> None:
    (warning,) = warnings_of(client, 255)
    assert warning.startswith("the two leading components of layer 'stem' are almost equally str")
    assert "(ratio 1.000), so the map of eigencam is decided by rounding" in warning


def test_one_stronger_than_the_other(client: TestClient) -> None:
    assert warnings_of(client, 128) == []
