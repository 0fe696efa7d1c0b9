"""`reasons`: the map of a photo, then of the photo in which what is hot is masked."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from tests.service.conftest import (
    CAT,
    ESPRESSO,
    MODEL,
    comparable,
    encoded,
    values,
)
from tests.service.http.test_bad_input import check
from tests.service.pipeline.test_methods_compared import ask, explained

SEEN = {"size": "model", "output": "values"}
"""Maps as numbers on the model's input."""


@pytest.fixture(scope="module")
def cat(photos: dict[int, Image.Image]) -> Image.Image:
    """The photo in the size of the model's input, of which each pixel is one of the input."""
    return photos[CAT].resize((224, 224))


@pytest.mark.parametrize(("name", "threshold"), [(CAT, 0.6), (ESPRESSO, 0.3)])
def test_each_reason_is_the_map_of_the_masked_photo(
    client: TestClient, photos: dict[int, Image.Image], name: int, threshold: float
) -> None:
    """Of the class of the photo, although another one is predicted without the cup."""
    photo = photos[name].resize((224, 224))
    found = explained(client, encoded(photo), reasons=3, threshold=threshold, **SEEN)
    assert [each["reason"] for each in found] == [1, 2, 3]
    pixels = np.asarray(photo).copy()
    masked = np.zeros(pixels.shape[:2], bool)
    for each in found:
        target = {"target": found[0]["target"]["index"]} if masked.any() else {}
        (plain,) = explained(client, encoded(Image.fromarray(pixels)), **target, **SEEN)
        assert each["target"] == {
            **plain["target"],
            "score": pytest.approx(each["target"]["score"]),
        }
        assert "reason" not in plain
        heat = np.where(masked, np.inf, values(plain))
        heat = np.where(
            masked, 0, (heat - heat.min()) / (values(plain)[~masked].max() - heat.min())
        )
        np.testing.assert_allclose(values(each), heat, atol=1e-3)
        masked = masked | (values(each) >= threshold)
        pixels[masked] = 128  # the nearest to 127.5, this model's mean colour
    assert 0.1 < masked.mean() < 1


def test_however_it_is_asked(client: TestClient, cat: Image.Image) -> None:
    photo = encoded(cat)
    of_query = explained(client, photo, reasons=2)
    form = {"reasons": "2", "fit": "squash"}
    of_form = client.post(f"{MODEL}:explain", data=form, files={"image": photo}).json()
    body = {
        "instances": [{"image": {"b64": base64.b64encode(photo).decode()}}],
        "parameters": {"reasons": 2, "fit": "squash"},
    }
    of_json = client.post(f"{MODEL}:explain", json=body).json()
    assert len(of_query) == 2
    for explanation in of_form["explanations"]:
        del explanation["id"]  # the name of the part
    assert comparable(of_form["explanations"]) == comparable(of_query)
    assert comparable(of_json["explanations"]) == comparable(of_query)


def test_their_order(client: TestClient, cat: Image.Image) -> None:
    """By method, target, layer and reason; methods agree about the same reason."""
    asked: dict[str, Any] = {"method": ["eigencam", "layercam"], "target": [285, 281]}
    found = explained(client, encoded(cat), reasons=2, **asked)
    told = [(each["method"], each["target"]["index"], each["reason"]) for each in found]
    assert told == [
        (method, target, reason)
        for method in ("eigencam", "layercam")
        for target in (285, 281)
        for reason in (1, 2)
    ]
    plain = explained(client, encoded(cat), **asked)
    assert [each["agreement"] for each in plain] != [{}] * 4
    for one, other in zip(plain, found[::2], strict=True):
        (before,), (now,) = one["agreement"].values(), other["agreement"].values()
        assert now == pytest.approx(before, abs=0.05)
    assert found[1]["agreement"] == {
        "layercam": pytest.approx(found[5]["agreement"]["eigencam"], abs=1e-6)
    }
    layers = explained(client, encoded(cat), reasons=2, layer=["blocks.5", "bn2"])
    assert [(each["layer"], each["reason"]) for each in layers] == [
        *(("blocks.5", 1), ("blocks.5", 2)),
        *(("bn2", 1), ("bn2", 2)),
    ]
    fused = explained(client, encoded(cat), reasons=2, layer=["blocks.5", "bn2"], fuse="mean")
    assert [each["layer"] for each in fused] == ["blocks.5 + bn2"] * 2


def test_a_method_of_many_passes(client: TestClient, cat: Image.Image) -> None:
    found = explained(client, encoded(cat), reasons=2, method="scorecam", budget=4)
    assert [each["reason"] for each in found] == [1, 2]
    chosen = "channels of the greatest variance"
    passes = {"made": 4, "of": 1280, "stopped": False, "chosen": chosen}
    assert [each["passes"] for each in found] == [passes, passes]
    assert all(f"for the {chosen}; a larger budget" in each["warnings"][-1] for each in found)


def two_reasons(client: TestClient, photo: Image.Image, accept: str) -> Any:
    return client.post(
        f"{MODEL}:explain",
        params={"reasons": "2"},
        content=encoded(photo),
        headers={"Content-Type": "image/png", "Accept": accept},
    )


def test_a_stream_has_a_line_for_each(client: TestClient, cat: Image.Image) -> None:
    response = two_reasons(client, cat, "application/x-ndjson")
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert [line["reason"] for line in lines if "reason" in line] == [1, 2]


def test_one_picture_holds_no_reasons(client: TestClient, cat: Image.Image) -> None:
    response = two_reasons(client, cat, "image/png")
    check(response, 406, "not-acceptable", "exactly one map", "asks for 2", "application/json")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"reasons": "0"}, "reasons is '0': it should be a number from 1 to 5"),
        ({"reasons": "6"}, "reasons is '6': it should be a number from 1 to 5"),
        ({"reasons": "2.5"}, "reasons is '2.5'"),
        (
            {"reasons": "2", "threshold": "0"},
            "threshold is 0; it can be above 0 and below 1, where reasons is 2",
        ),
        ({"reasons": "2", "threshold": "1"}, "threshold is 1; it can be above 0"),
        ({"reasons": "2", "normalize": "none"}, "minmax or percentile"),
        ({"reasons": "2", "size": "layer"}, "image or model"),
        ({"reasons": "2", "evaluate": "deletion"}, "of the photo itself"),
        ({"reasons": "5", "layer": "*", "method": ["gradcam", "layercam"]}, "at most"),
    ],
)
def test_what_is_refused(
    client: TestClient, cat: Image.Image, query: dict[str, Any], words: str
) -> None:
    pointer = "/query/reasons" if len(query) == 1 else ""
    response = ask(client, encoded(cat), **query)
    check(response, 422, "invalid-parameter", words, pointer=pointer)


def test_where_reasons_end(client: TestClient, cat: Image.Image) -> None:
    """There is nothing of class 379, howler monkey, in the photo."""
    (only,) = explained(client, encoded(cat), reasons=3, target=379)
    assert only["reason"] == 1
    assert only["warnings"][-1].startswith(
        "there is no reason 2: the map of the photo is the same everywhere (class 379, p = 0.000)"
    )
