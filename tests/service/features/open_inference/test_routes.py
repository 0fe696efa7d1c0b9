"""The Open Inference Protocol over HTTP: the same answers as `:explain`, in tensors."""

from __future__ import annotations

import base64
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from PIL import Image

from service.features.keys.keys import new_key
from service.features.open_inference.tensors import Tensor, from_raw
from service.models.catalog import EMBEDDED
from service.settings import Settings
from tests.service.conftest import CAT, MODEL, encoded, noise, running_app
from tests.service.http.test_overload import FRAGILE

pytestmark = pytest.mark.contract

V2 = "/v2/models/efficientnet-lite0"
NPY = {"Content-Type": "image/png", "Accept": "application/x-npy"}
LENGTH = "Inference-Header-Content-Length"


def b64(photo: bytes) -> str:
    return base64.b64encode(photo).decode()


def image(*photos: bytes) -> dict[str, Any]:
    data = [b64(photo) for photo in photos]
    return {"name": "image", "shape": [len(photos)], "datatype": "BYTES", "data": data}


def ask(client: httpx2.Client, *inputs: dict[str, Any], **more: Any) -> httpx2.Response:
    outputs = [{"name": name} for name in more.pop("outputs", ())]
    return client.post(f"{V2}/infer", json={"inputs": inputs, "outputs": outputs, **more})


def outputs_of(response: httpx2.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    answer = response.json()
    assert (answer["model_name"], answer["model_version"]) == ("efficientnet-lite0", "1")
    return {one["name"]: np.array(one["data"]).reshape(one["shape"]) for one in answer["outputs"]}


def refused(response: httpx2.Response, status: int, *words: str) -> None:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    for word in words:
        assert word in response.json()["error"]


def explained(client: httpx2.Client, photo: bytes, query: str) -> Any:
    answer = client.post(f"{MODEL}:explain?{query}", content=photo, headers=NPY)
    return np.load(BytesIO(answer.content))


def test_the_server_and_its_models_describe_themselves(client: httpx2.Client) -> None:
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}
    server = client.get("/v2").json()
    assert server["name"] == "gradcam-service"
    assert server["extensions"] == [
        "binary_tensor_data", "model_configuration", "model_repository", "statistics",
    ]  # fmt: skip
    for path in (V2, f"{V2}/versions/1"):
        assert client.get(f"{path}/ready").json() == {"name": "efficientnet-lite0", "ready": True}
        described = client.get(path).json()
        assert described["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
        assert [one["name"] for one in described["outputs"]] == [
            "probabilities", "labels", "heatmap", "overlay", "explanation",
        ]  # fmt: skip
    (state,) = client.post("/v2/repository/index").json()
    assert state == {"name": "efficientnet-lite0", "version": "1", "state": "READY", "reason": ""}


def test_the_configuration_has_what_metadata_have_for_each_image(client: httpx2.Client) -> None:
    described, config = client.get(V2).json(), client.get(f"{V2}/config").json()
    assert client.get(f"{V2}/versions/1/config").json() == config
    assert (config["name"], config["platform"]) == (described["name"], described["platform"])
    assert config["max_batch_size"] == Settings().max_instances
    assert config["input"] == [{"name": "image", "data_type": "TYPE_STRING", "dims": []}]
    expected = [(one["name"], one["shape"][1:]) for one in described["outputs"]]
    assert [(one["name"], one["dims"]) for one in config["output"]] == expected
    assert config["output"][0]["data_type"] == "TYPE_FP32"
    assert config["instance_group"][0]["kind"] == "KIND_CPU"


def test_statistics_count_the_images_and_passes_of_a_model(cat: bytes, espresso: bytes) -> None:
    with running_app(Settings(), [EMBEDDED, FRAGILE]) as client:

        def told() -> dict[str, Any]:
            (stats,) = client.get(f"{V2}/stats").json()["model_stats"]
            return stats  # type: ignore[no-any-return]

        before = told()
        assert outputs_of(ask(client, image(cat, espresso), outputs=["labels"]))
        assert outputs_of(ask(client, image(cat), outputs=["labels"]))
        stats = told()
        assert (stats["name"], stats["version"]) == ("efficientnet-lite0", "1")
        assert stats["inference_count"] - before["inference_count"] == 2
        assert 1 <= stats["execution_count"] - before["execution_count"] <= 2
        assert stats["inference_stats"]["success"] == {"count": 3, "ns": 0}
        assert stats["inference_stats"]["cache_hit"] == {"count": 1, "ns": 0}
        assert client.get(f"{V2}/versions/1/stats").json()["model_stats"] == [stats]
        both = client.get("/v2/models/stats").json()["model_stats"]
        assert [one["name"] for one in both] == ["efficientnet-lite0", "fragile"]
        assert both[0] == stats


def test_an_image_counts_once_for_each_group_of_its_methods() -> None:
    """Methods of one pass are a group, and each method of many passes is one."""
    with running_app(Settings(), [FRAGILE]) as client:

        def told() -> dict[str, Any]:
            (stats,) = client.get("/v2/models/fragile/stats").json()["model_stats"]
            return stats  # type: ignore[no-any-return]

        for seed, (methods, groups) in enumerate(
            ((["gradcam", "layercam"], 1), (["gradcam", "rise"], 2), (["gradcam", "layercam"], 1))
        ):
            before = told()
            sent = {
                "inputs": [image(encoded(noise(8, 8, seed=seed)))],
                "outputs": [{"name": "explanation"}],
                "parameters": {"explain_parameters": {"method": methods}},
            }
            answer = client.post("/v2/models/fragile/infer", json=sent)
            assert answer.status_code == 200, answer.text
            assert answer.json()["outputs"][0]["shape"] == [1, 2]
            stats = told()
            assert stats["inference_count"] - before["inference_count"] == groups
            success = [each["inference_stats"]["success"]["count"] for each in (before, stats)]
            assert success[1] - success[0] == groups
            passes = stats["execution_count"] - before["execution_count"]
            assert passes == 1 if groups == 1 else passes >= 2


@pytest.mark.parametrize("which", ["config", "stats"])
@pytest.mark.parametrize("model", ["nope", "efficientnet-lite0/versions/2"])
def test_what_is_not_there_has_neither(client: httpx2.Client, which: str, model: str) -> None:
    refused(client.get(f"/v2/models/{model}/{which}"), 404, "no ", model.rpartition("/")[2])


def test_kserve_hears_at_the_root_that_the_service_lives(client: httpx2.Client) -> None:
    assert client.get("/").json() == {"status": "alive"}


@pytest.mark.parametrize("method", ["gradcam", "layercam"])
def test_the_maps_are_those_of_explain(client: httpx2.Client, cat: bytes, method: str) -> None:
    outputs = outputs_of(ask(client, image(cat), parameters={"method": method, "fit": "squash"}))
    assert list(outputs) == ["probabilities", "labels", "heatmap"]
    expected = explained(client, cat, f"method={method}&fit=squash")
    np.testing.assert_allclose(outputs["heatmap"][0, 0], expected, atol=1e-6)
    predicted = client.post(
        f"{MODEL}:predict?fit=squash", content=cat, headers=NPY | {"Accept": "*/*"}
    )
    classes = predicted.json()["predictions"][0]["classes"]
    assert outputs["labels"][0].tolist() == [one["label"] for one in classes]
    expected = [one["probability"] for one in classes]
    np.testing.assert_allclose(outputs["probabilities"][0], expected, atol=1e-6)


def test_every_output_of_two_images_and_two_methods(
    client: httpx2.Client, cat: bytes, espresso: bytes
) -> None:
    names = ["explanation", "overlay", "heatmap"]
    parameters = {"explain_parameters": {"method": ["gradcam", "hirescam"]}, "size": "model"}
    outputs = outputs_of(
        ask(client, image(cat, espresso), outputs=names, parameters=parameters, id="two")
    )
    assert list(outputs) == names
    assert outputs["heatmap"].shape == (2, 2, 224, 224)
    facts = [json.loads(text) for text in outputs["explanation"].ravel()]
    assert [(one["target"]["label"], one["method"]) for one in facts] == [
        ("Egyptian cat", "gradcam"),
        ("Egyptian cat", "hirescam"),
        ("espresso", "gradcam"),
        ("espresso", "hirescam"),
    ]
    assert {one["id"] for one in facts} == {"two"}
    for text in outputs["overlay"].ravel():
        assert Image.open(BytesIO(base64.b64decode(text))).size == (224, 224)


def test_pixels_are_an_image_and_each_image_has_its_target(
    client: httpx2.Client, photos: dict[int, Image.Image]
) -> None:
    pixels = np.asarray(photos[CAT].resize((64, 48)))
    one = encoded(Image.fromarray(pixels))
    tensor = {"name": "image", "datatype": "UINT8"}
    stack = tensor | {"shape": [2, 48, 64, 3], "data": [pixels.tolist()] * 2}
    target = {"name": "target", "datatype": "BYTES", "shape": [2], "data": ["tabby", "lynx"]}
    outputs = outputs_of(ask(client, stack, target, outputs=["heatmap"]))
    for turn, label in enumerate(("tabby", "lynx")):
        expected = explained(client, one, f"target={label}")
        np.testing.assert_allclose(outputs["heatmap"][turn, 0], expected, atol=1e-6)
    numbers = {"name": "target", "datatype": "INT64", "shape": [2], "data": [281, 287]}
    again = outputs_of(ask(client, stack, numbers, outputs=["heatmap"]))
    np.testing.assert_array_equal(again["heatmap"], outputs["heatmap"])
    flat = {"name": "whatever", "datatype": "UINT8", "shape": [48, 64, 3]}
    alone = outputs_of(ask(client, flat | {"data": pixels.ravel().tolist()}, outputs=["labels"]))
    assert alone["labels"].shape == (1, 5)


def test_raw_bytes_both_ways(client: httpx2.Client, cat: bytes) -> None:
    raw = Tensor("image", (1,), strings=[cat]).raw()
    parameters = {"binary_data_size": len(raw)}
    head = json.dumps(
        {
            "inputs": [
                {"name": "image", "shape": [1], "datatype": "BYTES", "parameters": parameters}
            ],
            "outputs": [
                {"name": "heatmap", "parameters": {"binary_data": True}},
                {"name": "labels"},
            ],
            "parameters": {"size": "layer"},
        }
    ).encode()
    response = client.post(f"{V2}/infer", content=head + raw, headers={LENGTH: str(len(head))})
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/octet-stream"
    length = int(response.headers[LENGTH])
    heatmap, labels = json.loads(response.content[:length])["outputs"]
    assert heatmap["parameters"] == {"binary_data_size": 7 * 7 * 4}
    found = from_raw("heatmap", heatmap["datatype"], heatmap["shape"], response.content[length:])
    assert found.numbers is not None
    expected = explained(client, cat, "size=layer")
    np.testing.assert_allclose(found.numbers[0, 0], expected, atol=1e-6)
    assert labels["data"][0] == "Egyptian cat"


def test_without_a_map_a_prediction_is_made(client: httpx2.Client, cat: bytes) -> None:
    def passes() -> float:
        lines = client.get("/metrics").text.splitlines()
        return sum(
            float(line.split()[-1]) for line in lines if "render" in line and "_count" in line
        )

    before = passes()
    assert before > 0
    outputs = outputs_of(ask(client, image(cat), outputs=["labels"], parameters={"top_k": 2}))
    assert outputs["labels"].shape == (1, 2)
    assert passes() == before


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"inputs": []}, 400, ["at /inputs"]),
        ({"inputs": [{"name": "image"}]}, 400, ["at /inputs/0/shape"]),
        ({"inputs": [image(b"no image")]}, 422, ["8 bytes are not a JPEG"]),
        ({"inputs": [image()]}, 400, ["the input has no image"]),
        ({"inputs": [image(*[b"x"] * 40)]}, 413, ["40 images; at most 32"]),
        ({"inputs": [image(b"x"), {**image(b"x"), "name": "mask"}]}, 422, ["no input 'mask'"]),
        ({"inputs": [{**image(b"x"), "name": "target"}] * 2}, 400, ["no input 'image'"]),
        ({"inputs": [image(b"x"), {**image(b"x", b"y"), "name": "target"}]}, 400, ["2 targets"]),
        ({"inputs": [{"name": "a", "shape": [2, 2], "datatype": "FP32", "data": [0, 0, 0, 0]}]},
         422, ["FP32 of shape [2, 2]", "UINT8 [N, H, W, 3]"]),
        ({"inputs": [{"name": "a", "shape": [1, 0, 9, 3], "datatype": "UINT8", "data": []}]},
         422, ["UINT8 of shape [1, 0, 9, 3]"]),
        ({"inputs": [{"name": "a", "shape": [1, 2], "datatype": "BYTES", "data": ["x", "y"]}]},
         400, ["[1, 2], not [N]"]),
        ({"outputs": [{"name": "map"}]}, 422, ["no output 'map'", "heatmap"]),
        ({"parameters": {"method": "gradcan"}}, 422, ["no method 'gradcan'"]),
        ({"parameters": {"colour": "red"}}, 422, ["no parameter 'colour'"]),
        ({"parameters": {"explain_parameters": [1]}}, 422, ["explain_parameters is not an object"]),
        ({"parameters": {"target": "catt"}}, 422, ["catt"]),
        ({"parameters": {"timeout": -1}}, 422, ["timeout is '-1'"]),
        ({"parameters": {"timeout": 1}}, 504, ["not ready after"]),
        ({"parameters": {"timeout": 10**400}}, 422, ["timeout is '1000", "microseconds above 0"]),
        ({"parameters": {"explain_parameters": "[" * 9999}}, 400, ["explain_parameters is not"]),
        ({"outputs": [{"name": "labels", "parameters": {"classification": 3}}]},
         422, ["'labels' asks for a classification", "top_k"]),
        ({"outputs": [{"name": "heatmap", "parameters": {"shared_memory_region": "x"}}]},
         422, ["'heatmap' names a shared_memory_region"]),
        ({"inputs": [{**image(b"x"), "parameters": {"shared_memory_region": "x"}}]},
         422, ["'image' names a shared_memory_region"]),
        ({"inputs": [{**image(b"x"), "shape": [1] * 9}]}, 400, ["at /inputs/0/shape"]),
    ],
)  # fmt: skip
def test_what_is_wrong_gets_the_protocol_s_error(
    client: httpx2.Client, cat: bytes, change: dict[str, Any], status: int, words: list[str]
) -> None:
    response = client.post(f"{V2}/infer", json={"inputs": [image(cat)], **change})
    refused(response, status, *words)


def test_images_of_different_sizes_need_a_common_one(
    client: httpx2.Client, cat: bytes, espresso: bytes
) -> None:
    refused(ask(client, image(cat, espresso)), 422, "(300, 451)", "take size=model")
    outputs = outputs_of(ask(client, image(cat, espresso), parameters={"size": "model"}))
    assert outputs["heatmap"].shape == (2, 1, 224, 224)


@pytest.mark.parametrize(
    ("content", "headers", "sentence"),
    [
        (b"", {}, "the body is not JSON"),
        (b"[]", {}, "at /"),
        (b"\xff", {}, "the body is not JSON"),
        (b"{}", {LENGTH: "3"}, "the body has 2"),
        (b"{}", {LENGTH: "x"}, "it is the number of bytes"),
        (b"{}", {LENGTH: "-1"}, "it is the number of bytes"),
        (b"[" * 10_000, {}, "the body is not JSON: recursion limit exceeded"),
        (b'{"timeout": ' + b"9" * 5000 + b"}", {}, "the body is not JSON"),
    ],
)
def test_bodies_that_cannot_be_read(
    client: httpx2.Client, content: bytes, headers: dict[str, str], sentence: str
) -> None:
    refused(client.post(f"{V2}/infer", content=content, headers=headers), 400, sentence)


def test_elements_are_counted_before_they_are_parsed(client: httpx2.Client) -> None:
    content = b'{"inputs": [{"data": [' + b"[]," * 500_000 + b"[]]}]}"
    refused(client.post(f"{V2}/infer", content=content), 413, "at most 1000000", "raw bytes")


@pytest.mark.parametrize("content", [b"[" * 10_000, b"{", b"\xff", b"9" * 5000])
def test_the_repository_reads_json_as_the_other_routes_do(
    client: httpx2.Client, content: bytes
) -> None:
    refused(client.post("/v2/repository/index", content=content), 400, "the body is not JSON")


@pytest.mark.parametrize("size", [5, -1, "2", 10**30])
def test_raw_bytes_that_are_not_there(client: httpx2.Client, size: object) -> None:
    sent = {**image(b"x"), "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [sent]}).encode()
    response = client.post(f"{V2}/infer", content=head + b"abc", headers={LENGTH: str(len(head))})
    refused(response, 400, "binary_data_size is", "3 more bytes")


def test_unknown_models_versions_and_addresses(client: httpx2.Client) -> None:
    for path in ("/v2/models/nope", "/v2/models/nope/ready", f"{V2}/versions/2", "/v2/nope"):
        refused(client.get(path), 404)
    refused(client.post("/v2/models/nope/infer", json={"inputs": [image(b"x")]}), 404, "nope")
    refused(client.post(f"{V2}/versions/7/infer", json={"inputs": [image(b"x")]}), 404, "'7'")


def test_an_admin_unloads_and_loads_models(tmp_path: Path) -> None:
    keys = {scope: new_key(scope, [scope], None) for scope in ("explain", "admin")}
    file = tmp_path / "keys.toml"
    file.write_text("\n".join(entry for _, entry in keys.values()))
    user, admin = ({"X-API-Key": keys[scope][0]} for scope in ("explain", "admin"))
    repository = "/v2/repository/models/fragile"
    with running_app(Settings(keys=file), [FRAGILE]) as client:
        assert client.get("/v2/health/ready").status_code == 200  # without a key
        refused(client.get("/v2"), 401, "send an API key")
        refused(client.post(f"{repository}/unload", headers=user), 403, "needs admin")
        assert client.post(f"{repository}/load", headers=admin).status_code == 200  # it is loaded
        assert client.post(f"{repository}/unload", headers=admin).status_code == 200
        (state,) = client.post("/v2/repository/index", headers=user).json()
        assert state["state"] == "UNAVAILABLE"
        ready = client.post("/v2/repository/index", headers=user, json={"ready": True})
        assert ready.json() == []
        refused(client.get("/v2/models/fragile/ready", headers=user), 404)
        assert client.post(f"{repository}/load", headers=admin).status_code == 200
        assert client.get("/v2/models/fragile/ready", headers=user).status_code == 200
        refused(client.post("/v2/repository/models/x/load", headers=admin), 404, "config")
        entry = {"source": FRAGILE.source, "weights": "none", "input_size": 8}
        config = {"parameters": {"config": json.dumps(entry)}}
        loaded = client.post("/v2/repository/models/x/load", headers=admin, json=config)
        assert loaded.status_code == 200
        assert client.get("/v2/models/x/ready", headers=user).status_code == 200
        elsewhere = {"parameters": {"config": json.dumps({"source": "timm:resnet18"})}}
        loaded = client.post("/v2/repository/models/y/load", headers=admin, json=elsewhere)
        refused(loaded, 403, "not allowed")
        deep = client.post("/v2/repository/models/y/load", headers=admin, content="[" * 10_000)
        refused(deep, 400, "the body is not JSON")
        for body in ("[]", '{"parameters": 1}', '{"parameters": {"config": 1}}'):
            loaded = client.post("/v2/repository/models/y/load", headers=admin, content=body)
            refused(loaded, loaded.status_code, "config is" if "config" in body else "like")


def test_more_images_than_the_queue_holds() -> None:
    photo = encoded(noise(8, 8))
    with running_app(Settings(max_queue=1), [FRAGILE]) as client:
        sent = {"inputs": [image(photo, photo)]}
        refused(client.post("/v2/models/fragile/infer", json=sent), 413, "at most 1")


def test_values_are_no_picture(client: httpx2.Client, cat: bytes) -> None:
    values = {"output": "values"}
    refused(ask(client, image(cat), parameters=values, outputs=["overlay"]), 422, "not a picture")
    assert "heatmap" in outputs_of(ask(client, image(cat), parameters=values))


def test_a_json_answer_has_at_most_four_million_numbers() -> None:
    with running_app(Settings(), [FRAGILE]) as http:
        sent: dict[str, Any] = {"inputs": [image(encoded(noise(2048, 2048), "JPEG"))]}
        infer = "/v2/models/fragile/infer"
        refused = http.post(infer, json=sent)
        assert refused.status_code == 422
        for word in ("4194304 numbers", "binary_data", "other outputs", "size=model"):
            assert word in refused.json()["error"]
        binary = http.post(infer, json={**sent, "parameters": {"binary_data_output": True}})
        assert binary.status_code == 200
        assert len(binary.content) > 4 * 2048 * 2048
        sent["outputs"] = [{"name": "labels"}]
        assert http.post(infer, json=sent).status_code == 200
