"""SageMaker's endpoints with several models: who may load what, and from where."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

from service.app import create_app
from service.core.errors import Forbidden, InvalidParameter, Problem, UnknownModel
from service.features.keys.keys import new_key
from service.features.platforms.sagemaker import read_model
from service.settings import Settings
from tests.service.conftest import encoded, noise, running_app
from tests.service.http.test_bad_input import check
from tests.service.http.test_overload import FRAGILE

ENTRY = 'name = "any"\nsource = "timm:test_resnet"\nweights = "none"\ninput_size = 32\n'
HEADERS = {"Content-Type": "application/x-image", "Accept": "image/png"}
PHOTO = encoded(noise(8, 8))
MULTI = {"SAGEMAKER_MULTI_MODEL": "true"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of models, in which SageMaker has unpacked one, as a folder in a folder."""
    root = tmp_path / "models"
    write(root / "good" / "inner", ENTRY)
    return root


def write(folder: Path, entry: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "models.toml").write_text(f"[[models]]\n{entry}")
    return folder


@contextmanager
def endpoint(root: Path, **environment: str) -> Iterator[TestClient]:
    settings = Settings.read(MULTI | {"GRADCAM_LOAD_FOLDER": str(root), **environment})
    with TestClient(create_app(settings, [])) as client:
        yield client


def load(client: TestClient, name: str, url: Path | str, **headers: str) -> Any:
    sent = {"model_name": name, "url": str(url)}
    return client.post("/models", json=sent, headers=headers)


def test_sagemaker_loads_and_unloads_models(root: Path) -> None:
    """The contract: 409, 507, 404, and invocations of one."""
    url = root / "good"
    with endpoint(root, GRADCAM_MAX_MODELS="2") as client:
        assert client.get("/ping").status_code == 200
        assert client.get("/models").json() == {"models": []}
        statuses = [load(client, name, url).status_code for name in ("one", "other", "third")]
        assert statuses == [200, 200, 507]
        check(load(client, "one", url), 409, "conflict", "'one' is loaded already")
        listed = client.get("/models").json()["models"]
        assert listed == [{"modelName": n, "modelUrl": str(url)} for n in ("one", "other")]
        assert client.get("/models/one").json()["modelName"] == "one"
        answer = client.post("/models/one/invoke", content=PHOTO, headers=HEADERS)
        assert Image.open(BytesIO(answer.content)).size == (8, 8)
        assert client.delete("/models/one").status_code == 200
        assert client.get("/models/one").status_code == 404
        assert client.delete("/models/one").status_code == 404
        assert client.post("/models/one/invoke", content=PHOTO, headers=HEADERS).status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "kind", "words", "pointer"),
    [
        (b"[]", 400, "malformed-request", "is not like", ""),
        (b"x", 400, "malformed-request", "is not JSON", ""),
        (b"[" * 9000, 400, "malformed-request", "is not JSON", ""),
        (b"x" * 10_001, 413, "body-too-large", "10001 bytes", ""),
        (b'{"model_name": "x"}', 422, "invalid-parameter", "url is required", "/url"),
        (
            b'{"model_name": "a/b", "url": "/x"}',
            422,
            "invalid-parameter",
            "a letter or a digit",
            "/model_name",
        ),
        (b'{"model_name": "x", "url": 7}', 422, "invalid-parameter", "url is '7'", "/url"),
    ],
)
def test_bodies_that_cannot_be_read(
    root: Path, body: bytes, status: int, kind: str, words: str, pointer: str
) -> None:
    with endpoint(root) as client:
        check(client.post("/models", content=body), status, kind, words, pointer=pointer)


def paths(root: Path) -> dict[str, tuple[str, type[Problem]]]:
    """Case → url and problem, for a folder in which each of these is laid out."""
    outside = write(root.parent / "outside", ENTRY)
    (outside / "w.safetensors").write_bytes(b"")
    inside: dict[str, Path] = {}
    for case, entry in {
        "factory": ENTRY.replace("timm:test_resnet", "factory:os:getcwd"),
        "weights": ENTRY.replace('"none"', f'"{outside}/w.safetensors"'),
        "weights above": ENTRY.replace('"none"', '"../../outside/w.safetensors"'),
        "weights at home": ENTRY.replace('"none"', '"~root/w.safetensors"'),
        "labels": f'{ENTRY}labels = "/etc/passwd"\n',
        "audit": f'{ENTRY}audit = "/etc/passwd"\n',
        "reference": f'{ENTRY}reference = "/etc/passwd"\n',
        "graph": ENTRY.replace("timm:test_resnet", f"onnx:{outside}/x.onnx"),
        "unknown key": f"{ENTRY}secret = 1\n",
        "no toml": "[[",
        "linked file": ENTRY,
        "linked folder": ENTRY,
        "pipe in it": ENTRY,
        "two": f"{ENTRY}[[models]]\n{ENTRY.replace('any', 'two')}",
    }.items():
        inside[case] = write(root / case, entry)
    (inside["linked file"] / "labels.txt").symlink_to("/etc/passwd")
    (inside["linked folder"] / "more").symlink_to(outside)
    os.mkfifo(inside["pipe in it"] / "model.safetensors")
    (root / "empty").mkdir()
    (root / "link").symlink_to(outside)
    (root / "loop").symlink_to(root / "loop")
    os.mkfifo(root / "pipe")
    forbidden = dict.fromkeys(
        ("factory", "weights", "weights above", "labels", "audit", "reference", "graph",
         "linked file", "linked folder"),
        Forbidden,
    )  # fmt: skip
    unknown = dict.fromkeys(("unknown key", "no toml", "pipe in it", "two"), UnknownModel)
    there = {case: (str(root / case), problem) for case, problem in (forbidden | unknown).items()}
    return there | {
        "at home": (str(inside["weights at home"]), Forbidden),
        "outside": (str(outside), Forbidden),
        "above": (f"{root}/../outside", Forbidden),
        "link": (f"{root}/link", Forbidden),
        "etc": ("/etc", Forbidden),
        "self": ("/proc/self", Forbidden),
        "not there, outside": ("/nowhere", Forbidden),
        "all": (str(root), Forbidden),
        "relative": ("outside", Forbidden),
        "sibling": (f"{root}-other", Forbidden),
        "pipe": (f"{root}/pipe", UnknownModel),
        "empty": (f"{root}/empty", UnknownModel),
        "not there": (f"{root}/nowhere", UnknownModel),
        "loop": (f"{root}/loop", InvalidParameter),
        "zero byte": (f"{root}/a\0b", InvalidParameter),
        "long name": (f"{root}/{'a' * 300}", InvalidParameter),
        "very long": (f"{root}/{'a/' * 2500}", InvalidParameter),
    }


def test_a_model_is_loaded_from_below_the_folder_of_models_alone(root: Path) -> None:
    """Nothing hangs, nothing fails, and no answer says what files there are."""
    cases = paths(root)
    assert read_model(f"{root}/good", name="x", root=root).source == "timm:test_resnet"
    assert read_model(f"{root}/good/inner/models.toml", name="x", root=root).name == "x"
    with endpoint(root) as client:
        for case, (url, problem) in cases.items():
            refused = load(client, "x", url)
            assert refused.status_code == problem.status, (case, refused.text)
            for secret in ("passwd", "inner", "safetensors", "root", str(root)):
                assert case == "very long" or secret not in refused.json()["detail"], case
        assert client.get("/models").json() == {"models": []}
        assert load(client, "x", root / "good").status_code == 200


def test_a_failed_load_leaves_nothing(root: Path) -> None:
    bad = write(root / "bad", ENTRY.replace('"none"', '"w.safetensors"'))
    (bad / "w.safetensors").write_bytes(b"no tensors")
    with endpoint(root, GRADCAM_MAX_MODELS="1") as client:
        for _ in range(2):
            failed = load(client, "x", bad)
            check(failed, 424, "model-failed", "w.safetensors")
            assert str(root) not in failed.text
            assert client.get("/v1/models").json()["models"] == []
        check(client.get("/models/x"), 404, "unknown-model")
        assert load(client, "x", root / "good").status_code == 200


@pytest.mark.parametrize("environment", [{"GRADCAM_PLATFORM": "sagemaker"}, {}])
def test_other_services_have_no_such_routes(root: Path, environment: dict[str, str]) -> None:
    with running_app(Settings.read(environment), [FRAGILE]) as client:
        for method, path in (
            ("GET", "/models"),
            ("POST", "/models"),
            ("GET", "/models/fragile"),
            ("DELETE", "/models/fragile"),
            ("POST", "/models/fragile/invoke"),
        ):
            check(client.request(method, path, json={}), 404, "unknown-route")
        assert client.get("/v1/models").json() == {"models": ["fragile"]}


def test_with_keys_the_models_are_changed_by_admins_alone(root: Path, tmp_path: Path) -> None:
    made = {scope: new_key(scope, [scope], None) for scope in ("explain", "admin")}
    file = tmp_path / "keys.toml"
    file.write_text("\n".join(entry for _, entry in made.values()))
    explain, admin = ({"X-API-Key": made[scope][0]} for scope in ("explain", "admin"))
    with endpoint(root, GRADCAM_KEYS=str(file)) as client:
        check(load(client, "x", root / "good"), 401, "unauthorized")
        check(load(client, "x", "/etc", **explain), 403, "forbidden", "needs admin")
        assert load(client, "x", root / "good", **admin).status_code == 200
        check(client.delete("/models/x"), 401, "unauthorized")
        check(client.delete("/models/x", headers=explain), 403, "forbidden", "needs admin")
        assert client.get("/models/x", headers=explain).status_code == 200
        assert client.delete("/models/x", headers=admin).status_code == 200
