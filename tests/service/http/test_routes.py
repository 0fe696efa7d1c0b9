"""The HTTP contract, through the app with the embedded model."""

from __future__ import annotations

import base64
import json
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from cam import COLORMAPS, METHODS
from service import __version__
from tests.service.conftest import CAT, ESPRESSO, MODEL, encoded, noise

EXPLAIN, PREDICT = f"{MODEL}:explain", f"{MODEL}:predict"
PNG = {"Content-Type": "image/png"}


def b64(data: bytes) -> dict[str, Any]:
    return {"image": {"b64": base64.b64encode(data).decode()}}


def picture(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(data)).convert("RGB")).astype(int)


def heatmap(explanation: dict[str, Any]) -> np.ndarray:
    found = explanation["heatmap"]
    data = base64.b64decode(found["data"])
    if found["encoding"] == "png":
        return np.asarray(Image.open(BytesIO(data))).astype(np.float32) / 255
    return np.frombuffer(data, "<f4").reshape(found["shape"])


# What there is


def test_health_readiness_and_models(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ok"}
    assert client.get("/v1/models").json() == {"models": ["efficientnet-lite0"]}


def test_a_model_describes_itself(client: TestClient) -> None:
    found = client.get(MODEL).json()
    assert found["classes"] == len(found["labels"]) == 1000
    assert found["labels"][CAT] == "Egyptian cat"
    assert [method["name"] for method in found["methods"]] == list(METHODS)
    assert found["default_layer"] == "bn2"
    assert found["input"]["height"] == found["input"]["width"] == 224
    assert (found["ready"], found["dtype"]) == (True, "float32")


def test_methods_that_do_not_show_the_class_are_listed_and_warn(
    client: TestClient, cat: bytes
) -> None:
    listed = {each["name"]: each for each in client.get(MODEL).json()["methods"]}
    for method, dependence, sentence in (
        ("fem", "none", "the map does not depend on the class"),
        ("guidedbackprop", "weak", "the map hardly depends on the class"),
    ):
        about = listed[method]
        assert (about["class_specific"], about["class_dependence"]) == (False, dependence)
        query = {"target": str(CAT), "method": method, "size": "layer"}
        response = client.post(EXPLAIN, params=query, content=cat, headers=PNG)
        (explanation,) = response.json()["explanations"]
        assert any(each.startswith(sentence) for each in explanation["warnings"])
    gradcam = listed["gradcam"]
    assert (gradcam["class_specific"], gradcam["class_dependence"]) == (True, "full")


def test_layers_in_execution_order_with_the_default_and_reasons(client: TestClient) -> None:
    layers = client.get(f"{MODEL}/layers").json()["layers"]
    names = [layer["name"] for layer in layers]
    assert names.index("conv_stem") < names.index("blocks.0") < names.index("bn2")
    (default,) = [layer for layer in layers if layer["default"]]
    assert (default["name"], default["output_shape"]) == ("bn2", [1280, 7, 7])
    stages = {layer["name"]: layer["grid"] for layer in layers if layer["stage"]}
    assert stages == {
        "blocks.0": [112, 112],
        "blocks.1": [56, 56],
        "blocks.2": [28, 28],
        "blocks.4": [14, 14],
        "bn2": [7, 7],
    }
    classifier = layers[names.index("classifier")]
    assert not classifier["explainable"]
    assert classifier["reason"] == "its output (1000,) is not a grid of positions on the image"


def test_the_documentation_needs_nothing_from_outside(client: TestClient) -> None:
    docs = client.get("/docs").text
    assert "cdn" not in docs
    assert client.get("/static-offline-docs/swagger-ui-bundle.js").status_code == 200


def test_metrics_count_what_happened(client: TestClient, cat: bytes) -> None:
    client.post(EXPLAIN, content=cat, headers=PNG)
    text = client.get("/metrics").text
    line = 'gradcam_requests_total{method="POST",route="/v1/models/{model}:explain",status="200"}'
    assert line in text
    assert 'gradcam_worker_restarts_total{model="efficientnet-lite0"} 0.0' in text
    assert f'version="{__version__}"}} 1.0' in text
    assert 'gradcam_model_ready{model="efficientnet-lite0"} 1.0' in text
    for phase in ("decode", "preprocess", "queue", "forward_backward", "render"):
        assert f'gradcam_phase_seconds_count{{phase="{phase}"}}' in text


# What goes in


def test_three_forms_of_a_request_give_the_same_explanation(client: TestClient, cat: bytes) -> None:
    query = {"fit": "squash", "output": "values", "size": "layer"}
    raw = client.post(EXPLAIN, params=query, content=cat, headers=PNG).json()
    form = client.post(EXPLAIN, data=query, files={"image": ("cat.png", cat)}).json()
    body = json.dumps({"instances": [b64(cat)], "parameters": query})
    charset = {"Content-Type": "application/json; charset=utf-8"}
    as_json = client.post(EXPLAIN, content=body, headers=charset).json()
    for found in (raw, form, as_json):
        (explanation,) = found["explanations"]
        assert explanation["target"]["index"] == CAT
        assert explanation["target"]["label"] == "Egyptian cat"
        assert explanation["target"]["probability"] > 0.6
        np.testing.assert_allclose(heatmap(explanation), heatmap(raw["explanations"][0]), atol=1e-5)


def test_a_forms_file_name_is_its_id_and_several_come_in_order(
    client: TestClient, cat: bytes, espresso: bytes
) -> None:
    files = [("image", ("cat.png", cat)), ("image", ("cup.png", espresso))]
    found = client.post(PREDICT, files=files, data={"fit": "squash", "top_k": "2"}).json()
    assert [p["id"] for p in found["predictions"]] == ["cat.png", "cup.png"]
    assert [p["classes"][0]["index"] for p in found["predictions"]] == [CAT, ESPRESSO]
    assert [len(p["classes"]) for p in found["predictions"]] == [2, 2]


def test_instances_carry_their_own_target_method_layer_and_id(
    client: TestClient, cat: bytes
) -> None:
    instances = [
        {**b64(cat), "id": "a", "target": "tabby", "method": "layercam", "layer": "blocks.6"},
        {**b64(cat), "target": [CAT, "espresso"]},
        {**b64(cat), "layer": ["blocks.5", "auto"]},
    ]
    body = {"instances": instances, "parameters": {"target": 5, "size": "layer", "top_k": 1}}
    found = client.post(EXPLAIN, json=body).json()
    assert [
        (e["instance"], e.get("id"), e["target"]["index"], e["method"], e["layer"])
        for e in found["explanations"]
    ] == [
        (0, "a", 281, "layercam", "blocks.6"),
        (1, None, CAT, "gradcam", "bn2"),
        (1, None, ESPRESSO, "gradcam", "bn2"),
        (2, None, 5, "gradcam", "blocks.5"),
        (2, None, 5, "gradcam", "bn2"),
    ]
    assert [e["heatmap"]["shape"] for e in found["explanations"]] == [[7, 7]] * 3 + [[7, 7]] * 2
    assert len(found["predictions"]) == 3


def test_a_data_url_is_taken_too(client: TestClient, cat: bytes) -> None:
    image = {"b64": "data:image/png;base64," + base64.b64encode(cat).decode()}
    response = client.post(PREDICT, json={"instances": [{"image": image}]})
    assert response.status_code == 200


def test_the_query_holds_for_json_too_and_the_body_wins(client: TestClient, cat: bytes) -> None:
    body = {"instances": [b64(cat)], "parameters": {"size": "layer"}}
    found = client.post(EXPLAIN, params={"size": "model", "target": "5"}, json=body).json()
    (explanation,) = found["explanations"]
    assert explanation["target"]["index"] == 5
    assert explanation["heatmap"]["shape"] == [7, 7]


def test_gradcam_plusplus_survives_a_query_where_a_plus_is_a_space(
    client: TestClient, cat: bytes
) -> None:
    found = client.post(f"{EXPLAIN}?method=gradcam++", content=cat, headers=PNG).json()
    assert found["explanations"][0]["method"] == "gradcam++"


# What comes out


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp"])
def test_a_picture_by_accept(client: TestClient, cat: bytes, kind: str) -> None:
    headers = {**PNG, "Accept": f"image/{kind}"}
    response = client.post(EXPLAIN, content=cat, headers=headers)
    assert response.headers["content-type"] == f"image/{kind}"
    image = Image.open(BytesIO(response.content))
    assert image.format == kind.upper()
    assert image.size == (451, 300)


def test_values_as_npy_equal_those_in_json(client: TestClient, cat: bytes) -> None:
    headers = {**PNG, "Accept": "application/x-npy"}
    values = np.load(BytesIO(client.post(EXPLAIN, content=cat, headers=headers).content))
    assert (values.dtype, values.shape) == (np.float32, (300, 451))
    assert (values.min(), values.max()) == (0, 1)
    query = {"output": "values"}
    (found,) = client.post(EXPLAIN, params=query, content=cat, headers=PNG).json()["explanations"]
    np.testing.assert_allclose(heatmap(found), values, atol=1e-5)
    (mask,) = client.post(EXPLAIN, content=cat, headers=PNG).json()["explanations"]
    assert mask["heatmap"]["encoding"] == "png"
    np.testing.assert_allclose(heatmap(mask), values, atol=0.51 / 255 + 1e-5)


def test_normalize_none_keeps_the_formulas_numbers(client: TestClient, cat: bytes) -> None:
    query = {"normalize": "none", "size": "layer"}
    (raw,) = client.post(EXPLAIN, params=query, content=cat, headers=PNG).json()["explanations"]
    query["normalize"] = "minmax"
    query["output"] = "values"
    (scaled,) = client.post(EXPLAIN, params=query, content=cat, headers=PNG).json()["explanations"]
    numbers = heatmap(raw)
    assert numbers.max() != pytest.approx(1)
    expected = (numbers - numbers.min()) / (numbers.max() - numbers.min())
    np.testing.assert_allclose(heatmap(scaled), expected, atol=1e-5)


def test_normalize_percentile_brightens_numbers_and_picture(client: TestClient, cat: bytes) -> None:
    query = {"method": "guidedbackprop", "size": "layer", "normalize": "none", "output": "values"}
    (raw,) = client.post(EXPLAIN, params=query, content=cat, headers=PNG).json()["explanations"]
    query["normalize"] = "percentile"
    (capped,) = client.post(EXPLAIN, params=query, content=cat, headers=PNG).json()["explanations"]
    numbers = heatmap(raw) - heatmap(raw).min()
    expected = np.minimum(numbers / np.percentile(numbers, 99), 1)
    np.testing.assert_allclose(heatmap(capped), expected, atol=1e-5)
    query["output"] = "mask"
    (picture,) = client.post(EXPLAIN, params=query, content=cat, headers=PNG).json()["explanations"]
    np.testing.assert_allclose(heatmap(picture), expected, atol=0.51 / 255 + 1e-5)


def test_outputs_in_json(client: TestClient, cat: bytes) -> None:
    shown = {}
    for output in ("overlay", "heatmap", "mask", "values"):
        query = {"output": output, "fit": "squash", "colormap": "jet"}
        found = client.post(EXPLAIN, params=query, content=cat, headers=PNG).json()
        shown[output] = found["explanations"][0]
    assert "overlay" not in shown["mask"]
    assert "overlay" not in shown["values"]
    drawn = {
        name: picture(base64.b64decode(shown[name]["overlay"]["data"]))
        for name in ("overlay", "heatmap")
    }
    photo = picture(cat)
    assert np.abs(drawn["overlay"] - (photo + drawn["heatmap"]) / 2).max() <= 1
    x, y = shown["mask"]["peak"]["x"], shown["mask"]["peak"]["y"]
    assert heatmap(shown["mask"])[y, x] == 1
    np.testing.assert_array_equal(drawn["heatmap"][y, x], [128, 0, 0])  # jet's hottest


def test_the_peak_does_not_depend_on_how_the_map_is_scaled(client: TestClient, cat: bytes) -> None:
    """A percentile caps a hundredth of the pixels, all of which have the largest value then."""
    peaks = []
    for normalize in ("minmax", "percentile"):
        query = {"normalize": normalize, "output": "values"}
        found = client.post(EXPLAIN, params=query, content=cat, headers=PNG).json()
        peaks.append(found["explanations"][0]["peak"])
    assert peaks[0] == peaks[1]


@pytest.mark.parametrize("colormap", COLORMAPS)
def test_every_colormap(client: TestClient, cat: bytes, colormap: str) -> None:
    headers = {**PNG, "Accept": "image/png"}
    query = {"colormap": colormap, "size": "model"}
    response = client.post(EXPLAIN, params=query, content=cat, headers=headers)
    assert picture(response.content).shape == (224, 224, 3)


def test_ndjson_has_an_explanation_a_line(client: TestClient, cat: bytes, espresso: bytes) -> None:
    instances = [b64(cat), {**b64(espresso), "target": [1, 2]}, b64(b"no image")]
    headers = {"Accept": "application/x-ndjson"}
    response = client.post(EXPLAIN, json={"instances": instances}, headers=headers)
    assert response.headers["content-type"].startswith("application/x-ndjson")
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert sorted((line["instance"], "error" in line) for line in lines) == [
        (0, False),
        (1, False),
        (1, False),
        (2, True),
    ]


def test_a_failed_instance_has_its_problem_in_its_place(client: TestClient, cat: bytes) -> None:
    instances = [
        b64(cat),
        {**b64(b"text"), "id": "bad"},
        {"image": {"b64": "%%%"}},
        {**b64(cat), "target": "crane"},
        b64(cat),
    ]
    response = client.post(EXPLAIN, json={"instances": instances})
    assert response.status_code == 200
    assert "etag" not in response.headers
    found = response.json()
    assert ["error" in each for each in found["explanations"]] == [False, True, True, True, False]
    assert ["error" in each for each in found["predictions"]] == [False, True, True, True, False]
    bad = found["explanations"][1]
    assert (bad["instance"], bad["id"]) == (1, "bad")
    assert bad["problem"]["type"] == "urn:gradcam-service:undecodable-image"
    assert bad["problem"]["pointer"] == "/instances/1/image/b64"
    assert found["explanations"][2]["problem"]["status"] == 400
    assert "134 (crane bird) and 517 (crane)" in found["explanations"][3]["error"]


def test_the_tag_is_the_same_for_the_same_bytes_weights_and_parameters(
    client: TestClient, cat: bytes, espresso: bytes
) -> None:
    def tag(content: bytes, query: dict[str, str], accept: str = "application/json") -> str:
        headers = {**PNG, "Accept": accept}
        return client.post(EXPLAIN, params=query, content=content, headers=headers).headers["etag"]

    first = tag(cat, {})
    body = json.dumps({"instances": [b64(cat)]})
    as_json = client.post(EXPLAIN, content=body, headers={"Content-Type": "application/json"})
    assert first == tag(cat, {}) == tag(cat, {"method": "gradcam"}) == as_json.headers["etag"]
    others = [
        tag(espresso, {}),
        tag(cat, {"method": "hirescam"}),
        tag(cat, {"target": "5"}),
        tag(cat, {}, "image/png"),
    ]
    assert len({first, *others}) == 5
    headers = {**PNG, "If-None-Match": f'"other", {first}'}
    again = client.post(EXPLAIN, content=cat, headers=headers)
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first


def test_timing_and_request_id(client: TestClient, cat: bytes) -> None:
    headers = {**PNG, "X-Request-ID": "my-id.1"}
    response = client.post(EXPLAIN, content=cat, headers=headers)
    assert response.headers["x-request-id"] == "my-id.1"
    phases = [part.split(";")[0].strip() for part in response.headers["server-timing"].split(",")]
    assert phases == ["room", "decode", "preprocess", "queue", "forward_backward", "render"]
    evil = client.get("/healthz", headers={"X-Request-ID": "a b\tc"}).headers["x-request-id"]
    assert len(evil) == 36
    assert client.get("/nowhere").headers["x-request-id"]


def test_a_flat_map_is_zero_without_peak_and_says_so(client: TestClient) -> None:
    gray = encoded(Image.new("RGB", (128, 128), (128, 128, 128)))
    for index in range(0, 1000, 50):
        query = {"target": str(index), "method": "gradcam", "output": "values"}
        response = client.post(EXPLAIN, params=query, content=gray, headers=PNG)
        (explanation,) = response.json()["explanations"]
        values = heatmap(explanation)
        assert np.isfinite(values).all()
        if explanation["warnings"]:
            assert not values.any()
            assert "peak" not in explanation
            assert f"class {index}" in explanation["warnings"][0]
            assert "everywhere" in explanation["warnings"][0]
            return
    raise AssertionError("no class gave a flat map")


def test_a_noisy_batch_of_the_most_instances(client: TestClient) -> None:
    instances = [b64(encoded(noise(40 + i, 50, seed=i))) for i in range(32)]
    body = {"instances": instances, "parameters": {"size": "layer"}}
    found = client.post(EXPLAIN, json=body).json()
    assert [e["instance"] for e in found["explanations"]] == list(range(32))


def test_a_contrast_is_the_same_in_every_form(client: TestClient, cat: bytes) -> None:
    target = {"class": "tabby", "minus": "Egyptian cat"}
    query = {"fit": "squash", "output": "values"}
    as_json = client.post(
        EXPLAIN,
        json={
            "instances": [{"image": {"b64": base64.b64encode(cat).decode()}}],
            "parameters": {**query, "target": [target, "tabby"]},
        },
    ).json()["explanations"]
    text = json.dumps(target)
    as_query = client.post(EXPLAIN, params={**query, "target": text}, content=cat, headers=PNG)
    as_form = client.post(EXPLAIN, data={**query, "target": text}, files={"image": ("a.png", cat)})
    for other in (as_query, as_form):
        (explanation,) = other.json()["explanations"]
        assert explanation["target"] == as_json[0]["target"]
        np.testing.assert_array_equal(heatmap(explanation), heatmap(as_json[0]))
    found = as_json[0]["target"]
    assert (found["index"], found["minus"]) == (281, {"index": 285, "label": "Egyptian cat"})
    assert "against" not in found
    (prediction,) = client.post(
        f"{MODEL}:predict", params={"fit": "squash"}, content=cat, headers=PNG
    ).json()["predictions"]
    logits = {each["index"]: each["score"] for each in prediction["classes"]}
    assert found["score"] == pytest.approx(logits[281] - logits[285], abs=1e-3)
    assert as_json[1]["target"]["score"] == pytest.approx(logits[281], abs=1e-3)
    assert as_json[0]["heatmap"] != as_json[1]["heatmap"]


def test_what_speaks_against_a_class_is_not_what_speaks_for_it(
    client: TestClient, cat: bytes
) -> None:
    targets = [{"class": 967}, {"class": 967, "against": True}, {"of": "probability"}]
    body = {
        "instances": [{"image": {"b64": base64.b64encode(cat).decode()}}],
        "parameters": {
            "target": targets,
            "method": "hirescam",
            "size": "layer",
            "output": "values",
            "normalize": "none",
        },
    }
    maps = client.post(EXPLAIN, json=body).json()["explanations"]
    one, against, probability = (
        np.frombuffer(base64.b64decode(each["heatmap"]["data"]), "<f4") for each in maps
    )
    assert one.any()
    assert against.any()
    assert not (one * against).any()
    assert probability.any()
    assert maps[1]["target"]["against"] is True
    assert maps[2]["target"]["of"] == "probability"
    assert maps[2]["target"]["score"] == pytest.approx(maps[2]["target"]["probability"])
