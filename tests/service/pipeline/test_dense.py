"""Targets that point: masks, boxes, units, other photos; on classifiers, segmenters, detectors."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from service.models.catalog import read_catalog
from service.settings import Settings
from tests.service.conftest import CAT, MODEL, encoded, noise, running_app
from tests.service.http.test_bad_input import check
from tests.service.pipeline import test_methods_compared as compared

CATALOG = """
[[models]]
name = "segmenter"
source = "factory:tests.zoo.factories:segmenter"
weights = "none"
input_size = 64
labels = "labels.txt"
layer = "backbone.6"

[[models]]
name = "detector"
source = "factory:tests.zoo.factories:detector"
weights = "none"
input_size = 96
layer = "backbone.body.13"

[[models]]
name = "vit"
source = "factory:tests.zoo.factories:vit"
weights = "none"
input_size = 64
"""


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder: Path = tmp_path_factory.mktemp("dense")
    (folder / "models.toml").write_text(CATALOG)
    (folder / "labels.txt").write_text("__background__\nape\nbee\ncat\n")
    entries = read_catalog(folder / "models.toml")
    with running_app(Settings(), entries) as client:
        yield client


def ask(client: TestClient, model: str, photo: Image.Image, target: Any, **more: Any) -> Any:
    body = {
        "instances": [{"image": {"b64": b64(photo)}}],
        "parameters": {"target": target, "fit": "squash", **more},
    }
    return client.post(f"/v1/models/{model}:explain", json=body)


def b64(picture: Image.Image) -> str:
    return base64.b64encode(encoded(picture)).decode()


def explained(response: Any) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    (found,) = response.json()["explanations"]
    return dict(found)


PHOTO = noise(160, 120, seed=3).resize((320, 240))


@pytest.mark.slow
def test_models_say_their_kind(dense: TestClient, client: TestClient) -> None:
    kinds = {
        name: dense.get(f"/v1/models/{name}").json()["kind"] for name in ("segmenter", "detector")
    }
    assert kinds == {"segmenter": "segments", "detector": "detections"}
    assert client.get(MODEL).json()["kind"] == "classes"


@pytest.mark.slow
def test_a_segmenters_prediction_is_shares_of_pixels(dense: TestClient) -> None:
    response = dense.post(
        "/v1/models/segmenter:predict",
        content=encoded(PHOTO),
        headers={"Content-Type": "image/png"},
    )
    (prediction,) = response.json()["predictions"]
    assert "classes" not in prediction
    shares = [each["share"] for each in prediction["segments"]]
    assert sum(shares) == pytest.approx(1)
    assert shares == sorted(shares, reverse=True)
    assert {each["label"] for each in prediction["segments"]} <= {
        "__background__",
        "ape",
        "bee",
        "cat",
    }


@pytest.mark.slow
def test_a_mask_says_which_pixels_count(dense: TestClient) -> None:
    mask = Image.new("L", PHOTO.size)
    mask.paste(255, (0, 0, 160, 240))
    left = explained(ask(dense, "segmenter", PHOTO, {"class": "bee", "mask": {"b64": b64(mask)}}))
    same = explained(ask(dense, "segmenter", PHOTO, {"class": 2, "box": [0, 0, 160, 240]}))
    right = explained(ask(dense, "segmenter", PHOTO, {"class": 2, "box": [160, 0, 320, 240]}))
    whole = explained(ask(dense, "segmenter", PHOTO, {"class": 2, "box": [0, 0, 320, 240]}))
    assert left["target"]["label"] == "bee"
    assert left["target"]["score"] == pytest.approx(same["target"]["score"], rel=1e-4)
    total = same["target"]["score"] + right["target"]["score"]
    assert whole["target"]["score"] == pytest.approx(total, rel=1e-3)
    assert 0 < left["target"]["probability"] < 1


@pytest.mark.slow
def test_without_a_class_it_is_the_largest_that_is_not_background(dense: TestClient) -> None:
    response = ask(dense, "segmenter", PHOTO, {"box": [0, 0, 320, 240]})
    found = explained(response)
    best = response.json()["predictions"][0]["segments"]
    expected = next((each for each in best if each["index"]), best[0])
    assert found["target"]["index"] == expected["index"]


@pytest.mark.slow
def test_a_detection_is_named_by_its_box_on_the_photo(dense: TestClient) -> None:
    for fit in ("squash", "pad", "crop"):
        response = ask(dense, "detector", PHOTO, {}, fit=fit)
        first = explained(response)
        seen = response.json()["predictions"][0]["detections"]
        assert len(seen) == 5
        best = seen[0]
        assert first["target"]["box"] == pytest.approx(best["box"])
        assert first["target"]["probability"] == pytest.approx(best["score"], rel=1e-4)
        if fit != "squash":
            continue
        third = seen[2]
        edges = [third["box"][name] for name in ("left", "top", "right", "bottom")]
        clipped = list(np.clip(edges, 0, [320, 240, 320, 240]))
        found = explained(
            ask(dense, "detector", PHOTO, {"class": third["index"], "box": clipped}, fit=fit)
        )
        assert found["target"]["box"] == pytest.approx(third["box"], abs=0.5)
        assert found["target"]["score"] == pytest.approx(third["score"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "target", "kind", "words"),
    [
        ("segmenter", {"class": 4}, "class-out-of-range", ["index 4", "classes 0 to 3"]),
        ("segmenter", {"box": [0, 0, 400, 9]}, "invalid-target", ["reaches outside", "320 × 240"]),
        ("segmenter", {"box": [9, 0, 3, 9]}, "invalid-parameter", ["left < right"]),
        ("segmenter", {"mask": {"b64": "%"}}, "invalid-target", ["mask is not valid base64"]),
        ("segmenter", {"mask": {"b64": "aGk="}}, "invalid-target", ["mask", "are not a JPEG"]),
        (
            "segmenter",
            {"mask": {"b64": b64(Image.new("L", (9, 9), 255))}},
            "invalid-target",
            ["the mask has 9 × 9 pixels", "320 × 240"],
        ),
        (
            "segmenter",
            {"mask": {"b64": b64(Image.new("L", (320, 240)))}},
            "invalid-target",
            ["no white pixel"],
        ),
        ("detector", {"class": 1, "minus": 2}, "invalid-target", ["detects boxes"]),
        ("detector", {"class": 77}, "unexplainable", ["finds nothing of class 77"]),
        ("detector", {"box": [0, 0, 1, 1]}, "unexplainable", ["overlaps", "by half"]),
        ("vit", {"class": 1, "box": [0, 0, 9, 9]}, "invalid-target", ["classifies whole photos"]),
        ("vit", {"channel": 3}, "invalid-parameter", ["target with channel needs layer"]),
        ("vit", {"layer": "conv_proj"}, "invalid-parameter", ["needs a channel, or like"]),
        ("vit", {"layer": "conv", "channel": 1}, "invalid-target", ["no layer 'conv'", "nearest"]),
        ("vit", {"layer": "heads", "channel": 1000}, "unexplainable", ["channels 0 to 999"]),
        (
            "vit",
            {"like": {"b64": "aGk="}, "class": 1},
            "invalid-parameter",
            ["like allows no other keys"],
        ),
    ],
)
def test_targets_that_cannot_be(
    dense: TestClient, model: str, target: Any, kind: str, words: list[str]
) -> None:
    response = ask(dense, model, PHOTO, target)
    check(response, 422, kind, *words, pointer=response.json().get("pointer", ""))
    if kind != "unexplainable":
        assert response.json()["pointer"] == "/parameters/target"


@pytest.mark.slow
def test_a_box_where_the_model_does_not_look(dense: TestClient) -> None:
    wide = noise(400, 100)
    response = ask(dense, "segmenter", wide, {"box": [0, 0, 9, 9]}, fit="crop")
    check(
        response,
        422,
        "invalid-target",
        "lies where the model does not look",
        "fit=squash",
        pointer="/parameters/target",
    )


@pytest.mark.slow
def test_a_unit(client: TestClient, photos: dict[int, Image.Image]) -> None:
    target = {"layer": "blocks.6", "channel": 11}
    found = explained(ask(client, "efficientnet-lite0", photos[CAT], target, layer="blocks.5"))
    assert found["target"]["unit"] == target
    assert "index" not in found["target"]
    assert "probability" not in found["target"]
    response = ask(
        client, "efficientnet-lite0", photos[CAT], target, layer="blocks.5", output="panel"
    )
    assert explained(response)["overlay"]["data"]


@pytest.mark.slow
def test_the_photo_itself_is_most_like_it(
    client: TestClient, photos: dict[int, Image.Image]
) -> None:
    scores = {}
    for index, photo in photos.items():
        target = {"like": {"b64": b64(photo)}, "layer": "bn2"}
        found = explained(ask(client, "efficientnet-lite0", photos[CAT], target, layer="blocks.5"))
        assert found["target"]["like"] == "bn2"
        scores[index] = found["target"]["score"]
    assert scores[CAT] == pytest.approx(1, abs=1e-4)
    assert max(score for index, score in scores.items() if index != CAT) < 0.8


@pytest.mark.slow
def test_a_target_object_in_a_query(client: TestClient, cat: bytes) -> None:
    response = client.post(
        f"{MODEL}:explain",
        params={"target": json.dumps({"layer": "blocks.6", "channel": 3}), "layer": "blocks.5"},
        content=cat,
        headers={"Content-Type": "image/png"},
    )
    assert explained(response)["target"]["unit"]["channel"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rollout", "chefer", "agcam", "legrad"])
def test_a_transformers_attention(dense: TestClient, method: str) -> None:
    found = explained(ask(dense, "vit", PHOTO, 5, method=method))
    assert found["layer"] == "input"
    assert all("does not depend on the class" in each for each in found["warnings"])
    assert bool(found["warnings"]) == (method == "rollout")
    check(
        ask(dense, "vit", PHOTO, 5, method="cam"),
        422,
        "unsuited-method",
        "cannot do cam: cam needs a linear head",
        pointer="/parameters/method",
    )


@pytest.mark.slow
def test_concepts(client: TestClient, cat: bytes) -> None:
    headers = {"Content-Type": "image/png"}
    query: dict[str, str | int] = {"concepts": 4, "fit": "squash"}
    response = client.post(f"{MODEL}:activations", params=query, content=cat, headers=headers)
    (seen,) = response.json()["activations"]
    concepts = seen["concepts"]
    assert len(concepts) == 4
    shares = [each["share"] for each in concepts]
    assert sum(shares) == pytest.approx(1)
    assert shares == sorted(shares, reverse=True)
    named = {one["label"] for each in concepts for one in each["classes"]}
    assert named & {"Egyptian cat", "tabby", "tiger cat"}
    response = client.post(
        f"{MODEL}:activations",
        params=query,
        content=cat,
        headers={**headers, "Accept": "image/png"},
    )
    shown = np.asarray(Image.open(io.BytesIO(response.content)))
    photo = Image.open(io.BytesIO(cat))
    assert shown.shape == (photo.height + 8 + 4 * 24, photo.width, 3)


@pytest.mark.slow
def test_concepts_that_cannot_be(client: TestClient, dense: TestClient, cat: bytes) -> None:
    headers = {"Content-Type": "image/png"}
    address = f"{MODEL}:activations"
    response = client.post(address, params={"concepts": 11}, content=cat, headers=headers)
    check(
        response,
        422,
        "invalid-parameter",
        "concepts is '11'",
        "from 2 to 10",
        pointer="/query/concepts",
    )
    response = client.post(
        address, params={"concepts": 2, "layer": "classifier"}, content=cat, headers=headers
    )
    check(response, 422, "unexplainable", "'classifier'", "not a grid")
    response = client.post(
        address,
        params={"concepts": 2, "layer": "blocks.*.0"},
        content=cat,
        headers={**headers, "Accept": "image/png"},
    )
    check(response, 406, "not-acceptable", "exactly one layer")


@pytest.mark.slow
def test_a_target_is_placed_for_activations_too(dense: TestClient) -> None:
    def gradient(target: Any) -> Any:
        body = {
            "instances": [{"image": {"b64": b64(PHOTO)}}],
            "parameters": {"target": target, "fit": "squash", "layer": "backbone.6"},
        }
        response = dense.post("/v1/models/segmenter:activations", json=body)
        if response.status_code != 200:
            return response
        return response.json()["activations"][0]["gradient"]

    left, right = (
        gradient({"class": 2, "box": [0, 0, 160, 240]}),
        gradient({"class": 2, "box": [160, 0, 320, 240]}),
    )
    assert left != right
    check(
        gradient({"class": 2, "box": [0, 0, 400, 9]}),
        422,
        "invalid-target",
        "reaches outside",
        pointer="/parameters/target",
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rollout", "chefer", "agcam", "legrad", "shapleycam"])
@pytest.mark.parametrize(
    "target",
    [
        {"layer": "encoder.layers.encoder_layer_0", "channel": 3},
        {"layer": "conv_proj", "channel": 3},
        {"like": {"b64": b64(noise(30, 30))}},
    ],
)
def test_a_target_before_the_last_attention(dense: TestClient, method: str, target: Any) -> None:
    response = ask(dense, "vit", PHOTO, target, method=method)
    assert response.status_code in (200, 422), response.text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["segmenter", "detector"])
def test_second_derivatives_that_are_not_there(dense: TestClient, name: str) -> None:
    """MobileNetV3's hard sigmoid has none."""
    response = ask(dense, name, PHOTO, {}, method="shapleycam")
    if response.status_code != 200:
        check(response, 422, "unexplainable", "it needs second derivatives")


@pytest.mark.slow
@pytest.mark.parametrize("target", [10**30, {"class": str(10**30)}])
def test_a_huge_class_of_a_detector_without_labels(dense: TestClient, target: Any) -> None:
    response = ask(dense, "detector", PHOTO, target)
    assert response.status_code == 422, response.text
    response = dense.post(
        "/v1/models/detector:explain",
        params={"target": str(10**30)},
        content=encoded(PHOTO),
        headers={"Content-Type": "image/png"},
    )
    check(response, 422, "class-out-of-range", pointer="/query/target")


@pytest.mark.slow
def test_a_detection_smoothed_by_augmentation(dense: TestClient) -> None:
    found = explained(ask(dense, "detector", PHOTO, {}, smooth="augment"))
    assert found["target"]["box"]


@pytest.mark.slow
def test_boxes_of_a_photo_that_was_not_decoded_whole_are_in_the_whole_ones_pixels(
    dense: TestClient,
) -> None:
    photo = PHOTO.resize((1600, 1200))
    response = dense.post(
        "/v1/models/detector:predict?fit=squash",
        content=encoded(photo, "JPEG"),
        headers={"Content-Type": "image/jpeg"},
    )
    boxes = [each["box"] for each in response.json()["predictions"][0]["detections"]]
    # It is decoded as 200 × 150, and its boxes are anywhere.
    assert max(box["right"] for box in boxes) > 400
    assert max(box["bottom"] for box in boxes) > 300


@pytest.mark.slow
def test_evidence_layers_are_for_segmenters(dense: TestClient) -> None:
    photo = encoded(noise(64, 64))
    found = compared.explained(dense, photo, model="/v1/models/segmenter", reasons=2)
    assert [each["reason"] for each in found] == [1, 2]
    assert found[0]["target"]["index"] == found[1]["target"]["index"]
    refused = compared.ask(dense, photo, model="/v1/models/detector", reasons=2)
    check(refused, 422, "invalid-parameter", "reasons is 2", "that 'detector' detects")
