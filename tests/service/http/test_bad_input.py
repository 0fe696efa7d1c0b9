"""Every error of the contract by its status, its type and the words of its detail; and after each
one the next request works."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from httpx2 import Response
from PIL import Image
from starlette.testclient import TestClient

from tests.service.conftest import MODEL, encoded, noise
from tests.service.pipeline.test_images import png_header

EXPLAIN = f"{MODEL}:explain"
PNG = {"Content-Type": "image/png"}
JSON = {"Content-Type": "application/json"}
SMALL = encoded(noise(16, 16))
GOOD = {"image": {"b64": base64.b64encode(SMALL).decode()}}


@pytest.fixture(autouse=True)
def the_next_request_works(client: TestClient) -> Iterator[None]:
    yield
    assert client.get("/readyz").status_code == 200
    response = client.post(EXPLAIN, params={"size": "layer"}, content=SMALL, headers=PNG)
    assert response.status_code == 200


def check(response: Response, status: int, kind: str, *words: str, pointer: str = "") -> None:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["type"] == f"urn:gradcam-service:{kind}"
    assert problem["status"] == status
    assert problem["error"] == problem["detail"]
    assert problem["title"]
    for word in words:
        assert word in problem["detail"], problem["detail"]
    assert problem.get("pointer", "") == pointer


RAW: dict[str, tuple[dict[str, Any], int, str, list[str], str]] = {
    "empty body": ({"content": b"", "headers": PNG}, 400, "malformed-request", ["empty"], ""),
    "empty JSON": (
        {"content": b"", "headers": JSON},
        400,
        "malformed-request",
        ["the body is empty", "instances"],
        "",
    ),
    "text as image": (
        {"content": b"I am a cat", "headers": PNG},
        422,
        "undecodable-image",
        ["the 10 bytes are not a JPEG, PNG"],
        "",
    ),
    "truncated JPEG": (
        {"content": encoded(noise(99, 99), "JPEG")[:-999], "headers": PNG},
        422,
        "undecodable-image",
        ["truncated"],
        "",
    ),
    "51 megapixels": (
        {"content": png_header(8500, 6000), "headers": PNG},
        413,
        "image-too-large",
        ["8500 × 6000 = 51.0 megapixels", "at most 50"],
        "",
    ),
    "11 MB": (
        {"content": bytes(11_000_000), "headers": PNG},
        413,
        "body-too-large",
        ["the body has 11000000 bytes", "at most 10000000"],
        "",
    ),
    "11 MB without Content-Length": (
        {"content": iter([bytes(1_000_000)] * 11), "headers": PNG},
        413,
        "body-too-large",
        ["at most 10000000"],
        "",
    ),
    "no Content-Type": (
        {"content": SMALL},
        415,
        "unsupported-media-type",
        ["no Content-Type", "multipart/form-data or image/*"],
        "",
    ),
    "a type that is not an image": (
        {"content": SMALL, "headers": {"Content-Type": "text/plain"}},
        415,
        "unsupported-media-type",
        ["'text/plain'", "application/json"],
        "",
    ),
    "JSON in Latin-1": (
        {"content": b"{}", "headers": {"Content-Type": "application/json; charset=latin-1"}},
        415,
        "unsupported-media-type",
        ["UTF-8"],
        "",
    ),
    "nested brackets": (
        {"content": b"[" * 100_000 + b"]" * 100_000, "headers": JSON},
        400,
        "malformed-request",
        ["not JSON", "recursion"],
        "",
    ),
    "broken JSON": (
        {"content": b'{"instances": [', "headers": JSON},
        400,
        "malformed-request",
        ["not JSON", "EOF"],
        "",
    ),
    "JSON that is not an object": (
        {"content": b"[1]", "headers": JSON},
        400,
        "malformed-request",
        ["at /"],
        "",
    ),
    "a form without a boundary": (
        {"content": b"x", "headers": {"Content-Type": "multipart/form-data"}},
        400,
        "malformed-request",
        ["the form cannot be read", "boundary"],
        "",
    ),
    "a form without an image": (
        {"files": {"photo": ("a.png", SMALL)}},
        422,
        "unknown-parameter",
        ["a file 'photo'", "named 'image'"],
        "/form/photo",
    ),
    "a form with an image that is not a file": (
        {"data": {"image": "x"}, "files": [("image", ("b.png", SMALL))]},
        400,
        "malformed-request",
        ["no filename"],
        "/form/image/0",
    ),
    "an unknown form field": (
        {"data": {"colour": "x"}, "files": [("image", ("b.png", SMALL))]},
        422,
        "unknown-parameter",
        ["'colour'", "colormap"],
        "/form/colour",
    ),
}


@pytest.mark.parametrize("case", RAW)
def test_bodies(client: TestClient, case: str) -> None:
    request, status, kind, words, pointer = RAW[case]
    check(client.post(EXPLAIN, **request), status, kind, *words, pointer=pointer)


PARAMETERS: dict[str, tuple[str, Any, str, list[str]]] = {
    "unknown parameter": (
        "colour",
        "red",
        "unknown-parameter",
        [
            "no parameter 'colour'",
            "top_k, fit, prompts, method, layer, target, budget, signed, smooth, fuse",
        ],
    ),
    "NaN opacity": (
        "opacity",
        "NaN",
        "invalid-parameter",
        ["opacity is 'NaN'", "from 0 to 1, or heat"],
    ),
    "opacity above 1": ("opacity", 1.5, "invalid-parameter", ["'1.5'", "from 0 to 1"]),
    "unknown output": ("output", "gif", "invalid-parameter", ["'gif'", "'overlay', 'heatmap'"]),
    "unknown fit": ("fit", "zoom", "invalid-parameter", ["'zoom'", "'crop', 'squash' or 'pad'"]),
    "unknown size": ("size", "big", "invalid-parameter", ["'big'", "'image', 'model' or 'layer'"]),
    "top_k of 0": ("top_k", 0, "invalid-parameter", ["'0'", "from 1 to 1000"]),
    "unknown colormap": ("colormap", "rainbow", "invalid-parameter", ["'rainbow'", "turbo, jet"]),
    "unknown method": ("method", "gradcam2", "unknown-method", ["'gradcam2'", "gradcam++, hires"]),
    "unknown layer": ("layer", "bn3", "unknown-layer", ["no layer 'bn3'", "bn2", "/layers lists"]),
    "a layer without a grid": (
        "layer",
        "classifier",
        "unknown-layer",
        ["'classifier'", "its output (1000,) is not a grid of positions"],
    ),
    "unknown label": ("target", "egyptain cat", "unknown-label", ["'egyptain cat'", "'Egyptian c"]),
    "crane": ("target", "crane", "ambiguous-label", ["134 (crane bird) and 517 (crane)"]),
    "maillot": ("target", "maillot", "ambiguous-label", ["638 (maillot)", "639 (maillot tank s"]),
    "class out of range": ("target", 1000, "class-out-of-range", ["index 1000", "0 to 999"]),
    "a contrast with itself": (
        "target",
        '{"class": "tabby", "minus": 281}',
        "invalid-target",
        ["class 281 (tabby)", "itself"],
    ),
    "a contrast with what is not there": (
        "target",
        '{"minus": "catt"}',
        "unknown-label",
        ["'catt'", "nearest"],
    ),
    "a budget of nothing": ("budget", 0, "invalid-parameter", ["budget is '0'", "from 1 to 10000"]),
    "a budget without end": ("budget", 10**9, "invalid-parameter", ["from 1 to 10000"]),
    "an object that is none": ("target", "{cat", "invalid-parameter", ["JSON object"]),
    "a wrong key of a target": (
        "target",
        '{"klass": 1}',
        "invalid-parameter",
        ["klass", "class, index, label, minus, against, of, box, mask, layer, channel, like"],
    ),
    "a digit string out of range": (
        "target",
        "99999999999999999999",
        "class-out-of-range",
        ["99999999999999999999", "0 to 999"],
    ),
}


@pytest.mark.parametrize("where", ["query", "json"])
@pytest.mark.parametrize("case", PARAMETERS)
def test_parameters(client: TestClient, case: str, where: str) -> None:
    name, value, kind, words = PARAMETERS[case]
    if where == "query":
        response = client.post(EXPLAIN, params={name: value}, content=SMALL, headers=PNG)
        known = f"/query/{name}"
    else:
        body = json.dumps({"instances": [GOOD], "parameters": {name: value}})
        body = body.replace('"NaN"', "NaN")
        words = [word.replace("NaN", "nan") for word in words]
        response = client.post(EXPLAIN, content=body, headers=JSON)
        known = f"/parameters/{name}"
    check(response, 422, kind, *words, pointer=known)


INSTANCES: dict[str, tuple[Any, int, str, list[str], str]] = {
    "no instances": (
        {"parameters": {}},
        400,
        "malformed-request",
        ["/instances", "it is missing"],
        "/instances",
    ),
    "an empty list": ({"instances": []}, 400, "malformed-request", ["at least 1"], "/instances"),
    "33 instances": (
        {"instances": [GOOD] * 33},
        413,
        "too-many-instances",
        ["33 instances", "at most 32"],
        "",
    ),
    "an unknown field": (
        {"instances": [GOOD], "params": {}},
        422,
        "unknown-parameter",
        ["'params'", "instances, parameters"],
        "/params",
    ),
    "an unknown field of an instance": (
        {"instances": [{**GOOD, "class": 3}]},
        422,
        "unknown-parameter",
        ["'class'", "image, id, target, method, layer"],
        "/instances/0/class",
    ),
    "an image that is not an object": (
        {"instances": [{"image": "abc"}]},
        400,
        "malformed-request",
        ["/instances/0/image"],
        "/instances/0/image",
    ),
    "bad base64": (
        {"instances": [{"image": {"b64": "a%b="}}]},
        400,
        "malformed-request",
        ["not valid base64"],
        "/instances/0/image/b64",
    ),
    "base64 of nothing": (
        {"instances": [{"image": {"b64": ""}}]},
        422,
        "undecodable-image",
        ["empty"],
        "/instances/0/image/b64",
    ),
    "an instance's target of the wrong type": (
        {"instances": [{**GOOD, "target": 1.5}]},
        422,
        "invalid-parameter",
        ["target is '1.5'", "an object"],
        "/instances/0/target",
    ),
    "101 targets": (
        {"instances": [{**GOOD, "target": list(range(101))}]},
        422,
        "invalid-parameter",
        ["at most 100"],
        "/instances/0/target",
    ),
    "51 targets at two layers": (
        {"instances": [{**GOOD, "target": list(range(51)), "layer": ["bn2", "blocks"]}]},
        422,
        "invalid-parameter",
        ["asks for 102 maps", "at most 100"],
        "",
    ),
}


@pytest.mark.parametrize("case", INSTANCES)
def test_instances(client: TestClient, case: str) -> None:
    body, status, kind, words, pointer = INSTANCES[case]
    check(client.post(EXPLAIN, json=body), status, kind, *words, pointer=pointer)


def test_accept(client: TestClient) -> None:
    plain = client.post(EXPLAIN, content=SMALL, headers={**PNG, "Accept": "text/plain"})
    check(plain, 406, "not-acceptable", "'text/plain'", "application/json, image/png, image/jpeg")
    two = client.post(EXPLAIN, json={"instances": [GOOD] * 2}, headers={"Accept": "image/png"})
    check(two, 406, "not-acceptable", "image/png holds exactly one map", "asks for 2")
    query = {"target": ["1", "2", "3"]}
    headers = {**PNG, "Accept": "application/x-npy"}
    three = client.post(EXPLAIN, params=query, content=SMALL, headers=headers)
    check(three, 406, "not-acceptable", "application/x-npy holds exactly one map", "asks for 3")
    values = client.post(
        EXPLAIN, params={"output": "values"}, content=SMALL, headers={**PNG, "Accept": "image/png"}
    )
    check(values, 422, "invalid-parameter", "'values'", "application/x-npy")
    overlay = client.post(EXPLAIN, params={"output": "overlay"}, content=SMALL, headers=headers)
    check(overlay, 422, "invalid-parameter", "'overlay'", "holds values")
    predict = client.post(f"{MODEL}:predict", content=SMALL, headers={**PNG, "Accept": "image/png"})
    check(predict, 406, "not-acceptable", "this answers application/json")


def test_a_picture_too_wide_for_its_format(client: TestClient) -> None:
    wide = encoded(noise(16_500, 1))
    headers = {**PNG, "Accept": "image/webp"}
    check(client.post(EXPLAIN, content=wide, headers=headers), 406, "not-acceptable", "16500 × 1")


def test_addresses(client: TestClient) -> None:
    known = client.post("/v1/models/resnet:explain", content=SMALL, headers=PNG)
    check(known, 404, "unknown-model", "no model 'resnet'", "the models are efficientnet-lite0")
    check(client.get("/v1/models/resnet"), 404, "unknown-model", "'resnet'")
    check(client.get("/v1/models/resnet/layers"), 404, "unknown-model", "'resnet'")
    check(client.get("/v3/models"), 404, "unknown-route", "/v3/models", "/docs")
    check(client.post(f"{MODEL}:train"), 404, "unknown-route", ":train")
    wrong = client.get(EXPLAIN)
    check(wrong, 405, "method-not-allowed", "GET", "POST")
    assert wrong.headers["allow"] == "POST"


def test_no_image_is_too_thin_to_be_placed_or_drawn(client: TestClient) -> None:
    thin = encoded(Image.new("L", (1, 65_535)))
    assert client.post(EXPLAIN, content=thin, headers=PNG).status_code == 200
    thinner = encoded(Image.new("L", (65_536, 1)))
    response = client.post(EXPLAIN, content=thinner, headers=PNG)
    check(response, 413, "image-too-large", "65536 × 1", "at most 65535", "on a side")


@pytest.mark.parametrize("charset", ["utf-7", "undefined", "idna", "utf-16", "unicode_escape"])
def test_text_is_utf_8(client: TestClient, charset: str) -> None:
    body = b'--x\r\nContent-Disposition: form-data; name="target"\r\n\r\nxn--a\r\n--x--\r\n'
    headers = {"Content-Type": f"multipart/form-data; boundary=x; charset={charset}"}
    response = client.post(EXPLAIN, content=body, headers=headers)
    check(response, 415, "unsupported-media-type", charset, "UTF-8")


def test_a_flood_of_instances_is_refused_at_the_first(client: TestClient) -> None:
    wrong = client.post(EXPLAIN, content=b'{"instances":[' + b"1," * 90_000 + b"1]}", headers=JSON)
    check(wrong, 400, "malformed-request", "instances/0", pointer="/instances/0")
    more = client.post(EXPLAIN, content=b'{"instances":[' + b"1," * 500_000 + b"1]}", headers=JSON)
    check(more, 413, "body-too-large", "500002 elements", "at most 100000")
    many = json.dumps({"instances": [{"image": {"b64": ""}}] * 5000})
    response = client.post(EXPLAIN, content=many, headers=JSON)
    check(response, 413, "too-many-instances", "more than 1024 instances")


def test_a_flood_of_unknown_keys_is_one_problem(client: TestClient) -> None:
    keys = [f'"k{turn}":1' for turn in range(500_000)]
    response = client.post(EXPLAIN, content="{" + ",".join(keys[:90_000]) + "}", headers=JSON)
    check(response, 400, "malformed-request", "the body has 90001 mistakes")
    response = client.post(EXPLAIN, content="{" + ",".join(keys) + "}", headers=JSON)
    check(response, 413, "body-too-large", "500000 elements")


def test_maps_are_limited_over_the_whole_request(client: TestClient) -> None:
    body = {"instances": [GOOD] * 26, "parameters": {"target": [1, 2, 3, 4]}}
    check(client.post(EXPLAIN, json=body), 422, "invalid-parameter", "104 maps", "at most 100")


def test_accept_may_come_in_several_lines(client: TestClient) -> None:
    lines = [("Accept", "text/html"), ("Accept", "image/png"), ("Content-Type", "image/png")]
    response = client.post(EXPLAIN, content=SMALL, headers=lines)
    assert response.headers["content-type"] == "image/png"
    assert client.post(EXPLAIN, content=SMALL, headers={**PNG, "Accept": ","}).status_code == 200


def test_an_instances_own_mistake_says_where(client: TestClient) -> None:
    body: dict[str, Any] = {"instances": [GOOD, {**GOOD, "target": "catt"}]}
    explanations = client.post(EXPLAIN, json=body).json()["explanations"]
    assert explanations[1]["problem"]["pointer"] == "/instances/1/target"
    assert "nearest" in explanations[1]["error"]


def test_half_a_character_in_a_target(client: TestClient) -> None:
    target = json.dumps({"like": {"b64": "\ud800"}})
    answer = client.post(EXPLAIN, params={"target": target}, content=SMALL, headers=PNG)
    check(answer, 422, "invalid-parameter", "it should be a JSON object", pointer="/query/target")


def test_a_pointer_is_one_whatever_a_key_is_called(client: TestClient) -> None:
    sent = {"instances": [GOOD], "a/b~c": 1}
    answer = client.post(EXPLAIN, json=sent)
    check(answer, 422, "unknown-parameter", "there is no field 'a/b~c'", pointer="/a~1b~0c")


@pytest.mark.parametrize("numbers", [{"output": "values"}, {"normalize": "none"}])
def test_more_numbers_than_an_answer_may_have(client: TestClient, numbers: dict[str, str]) -> None:
    """Of 13 classes, 104 million; as pictures they take a thousandth."""
    plain = encoded(Image.new("RGB", (4000, 2000)))
    query = {"target": list(map(str, range(13))), "size": "image", **numbers}
    answer = client.post(EXPLAIN, params=query, content=plain, headers=PNG)
    words = ("the maps of an image have 104000000 numbers", "take size=model")
    check(answer, 422, "invalid-parameter", *words, pointer="/query/size")
    query["size"] = "layer"
    assert client.post(EXPLAIN, params=query, content=plain, headers=PNG).status_code == 200
    image = {"b64": base64.b64encode(plain).decode()}
    parameters = {"target": list(range(7)), **numbers}
    several = client.post(
        EXPLAIN, json={"instances": [{"image": image}] * 2, "parameters": parameters}
    )
    assert "2000000 for each image" in several.text


@pytest.mark.parametrize("target", ['{"class": true}', '{"index": false}', '{"class": 1.5}'])
def test_a_form_takes_no_boolean_for_a_class(client: TestClient, target: str) -> None:
    """Pydantic reads text in its lax mode, in which true is 1."""
    answer = client.post(EXPLAIN, data={"target": target}, files={"image": ("a.png", SMALL)})
    assert answer.status_code == 422, answer.text
    assert answer.json()["type"] == "urn:gradcam-service:invalid-parameter"


def test_a_request_of_thousands_of_names_is_refused_by_the_first(client: TestClient) -> None:
    """It took the square of their number: a minute for these."""
    part = '--b\r\nContent-Disposition: form-data; name="name{}"\r\n\r\n\r\n'
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    form = "".join(map(part.format, range(1000))) + "--b--\r\n"
    response = client.post(EXPLAIN, content=form, headers=kind)
    check(response, 422, "unknown-parameter", "no parameter 'name0'", pointer="/form/name0")
    form = "".join(map(part.format, range(50_000))) + "--b--\r\n"
    response = client.post(EXPLAIN, content=form, headers=kind)
    check(response, 400, "malformed-request", "more than the 1000 fields allowed")
    query = "&".join(f"{number:x}=" for number in range(5000))
    response = client.post(f"{EXPLAIN}?{query}", content=SMALL, headers=PNG)
    check(response, 422, "unknown-parameter", "no parameter '0'", pointer="/query/0")
