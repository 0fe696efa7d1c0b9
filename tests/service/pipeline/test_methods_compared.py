"""Several methods of one request: at one layer, from one pass, and how much their maps agree."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from statistics import fmean
from typing import Any

import httpx2
import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from cam import METHODS, spearman
from service.models.catalog import read_catalog
from service.settings import Settings
from tests.service.conftest import CAT, ESPRESSO, MODEL, encoded, running_app, values

CATALOG = """
[[models]]
name = "tuned"
source = "embedded:efficientnet-lite0"
max_batch = 4

[models.method_layers]
layercam = "blocks.6"
"""


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    file = tmp_path_factory.mktemp("compared") / "models.toml"
    file.write_text(CATALOG)
    with running_app(Settings(), read_catalog(file)) as client:
        yield client


def ask(client: httpx2.Client, photo: bytes, model: str = MODEL, **query: Any) -> httpx2.Response:
    return client.post(
        f"{model}:explain",
        params={"fit": "squash", **query},
        content=photo,
        headers={"Content-Type": "image/png"},
    )


def explained(client: httpx2.Client, photo: bytes, **query: Any) -> list[dict[str, Any]]:
    answer = ask(client, photo, **query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["explanations"]
    return found


@pytest.mark.slow
def test_methods_are_compared_at_one_layer(tuned: TestClient, cat: bytes) -> None:
    asked = {"size": "layer", "normalize": "none", "model": "/v1/models/tuned"}
    (alone,) = explained(tuned, cat, method="layercam", **asked)
    assert alone["layer"] == "blocks.6"
    assert alone["layer_reason"] == (
        "'blocks.6' is what layercam takes by default in model 'tuned'; other methods take 'bn2', "
        "so name a layer to compare layercam with them"
    )
    assert "agreement" not in alone
    first, second = explained(tuned, cat, method=["gradcam", "layercam"], **asked)
    assert [(each["method"], each["layer"]) for each in (first, second)] == [
        ("gradcam", "bn2"),
        ("layercam", "bn2"),
    ]
    assert "layer_reason" not in first
    assert "layer_reason" not in second
    expected = spearman(values(first), values(second))
    assert expected is not None
    assert first["agreement"] == {"layercam": pytest.approx(expected, abs=1e-6)}
    assert second["agreement"] == {"gradcam": pytest.approx(expected, abs=1e-6)}
    # As it is told.
    both = explained(tuned, cat, method=["gradcam", "layercam"], layer="blocks.6", **asked)
    assert [each["layer"] for each in both] == ["blocks.6", "blocks.6"]
    np.testing.assert_allclose(values(both[1]), values(alone), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_each_map_is_the_one_that_its_method_makes_alone(client: TestClient, cat: bytes) -> None:
    methods = ["gradcam++", "eigencam", "scorecam", "hirescam", "gradient"]
    asked = {"size": "layer", "normalize": "none", "budget": 32, "target": [CAT, ESPRESSO]}
    own = {**asked, "layer": "bn2"}
    together = explained(client, cat, method=methods, **asked)
    alone = [each for name in methods for each in explained(client, cat, method=name, **own)]
    assert [(each["method"], each["target"]["index"]) for each in together] == [
        (name, index) for name in methods for index in (CAT, ESPRESSO)
    ]
    for one, other in zip(together, alone, strict=True):
        limit = 1e-3 * float(np.abs(values(other)).max())
        np.testing.assert_allclose(values(one), values(other), atol=limit)
    # A map of pixels is compared on the grid of the other one.
    by = {(each["method"], each["target"]["index"]): each for each in together}
    for index in (CAT, ESPRESSO):
        told = by["gradient", index]["agreement"]
        assert [*told] == [name for name in methods if name != "gradient"]
        for name, agreement in told.items():
            expected = spearman(values(by["gradient", index]), values(by[name, index]))
            assert agreement == pytest.approx(expected, abs=1e-6)


def test_several_layers_are_each_compared_with_themselves(client: TestClient, cat: bytes) -> None:
    found = explained(
        client,
        cat,
        method=["gradcam", "layercam", "fullgrad"],
        layer=["blocks.5", "bn2"],
        size="layer",
        normalize="none",
    )
    assert [(each["method"], each["layer"]) for each in found] == [
        *(("gradcam", "blocks.5"), ("gradcam", "bn2")),
        *(("layercam", "blocks.5"), ("layercam", "bn2")),
        ("fullgrad", "input"),
    ]
    for one, other in ((0, 2), (1, 3)):
        expected = spearman(values(found[one]), values(found[other]))
        assert found[one]["agreement"] == {"layercam": pytest.approx(expected, abs=1e-6)}
    assert "agreement" not in found[4]  # of which of the two layers?


def test_an_instance_may_have_methods_of_its_own(client: TestClient, cat: bytes) -> None:
    image = {"b64": base64.b64encode(cat).decode()}
    body = {
        "instances": [
            {"image": image, "method": ["layercam", "hirescam"]},
            {"image": image},
            {"image": image, "method": ["gradcam", "nothing"]},
        ],
        "parameters": {"method": ["gradcam", "fem", "gradcam"]},
    }
    answer = client.post(f"{MODEL}:explain", json=body)
    assert answer.status_code == 200, answer.text
    *good, bad = answer.json()["explanations"]
    assert [(each["instance"], each["method"]) for each in good] == [
        *((0, "layercam"), (0, "hirescam"), (1, "gradcam"), (1, "fem"))
    ]
    assert bad["error"].startswith("there is no method 'nothing'")


def test_plus_signs_and_forms(client: TestClient, cat: bytes) -> None:
    answer = client.post(
        f"{MODEL}:explain?method=gradcam++&method=layercam",
        content=cat,
        headers={"Content-Type": "image/png"},
    )
    assert [each["method"] for each in answer.json()["explanations"]] == ["gradcam++", "layercam"]
    answer = client.post(
        f"{MODEL}:explain",
        files={"image": cat},
        data={"method": ["fem", "eigencam"], "size": "layer"},
    )
    assert [each["method"] for each in answer.json()["explanations"]] == ["fem", "eigencam"]


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ({"method": ["gradcam", "grad"]}, 422, "there is no method 'grad'"),
        ({"method": ["gradcam", "rollout"]}, 422, "cannot do rollout"),
        ({"method": ["gradcam", "fem"], "signed": True}, 422, "fem has nothing below 0 to show"),
        (
            {
                "method": [name for name in METHODS if METHODS[name].formula == "weights"],
                "layer": "blocks.*",
            },
            422,
            "maps; at most 100",
        ),
    ],
)
def test_what_one_of_them_cannot_is_refused(
    client: TestClient, cat: bytes, query: dict[str, Any], status: int, words: str
) -> None:
    answer = ask(client, cat, **query)
    assert (answer.status_code, words in answer.json()["detail"]) == (status, True), answer.text


def test_a_picture_holds_one(client: TestClient, cat: bytes) -> None:
    answer = client.post(
        f"{MODEL}:explain?method=gradcam&method=layercam",
        content=cat,
        headers={"Content-Type": "image/png", "Accept": "image/png"},
    )
    assert answer.status_code == 406
    assert "this request asks for 2" in answer.json()["detail"]


@pytest.mark.slow
def test_progress_tells_which_method_is_at_work(client: TestClient, cat: bytes) -> None:
    answer = client.post(
        f"{MODEL}:explain",
        params={"method": ["rise", "gradcam", "occlusion"], "budget": 40, "size": "layer"},
        content=cat,
        headers={"Content-Type": "image/png", "Accept": "application/x-ndjson"},
    )
    lines = [json.loads(line) for line in answer.text.splitlines()]
    told = [line["method"] for line in lines if "progress" in line]
    assert list(dict.fromkeys(told)) == ["rise", "occlusion"]
    assert [line["method"] for line in lines if "progress" not in line] == [
        *("rise", "gradcam", "occlusion")
    ]


def test_of_a_flat_map_nothing_is_told(client: TestClient) -> None:
    gray = encoded(Image.new("RGB", (32, 32), (128, 128, 128)))
    found = explained(client, gray, method=["gradcam", "fem", "layercam"], layer="blocks.0")
    for each in found:
        told = each.get("agreement", {})
        flat = any("everywhere" in warning for warning in each["warnings"])
        assert not flat or not told
    means = [fmean(each["agreement"].values()) for each in found if "agreement" in each]
    assert all(-1 <= mean <= 1 for mean in means)
