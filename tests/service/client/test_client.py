"""The Python client against the service itself, over a socket."""

from __future__ import annotations

import asyncio
import base64
import inspect
import io
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from PIL import Image

from cam.drawing.overlay import USUAL, colorize
from cam.drawing.panel import GAP
from service.client import (
    AsyncClient,
    AsyncJob,
    Client,
    Explanation,
    Job,
    NotFound,
    Refused,
    ServiceError,
    options,
)
from service.client.photos import Named, instance_of, read
from service.client.responses import result_of
from service.features.keys.keys import new_key
from service.pipeline.images import decode
from tests.service.conftest import CAT, ESPRESSO, MODEL, comparable, encoded, noise, pixels
from tests.service.live import ROOT, serving

pytestmark = pytest.mark.contract


@pytest.fixture
def client(address: str) -> Iterator[Client]:  # type: ignore[override,unused-ignore]
    with Client(address) as client:
        yield client


def awaited(address: str, ask: Callable[[AsyncClient], Awaitable[Any]]) -> Any:
    async def within() -> Any:
        async with AsyncClient(address) as client:
            return await ask(client)

    return asyncio.run(within())


def raw(address: str, photo: bytes, **query: str) -> dict[str, Any]:
    """The first explanation of an answer, by hand."""
    answer = requests.post(
        f"{address}{MODEL}:explain", photo, params=query, headers={"Content-Type": "image/png"}
    )
    answer.raise_for_status()
    explanation: dict[str, Any] = answer.json()["explanations"][0]
    return explanation


def test_a_map_is_that_of_the_answer_decoded_by_hand(
    client: Client, address: str, cat: bytes
) -> None:
    explanation = client.explain(cat, target="tabby", fit="squash")
    by_hand = raw(address, cat, target="tabby", fit="squash", output="overlay")
    document = explanation.document.model_dump(exclude_none=True, mode="json")
    assert comparable(document) == comparable(by_hand)
    gray = np.asarray(Image.open(io.BytesIO(base64.b64decode(by_hand["heatmap"]["data"]))))
    np.testing.assert_array_equal(explanation.map, gray.astype(np.float32) / 255)
    assert explanation.map.dtype == np.float32
    assert explanation.map.shape == (300, 451)
    assert explanation.target.label == "tabby"
    shown = explanation._repr_mimebundle_()
    assert shown["text/plain"].startswith("<Explanation tabby 0.")
    drawn = pixels(base64.b64decode(shown["image/png"]))
    overlay = pixels(base64.b64decode(document["overlay"]["data"]))
    np.testing.assert_array_equal(drawn[GAP : GAP + 300, GAP : GAP + 451], overlay)
    bar, caption = drawn[GAP : GAP + 300, 451 + 2 * GAP :], drawn[GAP + 300 :]
    ramp = colorize(np.linspace(1, 0, 300, dtype=np.float32)[:, None], USUAL)
    np.testing.assert_array_equal(bar[:, 0], ramp[:, 0])
    assert (caption < 128).any()
    other = client.explain(cat, target="tabby", fit="squash", colormap="viridis")
    ramp = colorize(np.linspace(1, 0, 300, dtype=np.float32)[:, None], "viridis")
    np.testing.assert_array_equal(
        pixels(other._repr_png_())[GAP : GAP + 300, 451 + 2 * GAP], ramp[:, 0]
    )
    lines = client.explain(cat, target="tabby", fit="squash", output="contour")
    assert pixels(lines._repr_png_()).shape[1] == 451 + 2 * GAP, "contours have no colour bar"
    panel = client.explain(cat, target="tabby", fit="squash", output="panel")
    assert panel._repr_png_() == panel.overlay, "it has a caption of its own"
    sent = [panel.document.model_dump(exclude_none=True, mode="json")]
    line = {"cursor": 1, "index": 0, "item": "cat", "explanations": sent}
    (of_job,) = result_of(json.dumps(line).encode()).explanations
    assert of_job._repr_png_() == panel.overlay, "of a job it is not known what was asked"
    plain = client.explain(cat, target="tabby", fit="squash", output="mask")
    assert plain._repr_png_().startswith(b"\x89PNG")
    assert explanation.overlay == base64.b64decode(document["overlay"]["data"])
    peak = explanation.peak
    assert peak
    assert explanation.map[peak.y, peak.x] == 1
    assert "tabby" in repr(explanation)
    assert len(repr(explanation)) < 200


def test_values_are_float32(client: Client, address: str, cat: bytes) -> None:
    explanation = client.explain(cat, output="values", size="layer")
    by_hand = raw(address, cat, output="values", size="layer")
    numbers = np.frombuffer(base64.b64decode(by_hand["heatmap"]["data"]), "<f4").reshape(7, 7)
    np.testing.assert_array_equal(explanation.map, numbers)
    assert explanation.target.label == "Egyptian cat"
    with pytest.raises(ValueError, match="no picture; ask with output='overlay'"):
        _ = explanation.overlay
    with pytest.raises(ValueError, match="read-only"):
        explanation.map[0, 0] = 2


def test_a_signed_map_has_its_zero_where_the_values_have_it(client: Client, cat: bytes) -> None:
    why: options.TargetObject = {"class": "tabby", "minus": "tiger cat"}
    exact = client.explain(cat, target=why, signed=True, output="values", size="layer").map
    steps = client.explain(cat, target=why, signed=True, size="layer").map
    assert exact.min() < 0 < exact.max()
    np.testing.assert_allclose(steps, exact, atol=1 / 127)
    assert (steps[exact == 0] == 0).all()
    assert max(steps.max(), -steps.min()) == 1


def test_several_targets_and_layers(client: Client, cat: bytes) -> None:
    several = client.explain_each(cat, target=[CAT, "tabby"], layer=["blocks.5", "blocks.6"])
    named = [(each.target.index, each.layer) for each in several]
    assert named == [
        (285, "blocks.5"),
        (285, "blocks.6"),
        (281, "blocks.5"),
        (281, "blocks.6"),
    ]
    with pytest.raises(ValueError, match="2 maps; explain_each gives them all"):
        client.explain(cat, target=[CAT, "tabby"])


def test_targets_that_are_objects_and_numpys_numbers(client: Client, cat: bytes) -> None:
    why: Any = {"class": "tabby", "minus": np.int64(282)}
    contrast = client.explain(cat, target=why)
    assert contrast.target.minus
    assert contrast.target.minus.label == "tiger cat"
    assert client.explain(cat, target=np.int64(281)).target.label == "tabby"  # type: ignore[arg-type]
    both = client.explain_each(cat, target=np.array([281, 285]))  # type: ignore[arg-type]
    assert [each.target.index for each in both] == [281, 285]


def test_predict(client: Client, cat: bytes, espresso: bytes) -> None:
    for photo, index in ((cat, CAT), (espresso, ESPRESSO)):
        prediction = client.predict(photo, fit="squash", top_k=3)
        assert prediction.classes
        assert prediction.classes[0].index == index
        assert len(prediction.classes) == 3


def test_a_photo_may_be_a_path_bytes_a_picture_or_an_array(
    client: Client, cat: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "Katze №1.png"
    path.write_bytes(cat)
    with Image.open(path) as picture:
        picture.load()
    forms = [path, str(path), cat, bytearray(cat), picture, np.asarray(picture)]
    maps = [client.explain(form).map for form in forms]  # type: ignore[arg-type]
    for one in maps[1:]:
        np.testing.assert_array_equal(one, maps[0])


def test_pixels_are_taken_as_they_are(client: Client) -> None:
    turned = noise(60, 40)
    turned.getexif()[0x0112] = 6  # to be turned by a quarter, says Exif
    assert client.explain(turned).map.shape == (40, 60)
    kept = io.BytesIO()
    turned.save(kept, "PNG", exif=turned.getexif())
    assert client.explain(kept.getvalue()).map.shape == (60, 40)  # the service does as Exif says
    assert client.explain(noise(60, 40).convert("CMYK")).map.shape == (40, 60)
    assert client.explain(np.zeros((30, 20), np.uint8)).map.shape == (30, 20)


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I", "La", "RGBa", "PA", "LA", "RGBA", "P", "1"])
def test_a_picture_of_any_mode_shows_what_it_shows(mode: str) -> None:
    """What the service decodes of it is what Pillow shows over white, to a level of 255."""
    gray = np.add.outer(np.arange(40), 5 * np.arange(40)).astype(np.uint8)
    clear = np.tile(np.arange(40, dtype=np.uint8) * 6, (40, 1))
    coloured = Image.merge("RGBA", [Image.fromarray(each) for each in (gray, gray.T, gray, clear)])
    numbers = gray.astype(np.uint16) * 257
    if mode in ("I;16", "I;16B"):
        order = ">u2" if mode == "I;16B" else "<u2"
        size = gray.shape[::-1]
        picture = Image.frombytes(mode, size, numbers.astype(order).tobytes())
    elif mode == "I":
        picture = Image.fromarray(numbers.astype(np.int32))
    elif mode in ("La", "LA"):
        picture = Image.merge("LA", [Image.fromarray(gray), Image.fromarray(clear)]).convert(mode)
    elif mode == "PA":
        picture = coloured.convert("P").convert("PA")
        picture.putalpha(Image.fromarray(clear))
    else:
        picture = coloured.convert(mode)
    assert picture.mode == mode
    sent = read(picture)
    assert isinstance(sent, bytes)
    seen = np.asarray(decode(sent, max_pixels=10_000)).astype(int)
    if mode.startswith("I"):
        expected = np.repeat(gray[..., None], 3, 2).astype(int)
    else:
        shown = picture.convert("RGBA" if mode in ("RGBa", "PA", "RGBA") else picture.mode)
        if mode in ("La", "LA"):
            shown = picture.convert("LA").convert("RGBA")
        shown = shown.convert("RGBA")
        white = Image.new("RGBA", shown.size, "white")
        expected = np.asarray(Image.alpha_composite(white, shown).convert("RGB")).astype(int)
    assert np.abs(seen - expected).max() <= 1
    assert len(np.unique(seen)) > 1


def test_numbers_of_more_than_16_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="numbers from 0 to 70000; the service reads 0 to 65535"):
        read(Image.fromarray(np.array([[0, 70000]], np.int32)))


@pytest.mark.parametrize(
    ("photo", "error", "said"),
    [
        (np.zeros((4, 4, 3)), ValueError, r"float64 \(4, 4, 3\); it should be uint8 \(H, W\)"),
        (np.zeros((4, 4, 2), np.uint8), ValueError, r"uint8 \(4, 4, 2\)"),
        (Image.new("F", (4, 4)), ValueError, "mode is F; convert it to RGB, L"),
        (7, TypeError, "a photo is a int; it should be a path"),
        ("no/such.png", FileNotFoundError, "no/such.png"),
    ],
)
def test_what_is_no_photo_is_told_before_it_is_sent(
    photo: Any, error: type[Exception], said: str
) -> None:
    with Client("http://127.0.0.1:9", model="m") as client, pytest.raises(error, match=said):
        client.explain(photo)


def test_addresses_are_sent_as_addresses() -> None:
    assert read("https://a.example/b.png") == Named("url", "https://a.example/b.png")
    assert read("s3://bucket/b.png") == Named("uri", "s3://bucket/b.png")


def test_an_address_reaches_the_service_which_says_what_it_thinks(client: Client) -> None:
    with pytest.raises(ServiceError, match="fetches no images"):
        client.explain("https://a.example/b.png")


def test_instances_have_the_ids_of_their_paths(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"abc")
    sent = {"b64": base64.b64encode(b"abc").decode()}
    assert instance_of(path, 3) == {"id": str(path), "image": sent}
    assert instance_of(b"abc", 3) == {"id": "3", "image": sent}
    assert instance_of({"image": path, "target": 7}, 3) == {"id": "3", "image": sent, "target": 7}
    named = {"image": {"path": "in/a.png"}, "id": "x"}
    assert instance_of(named, 3) == named
    with pytest.raises(ValueError, match="instance 3 has no image; its keys are id"):
        instance_of({"id": "x"}, 3)


def test_overlay_is_a_picture(client: Client, cat: bytes, address: str) -> None:
    by_hand = requests.post(
        f"{address}{MODEL}:explain?fit=squash",
        cat,
        headers={"Content-Type": "image/png", "Accept": "image/png"},
    ).content
    assert client.overlay(cat, fit="squash") == by_hand
    jpeg = client.overlay(cat, output="panel", media_type="image/jpeg")
    assert jpeg.startswith(b"\xff\xd8\xff")


def test_models_and_layers(client: Client) -> None:
    assert client.ready()
    assert client.models() == ["efficientnet-lite0"]
    described = client.model("efficientnet-lite0")
    assert (described.classes, described.labels[CAT]) == (1000, "Egyptian cat")
    assert client.model() == described
    layers = client.layers()
    assert [layer.name for layer in layers if layer.default] == [described.default_layer]


def test_the_same_awaited(address: str, cat: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(cat)

    async def ask(client: AsyncClient) -> None:
        explanation = await client.explain(path, target="tabby")
        several = await client.explain_each(cat, target=[285, "tabby"])
        with Client(address) as other:
            same = await asyncio.to_thread(lambda: other.explain(cat, target="tabby"))
            assert explanation.document == same.document
            assert await client.model() == await asyncio.to_thread(other.model)
            assert await client.layers() == await asyncio.to_thread(other.layers)
            png = await asyncio.to_thread(lambda: other.overlay(cat))
            assert await client.overlay(cat) == png
        assert [each.target.index for each in several] == [285, 281]
        assert await client.ready()
        assert await client.models() == ["efficientnet-lite0"]
        predicted = await client.predict(path, fit="squash")
        assert predicted.classes
        assert predicted.classes[0].index == CAT
        with pytest.raises(NotFound, match="'ghost'"):
            await client.explain(cat, model="ghost")
        with pytest.raises(FileNotFoundError):
            await client.explain("no/such.png")

    awaited(address, ask)


def test_an_error_has_the_services_sentence_and_whereabouts(client: Client, cat: bytes) -> None:
    with pytest.raises(ServiceError, match="there is no method 'gradcamera'") as caught:
        client.explain(cat, method="gradcamera")
    error = caught.value
    assert str(error) == error.detail
    assert (error.status, error.type) == (422, "urn:gradcam-service:unknown-method")
    assert error.title == "There is no such method"
    assert error.pointer == "/query/method"
    assert error.retry_after is None
    assert error.request_id
    with pytest.raises(ServiceError, match="the 10 bytes are not a JPEG") as undecodable:
        client.predict(b"no picture")
    assert undecodable.value.status == 422
    with pytest.raises(NotFound, match="'ghost'"):
        client.model("ghost")
    with pytest.raises(NotFound):
        client.model("gh/ost?x#y")
    with pytest.raises(NotFound, match=r"'\.\.'"):
        client.model("..")
    with pytest.raises(ServiceError) as empty:
        client.explain_each(cat, target=[])
    assert empty.value.status == 422


def test_any_operation_is_asked_by_its_verb(client: Client, address: str, cat: bytes) -> None:
    document = client.ask("activations", cat, layer="blocks.3", top_k=3)
    (seen,) = document["activations"]
    assert (seen["layer"], len(seen["channels"])) == ("blocks.3", 3)
    prediction = client.ask("predict", cat, top_k=2)["predictions"][0]
    assert prediction == client.predict(cat, top_k=2).model_dump(exclude_none=True, mode="json")
    several = client.ask("predict", cat, b"no picture", top_k=1)["predictions"]
    assert [entry["instance"] for entry in several] == [0, 1]
    assert several[0]["classes"][0]["index"] == CAT
    assert several[1]["problem"]["type"] == "urn:gradcam-service:undecodable-image"
    with pytest.raises(ServiceError, match="the 10 bytes are not a JPEG"):
        client.ask("predict", b"no picture", b"no picture")
    with pytest.raises(NotFound, match="there is nothing at"):
        client.ask("describe", cat)
    with pytest.raises(ValueError, match="there is no photo to predict; give at least one"):
        client.ask("predict")
    with pytest.raises(ValueError, match="the verb of the operation is empty"):
        client.ask("", cat)
    assert awaited(address, lambda client: client.ask("predict", cat, top_k=2)) == {
        "predictions": [prediction]
    }


def test_of_twenty_the_corrupt_one_is_a_value_in_its_place(
    client: Client, cat: bytes, espresso: bytes, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{turn}.png" for turn in range(20)]
    for turn, path in enumerate(paths):
        path.write_bytes(cat if turn % 2 else espresso)
    paths[7].write_bytes(cat[:2000])
    paths[12].unlink()
    results = list(client.explain_many(paths, fit="squash"))
    assert [path for path, _ in results] == paths
    for turn, (_, result) in enumerate(results):
        if turn == 7:
            assert isinstance(result, ServiceError)
            assert (result.status, result.type) == (422, "urn:gradcam-service:undecodable-image")
        elif turn == 12:
            assert isinstance(result, FileNotFoundError)
        else:
            assert isinstance(result, Explanation)
            assert result.target.index == (CAT if turn % 2 else ESPRESSO)

    async def ask(asking: AsyncClient) -> list[Any]:
        return [each async for each in asking.explain_many(paths, fit="squash", ordered=False)]

    unordered = dict(awaited(client_address(client), ask))
    assert set(unordered) == set(paths)
    for path, result in results:
        assert type(unordered[path]) is type(result)
        if isinstance(result, Explanation):
            np.testing.assert_allclose(unordered[path].map, result.map, atol=2 / 255)


def client_address(client: Client) -> str:
    return str(client._http.base_url)


@pytest.mark.slow
def test_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    secret, entry = new_key("ann", ["explain"], None)
    file.write_text(entry)
    with serving("--keys", str(file)) as (_, http):
        address = str(http.base_url)
        with Client(address) as client:
            assert client.ready()  # that is for everybody
            with pytest.raises(Refused, match="key") as caught:
                client.models()
            assert caught.value.status == 401
        with Client(address, key=secret) as client:
            assert client.predict(encoded(noise(32, 32))).classes
        with Client(address, key="wrong") as client, pytest.raises(Refused):
            client.models()

        async def ask() -> list[str]:
            async with AsyncClient(address, key=secret) as asking:
                return await asking.models()

        assert asyncio.run(ask()) == ["efficientnet-lite0"]


def test_it_loads_nothing_heavy() -> None:
    code = "import service.client, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert "service.client._sync.client" in loaded
    heavy = {"torch", "torchvision", "timm", "cv2", "scipy", "fastapi", "starlette", "uvicorn"}
    assert not loaded & heavy


@pytest.mark.parametrize(("waiting", "awaiting"), [(Client, AsyncClient), (Job, AsyncJob)])
def test_both_clients_have_the_same_methods(waiting: type, awaiting: type) -> None:
    def public(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(value).parameters) if callable(value) else []
            for name, value in vars(kind).items()
            if not name.startswith("_")
        }

    assert public(waiting) == public(awaiting)
    for name, value in vars(waiting).items():
        if not name.startswith("_"):
            assert inspect.getdoc(value), name
            assert inspect.getdoc(getattr(awaiting, name)), name
