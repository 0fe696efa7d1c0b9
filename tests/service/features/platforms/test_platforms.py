"""What serving platforms prescribe: addresses, ports, folders, and the form of requests."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import fsspec
import numpy as np
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from service.core.errors import ConfigError, QueueFull, Unavailable, Unexplainable
from service.features.platforms.predictor import Predictor, class_of
from service.features.platforms.settings import PlatformSettings
from service.features.platforms.store import copied
from service.models.catalog import EMBEDDED, configured, read_catalog
from service.pipeline.instances import Instance
from service.pipeline.parameters import Parameters
from service.settings import Settings
from tests.service.conftest import MODEL, comparable, encoded, noise, pixels, running_app
from tests.service.http.test_overload import FRAGILE
from tests.waiting import until

pytestmark = pytest.mark.contract

NAME = "efficientnet-lite0"
TOML = """
[[models]]
name = "tiny"
source = "factory:tests.zoo.factories:tiny"
weights = "none"
input_size = 8
"""
PHOTO = encoded(noise(8, 8))


def b64(photo: bytes) -> dict[str, Any]:
    return {"image": {"b64": base64.b64encode(photo).decode()}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model, as an archive leaves it: in a folder of its own."""
    inside = tmp_path / "models" / "tiny-1"
    inside.mkdir(parents=True)
    (inside / "models.toml").write_text(TOML)
    return tmp_path / "models"


# SageMaker


@pytest.fixture(scope="module")
def sagemaker() -> Iterator[TestClient]:
    settings = Settings.read({"GRADCAM_PLATFORM": "sagemaker"})
    with running_app(settings, [EMBEDDED, FRAGILE]) as client:
        yield client


def test_sagemaker_implies_its_port_and_host() -> None:
    settings = Settings.read({"SAGEMAKER_BIND_TO_PORT": "8081"})
    assert (settings.platform, settings.host, settings.port) == ("sagemaker", "0.0.0.0", 8081)
    assert settings.insecure
    assert Settings.read({"GRADCAM_PLATFORM": "sagemaker", "GRADCAM_PORT": "9"}).port == 9
    assert Settings.read({"SAGEMAKER_BIND_TO_PORT": "1", "GRADCAM_PLATFORM": "none"}).port == 8000
    assert not Settings.read({"SAGEMAKER_BIND_TO_PORT": "1"}).starts_empty
    assert Settings.read({"SAGEMAKER_MULTI_MODEL": "true"}).starts_empty


def test_a_platform_implies_nothing_of_features_that_are_not_there() -> None:
    assert Settings.read({"SAGEMAKER_BIND_TO_PORT": "1"}).hosts == ("*",)
    assert PlatformSettings.read({"SAGEMAKER_BIND_TO_PORT": "1"}).port == 1  # it has no `hosts`


@pytest.mark.slow
def test_sagemaker_pings(sagemaker: TestClient) -> None:
    assert sagemaker.get("/ping").status_code == 200


@pytest.mark.parametrize(
    "media_type",
    ["application/x-image", "image/png", "application/octet-stream", "file-path/raw-bytes"],
)
def test_sagemaker_invokes_with_an_image(
    sagemaker: TestClient, cat: bytes, media_type: str
) -> None:
    headers = {
        "Content-Type": media_type,
        "Accept": "image/png",
        "X-Amzn-SageMaker-Custom-Attributes": "fit=squash&target=tabby&method=gradcam%2B%2B",
    }
    answer = sagemaker.post("/invocations", content=cat, headers=headers)
    query = "fit=squash&target=tabby&method=gradcam%2B%2B"
    native = sagemaker.post(
        f"{MODEL}:explain?{query}",
        content=cat,
        headers={"Content-Type": "image/png", "Accept": "image/png"},
    )
    assert answer.status_code == 200
    np.testing.assert_array_equal(pixels(answer.content), pixels(native.content))


def test_sagemaker_invokes_with_json_and_forms(sagemaker: TestClient, cat: bytes) -> None:
    sent = {"instances": [b64(cat)], "parameters": {"top_k": 1}}
    answer = sagemaker.post("/invocations", json=sent).json()
    assert answer["explanations"][0]["target"]["label"] == "Egyptian cat"
    attributes = {"X-Amzn-SageMaker-Custom-Attributes": f"operation=predict&model={NAME}&top_k=2"}
    form = sagemaker.post("/invocations", files={"image": cat}, headers=attributes).json()
    assert len(form["predictions"][0]["classes"]) == 2
    assert "explanations" not in form


@pytest.mark.parametrize(
    ("attributes", "status", "words"),
    [
        ("method=x", 422, "no method 'x'"),
        ("operation=delete", 404, "there is nothing at"),
        ("model=nope", 404, "no model 'nope'"),
        ("%ff=\x01", 422, "no parameter"),
    ],
)
def test_sagemaker_hears_what_is_wrong(
    sagemaker: TestClient, cat: bytes, attributes: str, status: int, words: str
) -> None:
    headers = {
        "Content-Type": "application/x-image",
        "X-Amzn-SageMaker-Custom-Attributes": attributes,
    }
    answer = sagemaker.post("/invocations", content=cat, headers=headers)
    assert (answer.status_code, words in answer.json()["detail"]) == (status, True)


def test_sagemaker_plans_a_batch_transform(sagemaker: TestClient) -> None:
    assert sagemaker.get("/execution-parameters").json() == {
        "MaxConcurrentTransforms": 100,
        "BatchStrategy": "SINGLE_RECORD",
        "MaxPayloadInMB": 10,
    }


# Vertex AI


@pytest.fixture(scope="module")
def vertex() -> Iterator[TestClient]:
    environment = {"AIP_HTTP_PORT": "8085", "AIP_HEALTH_ROUTE": "/v1/endpoints/1/deployedModels/2"}
    environment["AIP_PREDICT_ROUTE"] = "/v1/endpoints/1/deployedModels/2:predict"
    settings = Settings.read(environment)
    assert (settings.platform, settings.host, settings.port) == ("vertex", "0.0.0.0", 8085)
    with running_app(settings) as client:
        yield client


VERTEX = "/v1/endpoints/1/deployedModels/2"


def test_vertex_finds_explanations_in_the_predictions(
    vertex: TestClient, cat: bytes, espresso: bytes
) -> None:
    assert vertex.get(VERTEX).json() == {"status": "ok"}
    bare = {"b64": base64.b64encode(espresso).decode(), "id": "cup"}
    sent = {"instances": [b64(cat), bare, b64(b"x")], "parameters": {"method": "layercam"}}
    answer = vertex.post(f"{VERTEX}:predict", json=sent)
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert list(answer.json()) == ["predictions"]
    first, second, third = answer.json()["predictions"]
    native = vertex.post(f"{MODEL}:explain", json=sent).json()
    assert comparable(first["explanations"]) == comparable(native["explanations"][:1])
    assert first["classes"] == native["predictions"][0]["classes"]
    assert [one["target"]["label"] for one in second["explanations"]] == ["espresso"]
    assert second["id"] == "cup"
    assert third["problem"]["status"] == 422


def test_vertex_passes_raw_predictions_on(vertex: TestClient, cat: bytes) -> None:
    headers = {"Content-Type": "image/png", "Accept": "application/x-npy"}
    answer = vertex.post(f"{VERTEX}:predict?size=layer", content=cat, headers=headers)
    assert np.load(BytesIO(answer.content)).shape == (7, 7)
    wrong = vertex.post(f"{VERTEX}:predict", json={"instances": []})
    assert wrong.status_code == 400
    assert wrong.json()["type"].endswith("malformed-request")


# Azure ML


def test_azure_scores(folder: Path) -> None:
    settings = Settings.read({"AZUREML_MODEL_DIR": str(folder)})
    assert (settings.platform, settings.port, settings.insecure) == ("azure", 5001, True)
    with running_app(settings, read_catalog(settings.models)) as client:
        assert client.get("/healthz").status_code == 200
        answer = client.post("/score", json={"instances": [b64(PHOTO)]})
        assert answer.json()["explanations"][0]["method"] == "gradcam"


# KServe


def test_kserve_arguments_are_settings() -> None:
    given = [
        "--model_name=birds",
        "--http_port",
        "8081",
        "--enable_docs_url",
        "true",
        "--workers=3",
    ]
    settings = Settings.of_arguments(given)
    assert settings == {"platform": "kserve", "model_name": "birds", "port": "8081", "doors": "3"}
    assert Settings.of_arguments(["--prot", "80"]) == {}
    read = Settings.read({}, **settings)
    assert (read.host, read.port, read.doors, read.model_name) == ("0.0.0.0", 8081, 3, "birds")


@contextmanager
def predictor(*answers: Any, status: int = 200) -> Iterator[tuple[str, list[Any]]]:
    """KServe's predictor, which gives these answers in turn, and the requests that it got."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append((self.path, json.loads(body)))
            said = json.dumps(answers[len(asked) - 1]).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
def test_the_predictor_is_asked_for_the_class(
    cat: bytes, espresso: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the proxy that the environment names."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    numbers = [0.0] * 1000
    numbers[281] = 1.0
    answers: tuple[Any, ...] = (
        {"predictions": [numbers, 504]},
        {"predictions": ["lynx"]},
        {"predictions": []},
    )
    with (
        predictor(*answers) as (host, asked),
        running_app(Settings(predictor_host=host)) as client,
    ):
        sent = {"instances": [b64(cat), b64(espresso), {**b64(cat), "target": 3}]}
        explained = client.post(f"{MODEL}:explain", json=sent).json()["explanations"]
        assert [one["target"]["index"] for one in explained] == [281, 504, 3]
        (path, body), *_ = asked
        assert path == f"{MODEL}:predict"
        assert body == {"instances": [b64(cat), b64(espresso)]}
        one = client.post(f"{MODEL}:explain", json={"instances": [b64(cat)]}).json()
        assert one["explanations"][0]["target"]["label"] == "lynx"
        none = client.post(f"{MODEL}:explain", json={"instances": [b64(cat)]})
        assert (none.status_code, host in none.json()["detail"]) == (503, True)
        predicted = client.post(f"{MODEL}:predict", json={"instances": [b64(cat)]})
        assert predicted.status_code == 200
        assert len(asked) == 3


def test_a_predictor_that_is_not_there(cat: bytes) -> None:
    with running_app(Settings(predictor_host="127.0.0.1:9")) as client:
        answer = client.post(f"{MODEL}:explain", json={"instances": [b64(cat)]})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


@pytest.mark.anyio
async def test_a_predictor_that_does_not_answer() -> None:
    instance = Instance(0, None, PHOTO, "/instances/0/image", Parameters())
    with socket.create_server(("127.0.0.1", 0)) as mute:
        predictor = Predictor(f"127.0.0.1:{mute.getsockname()[1]}", seconds=0.3)
        with pytest.raises(Unavailable, match="gives no prediction"):
            await asyncio.wait_for(predictor.choose("m", [instance]), 30)
    for nowhere in ("127.0.0.1:9", "127.0.0.1:99999", "a b:c"):
        with pytest.raises(Unavailable, match="gives no prediction"):
            await Predictor(nowhere, seconds=30).choose("m", [instance])


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (7, 7),
        ("tabby", "tabby"),
        ([0.1, 0.7, 0.2], 1),
        ([-3, -1.5, -2], 1),
        ({"classes": [{"index": 9, "score": 1.0}]}, 9),
    ],
)
def test_the_class_of_a_prediction(said: Any, expected: object) -> None:
    assert class_of(said) == expected


@pytest.mark.parametrize("said", [True, None, [], {}, [[0.5]], ["a"], 0.5])
def test_a_prediction_without_a_class(said: Any) -> None:
    with pytest.raises(Unexplainable, match="names no class"):
        class_of(said)


# Folders and stores


def test_a_folder_of_models(folder: Path, tmp_path: Path) -> None:
    (entry,) = read_catalog(folder, name="mine")
    assert (entry.name, entry.source) == ("mine", "factory:tests.zoo.factories:tiny")
    assert entry.path("x") == folder / "tiny-1" / "x"
    face = tmp_path / "face"
    face.mkdir()
    (face / "config.json").write_text("{}")
    (entry,) = read_catalog(face)
    assert (entry.name, entry.source, entry.path(".")) == ("model", "hf:.", face)
    empty = tmp_path / "empty"
    empty.mkdir()
    for path, words in ((empty, "it has nothing"), (tmp_path, "it has empty, face, models")):
        with pytest.raises(ConfigError, match=words):
            read_catalog(path)
    with pytest.raises(ConfigError, match="letters, digits"):
        read_catalog(folder, name="a b")
    (folder / "tiny-1" / "models.toml").write_text(TOML + TOML.replace('"tiny"', '"two"'))
    with pytest.raises(ConfigError, match="2 models cannot have the one name"):
        read_catalog(folder, name="mine")


def test_models_of_a_store(folder: Path) -> None:
    store = fsspec.filesystem("memory")
    store.put(str(folder), "/bucket/model", recursive=True)
    try:
        with copied("memory://bucket/model") as local:
            assert read_catalog(local)[0].name == "tiny"
        assert not local.exists()
        with (
            pytest.raises(ConfigError, match="memory://bucket/nothing"),
            copied("memory://bucket/nothing"),
        ):
            pass
        with pytest.raises(ConfigError, match="GRADCAM_MODELS_URI=nope://x"), copied("nope://x"):
            pass
    finally:
        store.rm("/bucket", recursive=True)


def test_a_service_starts_with_the_models_of_a_store(folder: Path) -> None:
    """If a folder is named, too, nothing is copied."""
    store = fsspec.filesystem("memory")
    store.put(str(folder), "/bucket/one", recursive=True)
    asked = Settings(models_uri="memory://bucket/one", model_name="mine")
    try:
        with asked.here() as settings:
            assert settings.models
            assert [entry.name for entry in configured(settings)] == ["mine"]
        assert not settings.models.exists()
        with asked.model_copy(update={"starts_empty": True}).here() as settings:
            assert configured(settings) == ()
        with asked.model_copy(update={"models": folder}).here() as settings:
            assert settings.models == folder
    finally:
        store.rm("/bucket", recursive=True)


@pytest.mark.parametrize("routes", ["/score", "score=/readyz", "/a=b", "="])
def test_a_route_is_two_paths(routes: str) -> None:
    with pytest.raises(ConfigError, match=r"GRADCAM_ROUTES=.*two paths"):
        Settings.read({"GRADCAM_ROUTES": routes})


def test_a_route_of_ones_own() -> None:
    settings = Settings.read({"GRADCAM_ROUTES": "/score=/v1/models/{model}:predict, /up=/healthz"})
    with running_app(settings, [FRAGILE]) as client:
        assert client.get("/up").json() == {"status": "ok"}
        until(lambda: client.get("/readyz").status_code == 200, 30)
        assert "predictions" in client.post("/score", json={"instances": [b64(PHOTO)]}).json()


@pytest.mark.parametrize(
    ("settings", "path", "said", "model"),
    [
        (Settings(platform="sagemaker"), b"/invocations?top_k=3", "", "first"),
        (
            Settings(platform="sagemaker"),
            b"/invocations",
            "operation=predict&model=fragile",
            "fragile",
        ),
        (
            Settings(platform="sagemaker", starts_empty=True),
            b"/models/fragile/invoke",
            "",
            "fragile",
        ),
        (Settings(routes={"/score": "/v1/models/{model}:predict"}), b"/score", "", "first"),
        (Settings(routes={"/score": "/v1/models/{model}:predict"}), b"/score/", "", None),
        (Settings(), b"/invocations", "", None),
        (Settings(platform="sagemaker"), b"/invocations", "operation=fly", None),
    ],
)
def test_overload_is_refused_before_the_service_hears_of_it_at_a_platforms_address_too(
    settings: Settings, path: bytes, said: str, model: str | None
) -> None:
    headers = [(b"x-amzn-sagemaker-custom-attributes", said.encode())]
    first = FRAGILE.model_copy(update={"name": "first"})
    with running_app(settings, [first, FRAGILE]) as client:
        state = cast(FastAPI, client.app).state
        guard, admission = state.guard, state.admission
        if model is None:
            assert guard.let_in_early(path, headers) is None
            return
        told = guard.let_in_early(path, headers)
        told["place"].leave()
        with admission.hold(model, settings.max_queue, costly=0), pytest.raises(QueueFull):
            guard.let_in_early(path, headers)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"GRADCAM_ROUTES": "/a=/v1/models/{name}:explain"}, r"\{model\}, and has \{name\}"),
        ({"GRADCAM_ROUTES": "/a=/v1/models/{model.x}:explain"}, r"has \{model.x\}"),
        ({"GRADCAM_ROUTES": "/a=/v1/{model}/{"}, r"and has \{"),
        ({"GRADCAM_ROUTES": "/a=/v1/{model}}"}, r"and has \}"),
    ],
)
def test_a_mistake_names_the_setting_its_value_and_what_is_allowed(
    environment: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        Settings.read(environment)
