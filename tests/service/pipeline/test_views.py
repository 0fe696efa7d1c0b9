"""Signed, smoothed and fused maps, contours, panels, hot boxes: over HTTP."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from cam.drawing.heatmap import hot_region
from cam.drawing.overlay import COLORMAPS, colorize, contour, overlay, paint
from cam.drawing.placement import Region
from tests.service.conftest import CAT, ESPRESSO, MODEL, values
from tests.service.http.test_bad_input import check

EXPLAIN = f"{MODEL}:explain"
PNG = {"Content-Type": "image/png"}


def explained(client: TestClient, photo: bytes, **query: Any) -> dict[str, Any]:
    query = {"fit": "squash", **query}
    response = client.post(EXPLAIN, params=query, content=photo, headers=PNG)
    assert response.status_code == 200, response.text
    (found,) = response.json()["explanations"]
    return dict(found)


def picture(client: TestClient, photo: bytes, **query: Any) -> np.ndarray:
    query = {"fit": "squash", **query}
    headers = {**PNG, "Accept": "image/png"}
    response = client.post(EXPLAIN, params=query, content=photo, headers=headers)
    assert response.status_code == 200, response.text
    return np.asarray(Image.open(io.BytesIO(response.content)))


def test_a_signed_map_keeps_zero_and_both_sides(client: TestClient, cat: bytes) -> None:
    target = '{"class": "tabby", "minus": "tiger cat"}'
    both = explained(client, cat, target=target, signed=True, output="values", size="layer")
    assert both["signed"] is True
    scaled = values(both)
    assert scaled.min() < 0 < scaled.max()
    assert np.abs(scaled).max() == 1
    raw = values(explained(client, cat, target=target, signed=True, normalize="none", size="layer"))
    np.testing.assert_allclose(scaled, raw / np.abs(raw).max(), rtol=1e-5)
    plain = values(explained(client, cat, target=target, normalize="none", size="layer"))
    np.testing.assert_allclose(np.maximum(raw, 0), plain, rtol=1e-4, atol=1e-6)
    gray = values(explained(client, cat, target=target, signed=True, size="layer"))
    np.testing.assert_allclose(gray, (scaled + 1) / 2 * 255, atol=0.51)
    assert "signed" not in explained(client, cat)


def test_a_signed_picture_is_neutral_where_nothing_speaks(client: TestClient, cat: bytes) -> None:
    target = '{"class": "tabby", "minus": "tiger cat"}'
    query = {"target": target, "signed": True, "size": "layer"}
    shown = picture(client, cat, output="heatmap", **query)
    scaled = values(explained(client, cat, output="values", **query))
    shade = (scaled + np.float32(1)) / np.float32(2)
    np.testing.assert_array_equal(shown, colorize(shade, "coolwarm"))
    other = picture(client, cat, output="heatmap", colormap="bwr", **query)
    np.testing.assert_array_equal(other, colorize(shade, "bwr"))


def test_diverging_colours_have_a_neutral_middle() -> None:
    ramp = np.linspace(0, 1, 256, dtype=np.float32)[None]
    for name in ("coolwarm", "bwr"):
        assert name in COLORMAPS
        colours = colorize(ramp, name)[0].astype(int)
        middle, low, high = colours[128], colours[0], colours[-1]
        assert np.ptp(middle) <= 4
        assert low[2] > low[0] + 100  # blue
        assert high[0] > high[2] + 100  # red


def test_the_hot_box_by_hand() -> None:
    heat = np.zeros((6, 8), np.float32)
    heat[1:3, 2:5] = 0.6
    heat[2, 4] = 1
    heat[5, 7] = 0.9  # hot, too, but not connected with the hottest
    assert hot_region(heat, 0.5) == Region(left=2, top=1, width=3, height=2)
    assert hot_region(heat, 0.7) == Region(left=4, top=2, width=1, height=1)
    assert hot_region(heat, 0) == Region(left=2, top=1, width=3, height=2)
    assert hot_region(np.zeros((2, 2), np.float32), 0) is None


def test_the_hot_box_holds_the_peak(client: TestClient, cat: bytes) -> None:
    found = explained(client, cat, threshold=0.6, output="values")
    heat, hot, peak = values(found), found["hot"], found["peak"]
    inside = heat[hot["top"] : hot["top"] + hot["height"], hot["left"] : hot["left"] + hot["width"]]
    assert inside.max() == 1
    assert hot["left"] <= peak["x"] < hot["left"] + hot["width"]
    assert hot["top"] <= peak["y"] < hot["top"] + hot["height"]
    for edge in (inside[0], inside[-1], inside[:, 0], inside[:, -1]):
        assert edge.max() >= 0.6


def test_a_contour_goes_around_what_is_hot(client: TestClient, cat: bytes) -> None:
    shown = picture(client, cat, output="contour", threshold=0.5)
    photo = np.asarray(Image.open(io.BytesIO(cat)).convert("RGB"))
    assert shown.shape == photo.shape
    changed = (shown != photo).any(-1)
    assert 0.003 < changed.mean() < 0.1
    heat = values(explained(client, cat, output="values"))
    hot = (heat >= 0.5).astype(np.uint8)
    border = cv2.dilate(hot, np.ones((7, 7))) - cv2.erode(hot, np.ones((7, 7)))
    assert (border[changed] > 0).mean() > 0.9
    assert not changed[cv2.erode(hot, np.ones((15, 15))) > 0].any()


def test_a_contour_by_hand() -> None:
    heat = np.zeros((40, 40), np.float32)
    heat[10:30, 10:30] = 1
    drawn = contour(np.full((40, 40, 3), 90, np.uint8), heat, colour=(255, 220, 0))
    assert np.abs(drawn[10, 20].astype(int) - (255, 220, 0)).max() < 50
    assert tuple(drawn[20, 20]) == tuple(drawn[2, 2]) == (90, 90, 90)


def test_a_panel_has_photo_overlay_bar_and_words(client: TestClient, cat: bytes) -> None:
    shown = picture(client, cat, output="panel")
    photo = Image.open(io.BytesIO(cat)).convert("RGB")
    width, height = photo.size
    assert shown.shape[1] > 2 * width
    np.testing.assert_array_equal(shown[16 : 16 + height, 16 : 16 + width], np.asarray(photo))
    overlay = picture(client, cat, output="overlay")
    left = 32 + width
    np.testing.assert_array_equal(shown[16 : 16 + height, left : left + width], overlay)
    bar = shown[16 : 16 + height, left + width + 16]
    np.testing.assert_array_equal(bar[0], colorize(np.ones((1, 1), np.float32))[0, 0])
    np.testing.assert_array_equal(bar[-1], colorize(np.zeros((1, 1), np.float32))[0, 0])
    below = shown[32 + height :]
    assert (below.min(-1) < 128).mean() > 0.005  # there is ink
    other = picture(client, cat, output="panel", target="tabby")
    assert (other[32 + height :] != below[: len(other)]).any()  # and it says something else


@pytest.mark.parametrize("side", [(12, 9), (40, 2000), (1500, 1200)])
def test_a_panel_of_any_photo(client: TestClient, side: tuple[int, int]) -> None:
    file = io.BytesIO()
    Image.new("RGB", side, "teal").save(file, "PNG")
    shown = picture(client, file.getvalue(), output="panel")
    assert 150 < shown.shape[0] < 640
    assert 400 < shown.shape[1] < 1200


def test_smoothing_and_fusing_over_http(client: TestClient, cat: bytes) -> None:
    query = {"layer": ["blocks.5", "bn2"], "size": "layer", "output": "values", "target": CAT}
    fused = explained(client, cat, fuse="max", **query)
    assert fused["layer"] == "blocks.5 + bn2"
    plain = explained(client, cat, size="layer", output="values", target=CAT)
    for smooth in ("eigen", "augment", "both"):
        other = explained(client, cat, smooth=smooth, size="layer", output="values", target=CAT)
        correlation = np.corrcoef(values(plain).ravel(), values(other).ravel())[0, 1]
        assert 0.5 < correlation < 0.9999


@pytest.mark.slow
def test_completeness_is_reported(client: TestClient, cat: bytes) -> None:
    found = explained(client, cat, method="integratedgradients", budget=32, target=CAT)
    complete = found["completeness"]
    assert complete["difference"] > 5
    assert complete["attributed"] == pytest.approx(complete["difference"], rel=0.15)
    assert "completeness" not in explained(client, cat)


@pytest.mark.slow
def test_progress_lines_while_many_passes_are_at_work(client: TestClient, cat: bytes) -> None:
    body = {
        "instances": [
            {"image": {"b64": base64.b64encode(cat).decode()}, "id": "a", "method": "scorecam"},
            {"image": {"b64": base64.b64encode(cat).decode()}, "id": "b"},
        ],
        "parameters": {"budget": 48, "fit": "squash"},
    }
    response = client.post(EXPLAIN, json=body, headers={"Accept": "application/x-ndjson"})
    lines = [json.loads(line) for line in response.text.splitlines()]
    steps = [line["progress"] for line in lines if "progress" in line]
    assert steps == [{"done": done, "total": 48} for done in (16, 32, 48)]
    assert all(line["id"] == "a" for line in lines if "progress" in line)
    answers = {line["id"]: line["method"] for line in lines if "heatmap" in line}
    assert answers == {"a": "scorecam", "b": "gradcam"}
    assert lines[-1]["id"] == "a"


def test_a_zero_map_says_why_and_what_to_try(client: TestClient, cat: bytes) -> None:
    """torch-cam #186, #157, #156: a blank picture and no word."""
    found = explained(client, cat, method="fem", layer="blocks.6", target=CAT)
    query = {"target": '{"class": 285, "against": true}', "method": "layercam", "layer": "bn2"}
    zero = explained(client, cat, **query)
    for each in (found, zero):
        said = " ".join(each["warnings"])
        if "is zero everywhere" not in said:
            continue
        assert "peak" not in each
        assert "hot" not in each
        assert each["method"] in said


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"method": "eigencam", "signed": "true"}, ["eigencam has nothing below 0", "gradcam"]),
        ({"method": "rise", "smooth": "augment"}, ["rise takes many passes itself"]),
        ({"method": "occlusion", "fuse": "max"}, ["there is none to fuse"]),
        ({"smooth": "twice"}, ["smooth is 'twice'", "'eigen'"]),
        ({"threshold": "2"}, ["threshold is '2'", "from 0 to 1"]),
    ],
)
def test_what_cannot_be_asked(
    client: TestClient, cat: bytes, query: dict[str, str], words: list[str]
) -> None:
    response = client.post(EXPLAIN, params=query, content=cat, headers=PNG)
    (name,) = [each for each in query if each != "method"]
    pointer = response.json().get("pointer", "")
    assert pointer in ("", f"/query/{name}")
    check(response, 422, "invalid-parameter", *words, pointer=pointer)


@pytest.mark.parametrize("method", ["rollout", "chefer", "agcam", "legrad"])
def test_a_method_that_the_model_cannot_do(client: TestClient, cat: bytes, method: str) -> None:
    response = client.post(EXPLAIN, params={"method": method}, content=cat, headers=PNG)
    check(
        response,
        422,
        "unsuited-method",
        f"cannot do {method}: it needs a transformer",
        "it can do gradcam, gradcam++",
        pointer="/query/method",
    )
    methods = {each["name"]: each for each in client.get(MODEL).json()["methods"]}
    assert methods[method]["available"] is False
    assert "it needs a transformer" in methods[method]["reason"]
    assert methods["cam"]["available"] is True


def test_cam_at_a_layer_that_the_head_does_not_read(client: TestClient, cat: bytes) -> None:
    response = client.post(
        EXPLAIN, params={"method": "cam", "layer": "blocks.5"}, content=cat, headers=PNG
    )
    check(response, 422, "unexplainable", "cam needs a linear head that reads the mean", "gradcam")


@pytest.mark.parametrize("signed", [False, True])
def test_an_overlay_whose_opacity_follows_the_heat(
    client: TestClient, cat: bytes, signed: bool
) -> None:
    photo = np.asarray(Image.open(io.BytesIO(cat)).convert("RGB"))
    shade = values(explained(client, cat, output="values", signed=signed, target=ESPRESSO))
    if signed:
        shade = (shade + 1) / 2
    colormap = "coolwarm" if signed else "turbo"
    expected = overlay(photo, shade, colormap=colormap, opacity="heat", signed=signed)
    shown = picture(client, cat, opacity="heat", signed=signed, target=ESPRESSO)
    np.testing.assert_allclose(shown.astype(int), expected, atol=2)
    neutral = np.abs(2 * shade - 1) < 2e-3 if signed else shade < 2e-3
    assert neutral.any()
    np.testing.assert_array_equal(shown[neutral], photo[neutral])


def test_an_opacity_that_follows_the_heat_has_its_own_entity_tag(
    client: TestClient, cat: bytes
) -> None:
    tags = {
        client.post(EXPLAIN, params=query, content=cat, headers=PNG).headers["ETag"]
        for query in ({}, {"opacity": 0.5}, {"opacity": "heat"})
    }
    assert len(tags) == 2


def test_painted_concepts_by_hand() -> None:
    photo = np.zeros((1, 2, 3), np.uint8)
    one, other = np.array([[2.0, 0]], np.float32), np.array([[1.0, 4]], np.float32)
    drawn = paint(photo, [one, other], opacity=0.5)
    np.testing.assert_array_equal(drawn, [[(16, 60, 90), (128, 64, 7)]])


def test_a_target_named_twice_is_one(client: TestClient, cat: bytes) -> None:
    shown = picture(client, cat, target=[285, 285])
    np.testing.assert_array_equal(shown, picture(client, cat, target=285))
    picture(client, cat, method="gradient", layer=["blocks.5", "bn2"])  # one map, at the input


@pytest.mark.parametrize("target", ['{"class":' + "[" * 20_000, "{" * 5000])
def test_a_target_nested_without_end(client: TestClient, cat: bytes, target: str) -> None:
    response = client.post(
        EXPLAIN,
        content=b"--x\r\nContent-Disposition: form-data; name=target\r\n\r\n"
        + target.encode()
        + b"\r\n--x\r\nContent-Disposition: form-data; name=image; filename=a\r\n\r\n"
        + cat
        + b"\r\n--x--\r\n",
        headers={"Content-Type": "multipart/form-data; boundary=x"},
    )
    check(response, 422, "invalid-parameter", "JSON object", pointer="/form/target")


def test_what_is_wrong_in_a_list_of_targets_is_said(client: TestClient, cat: bytes) -> None:
    for wrong, words in (
        ({"clas": 1}, "no key 'clas'"),
        ({"box": [3, 2, 1, 0]}, "left < right"),
    ):
        body = {
            "instances": [{"image": {"b64": base64.b64encode(cat).decode()}}],
            "parameters": {"target": [285, wrong]},
        }
        response = client.post(EXPLAIN, json=body)
        check(response, 422, "invalid-parameter", words, pointer="/parameters/target")


def test_finer_cam_refuses_a_contrast_of_its_own(client: TestClient, cat: bytes) -> None:
    query = {"method": "finercam", "target": '{"class": 285, "minus": 282}'}
    response = client.post(EXPLAIN, params=query, content=cat, headers=PNG)
    check(response, 422, "unexplainable", "leave out minus and of")
