"""A model whose labels are numbers in another order than its outputs."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.models.catalog import read_catalog
from service.settings import Settings
from tests.service.conftest import encoded, noise, running_app
from tests.service.http.test_bad_input import check

EXPLAIN = "/v1/models/digits:explain"
PHOTO = encoded(noise(8, 8))
BOTH = '{"label": "1"} or {"index": 1}'


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder: Path = tmp_path_factory.mktemp("digits")
    (folder / "labels.txt").write_text("1\n2\n0\n")
    (folder / "models.toml").write_text(
        '[[models]]\nname = "digits"\nsource = "factory:tests.zoo.factories:tiny"\n'
        'weights = "none"\ninput_size = 8\nlabels = "labels.txt"\n'
    )
    with running_app(Settings(), read_catalog(folder / "models.toml")) as client:
        yield client


def ask(client: TestClient, target: Any) -> Any:
    photo = {"image": {"b64": base64.b64encode(PHOTO).decode()}}
    return client.post(EXPLAIN, json={"instances": [photo], "parameters": {"target": target}})


@pytest.mark.parametrize("target", ["1", 1, {"class": "1"}, {"class": 1, "against": True}])
def test_a_number_that_could_mean_two_classes_is_refused(digits: TestClient, target: Any) -> None:
    check(ask(digits, target), 422, "ambiguous-label", BOTH, pointer="/parameters/target")


@pytest.mark.parametrize(
    ("target", "index"),
    [
        ({"index": 1}, 1),
        ({"label": "1"}, 0),
        ({"class": {"index": 2}, "minus": {"label": "2"}}, 2),
        ({"label": "0", "against": True}, 2),
        ('{"label": "2"}', 1),
    ],
)
def test_index_and_label_say_which(digits: TestClient, target: Any, index: int) -> None:
    (found,) = ask(digits, target).json()["explanations"]
    assert found["target"]["index"] == index
    assert found["target"]["label"] == ("1", "2", "0")[index]
    sent = target if isinstance(target, str) else json.dumps(target)
    headers = {"Content-Type": "image/png"}
    again = digits.post(EXPLAIN, params={"target": sent}, content=PHOTO, headers=headers)
    assert again.json()["explanations"][0]["target"]["index"] == index


@pytest.mark.parametrize("target", [{"index": 1, "label": "1"}, {"class": 1, "index": 1}])
def test_a_class_is_named_once(digits: TestClient, target: Any) -> None:
    response = ask(digits, target)
    assert response.status_code == 422
    assert "one of them" in response.json()["detail"]
