"""Models that come and go while the service runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from httpx2 import Response
from starlette.testclient import TestClient
from torch import Tensor, nn

from service.app import create_app
from service.core.errors import ConfigError
from service.engine import manager
from service.features.keys.keys import new_key
from service.loading.served_model import load
from service.models.catalog import ModelEntry
from service.settings import Settings
from tests.service.conftest import encoded, noise, wait_until_ready
from tests.service.http.test_bad_input import check
from tests.service.http.test_overload import FRAGILE, TINY
from tests.waiting import stays, until
from tests.zoo.convolutional import Small, around

pytestmark = pytest.mark.contract
HERE = "factory:tests.service.features.administration.test_routes"
NEW: dict[str, Any] = {"name": "new", "source": "factory:tests.zoo.factories:tiny", **TINY}
MODEL = "/v1/models/new"
PNG = {"Content-Type": "image/png"}
PHOTO = encoded(noise(8, 8))
SECONDS = 30.0
building, may_build, running, may_run = (threading.Event() for _ in range(4))


def paused() -> nn.Module:
    """A forward pass goes on when it may."""

    def pause(x: Tensor) -> None:
        running.set()
        may_run.wait(SECONDS)

    return around(pause)


def held() -> nn.Module:
    """Is built when it may be."""
    building.set()
    may_build.wait(SECONDS)
    return Small().eval()


def exits() -> nn.Module:
    raise SystemExit("as some packages do")


def broken() -> nn.Module:
    raise OSError("the disk\nis on fire")


@pytest.fixture(autouse=True)
def nothing_waits() -> Iterator[None]:
    for event in (building, running):
        event.clear()
    for event in (may_build, may_run):
        event.set()
    yield
    for event in (may_build, may_run):
        event.set()


@contextmanager
def served(
    tmp_path: Path, *entries: ModelEntry, wait: bool = True, **settings: Any
) -> Iterator[TestClient]:
    """A service that may load factories of the tests, and a caller who may do everything."""
    secret, entry = new_key("admin", ["admin", "explain"], None)
    file = tmp_path / "keys.toml"
    file.write_text(entry)
    given = {"allowed_sources": ("factory:tests.*",), "keys": file, **settings}
    app = create_app(Settings(**given), entries or [FRAGILE])
    with TestClient(app, headers={"X-API-Key": secret}) as client:
        if wait:
            wait_until_ready(client)
        yield client


def add(client: TestClient, **keys: Any) -> None:
    response = client.post("/v1/models", json={**NEW, **keys})
    assert response.status_code == 202, response.text


def answered(client: TestClient, status: int, path: str = MODEL) -> Response:
    """The first answer with this status."""

    def asked() -> list[Response]:
        return [response for response in [client.get(path)] if response.status_code == status]

    return until(asked, SECONDS)[0]


def explain(client: TestClient, seed: int = 0) -> Response:
    return client.post(f"{MODEL}:explain", content=encoded(noise(8, 8, seed)), headers=PNG)


def traces(client: TestClient, name: str = "new") -> list[str]:
    """What the metrics and the threads still know of a model."""
    lines = [line for line in client.get("/metrics").text.splitlines() if f'model="{name}"' in line]
    return lines + [each.name for each in threading.enumerate() if f"engine {name}" in each.name]


def gone(client: TestClient, name: str = "new") -> bool:
    """Within a moment, for a thread needs one to end."""
    return until(lambda: not traces(client, name), 5)


def test_a_model_joins_while_the_others_go_on(tmp_path: Path) -> None:
    may_build.clear()
    with served(tmp_path) as client:
        response = client.post("/v1/models", json={**NEW, "source": f"{HERE}:held"})
        assert response.status_code == 202
        assert response.headers["location"] == MODEL
        assert int(response.headers["retry-after"]) >= 1
        assert response.json() == {"name": "new", "state": "loading"}
        assert building.wait(SECONDS)
        for early in (client.get(MODEL), client.get(f"{MODEL}/layers"), explain(client)):
            check(early, 503, "unavailable", "'new' is still loading")
            assert int(early.headers["retry-after"]) >= 1
        assert client.get("/v1/models").json() == {"models": ["fragile", "new"]}
        assert 'gradcam_model_ready{model="new"} 0.0' in client.get("/metrics").text
        assert client.get("/readyz").status_code == 200
        other = client.post("/v1/models/fragile:predict", content=PHOTO, headers=PNG)
        assert other.status_code == 200

        may_build.set()
        described = answered(client, 200).json()
        assert described["name"] == "new"
        assert described["source"] == f"{HERE}:held"
        assert described["input"]["height"] == 8
        predicted = client.post(f"{MODEL}:predict", content=PHOTO, headers=PNG)
        assert len(predicted.json()["predictions"]) == 1
        assert explain(client).status_code == 200
        assert 'gradcam_model_ready{model="new"} 1.0' in client.get("/metrics").text


def test_a_detector_that_joins_says_how_its_boxes_are_read(tmp_path: Path) -> None:
    keys = {"input_size": 64, "detections": "yolov8", "min_score": 0.01}
    with served(tmp_path) as client:
        add(client, source="factory:tests.zoo.factories:yolo", **keys)
        answered(client, 200)
        assert explain(client).json()["predictions"][0]["detections"]
        refused = client.post("/v1/models", json={**NEW, "name": "other", "detections": "yolo"})
        check(refused, 422, "invalid-parameter", "yolov8", pointer="/detections")


def test_a_model_leaves_when_its_requests_are_done(tmp_path: Path) -> None:
    with served(tmp_path) as client, ThreadPoolExecutor(6) as threads:
        add(client, source=f"{HERE}:paused", max_batch=1)
        answered(client, 200)
        may_run.clear()
        running.clear()
        under_way = [threads.submit(explain, client, seed) for seed in (0, 1, 2, 2)]
        assert running.wait(SECONDS)
        until(lambda: 'gradcam_queue_depth{model="new"} 2.0' in client.get("/metrics").text)
        leaving = threads.submit(client.delete, MODEL)
        described = answered(client, 503)
        for late in (described, explain(client, 9), client.get(f"{MODEL}/layers")):
            check(late, 503, "unavailable", "'new' is being unloaded")
        check(client.delete(MODEL), 409, "conflict", "'new' is being unloaded")
        check(client.post("/v1/models", json=NEW), 409, "conflict", "a model 'new' already")
        assert client.get("/readyz").status_code == 200
        assert not leaving.done()
        may_run.set()
        assert [each.result().status_code for each in under_way] == [200] * 4
        assert (leaving.result().status_code, leaving.result().content) == (204, b"")
        for after in (client.get(MODEL), explain(client), client.delete(MODEL)):
            check(after, 404, "unknown-model", "no model 'new'", "the models are fragile")
        assert client.get("/v1/models").json() == {"models": ["fragile"]}
        assert gone(client), traces(client)
        add(client)
        answered(client, 200)
        assert explain(client).status_code == 200


def test_a_request_that_hangs_keeps_no_model_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The manager's clock goes on by a second with each look at it.
    seconds = count()
    monkeypatch.setattr(manager, "monotonic", lambda: next(seconds))
    with served(tmp_path, drain_seconds=20) as client, ThreadPoolExecutor(2) as threads:
        add(client, source=f"{HERE}:paused", max_batch=1)
        answered(client, 200)
        may_run.clear()
        running.clear()
        hangs = threads.submit(explain, client)
        assert running.wait(SECONDS)
        assert client.delete(MODEL).status_code == 204
        assert next(seconds) == 22, "one look before and one after the 20 s, in which it waited"
        check(hangs.result(SECONDS), 503, "unavailable")
        assert client.get(MODEL).status_code == 404
        assert client.get("/readyz").status_code == 200
        may_run.set()
        assert gone(client), traces(client)


def test_a_model_of_the_catalog_may_leave_too(tmp_path: Path) -> None:
    with served(tmp_path) as client:
        assert client.delete("/v1/models/fragile").status_code == 204
        assert client.get("/v1/models").json()["models"] == []
        assert client.get("/readyz").status_code == 200  # it waits for a model
        assert client.get("/v1/models/fragile").status_code == 404
        assert gone(client, "fragile"), traces(client, "fragile")
        add(client, name="fragile")
        assert answered(client, 200, "/v1/models/fragile").json()["source"] == NEW["source"]


def test_a_model_that_still_loads_may_leave(tmp_path: Path) -> None:
    may_build.clear()
    with served(tmp_path) as client:
        add(client, source=f"{HERE}:held")
        assert building.wait(SECONDS)
        assert client.delete(MODEL).status_code == 204
        check(client.get(MODEL), 404, "unknown-model")
        may_build.set()
        assert gone(client), traces(client)
        add(client)
        answered(client, 200)


@pytest.mark.parametrize("leaves", ["first", "second"])
def test_a_model_of_the_catalog_that_still_loads_may_leave(tmp_path: Path, leaves: str) -> None:
    """The first one is being built, and the second one waits for it."""
    may_build.clear()
    entries = [ModelEntry(name=name, source=f"{HERE}:held", **TINY) for name in ("first", "second")]
    other = "second" if leaves == "first" else "first"
    with served(tmp_path, *entries, wait=False) as client:
        assert building.wait(SECONDS)
        assert client.delete(f"/v1/models/{leaves}").status_code == 204
        may_build.set()
        answered(client, 200, f"/v1/models/{other}")
        answered(client, 200, "/readyz")
        left = {"models": [other]}
        stays(lambda: client.get("/v1/models").json() == left, 0.5)  # it does not come back
        assert traces(client, leaves) == []


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("factory:tests.zoo.factories:no_module", "returned a str, not a torch.nn.Module"),
        ("factory:tests.zoo.factories:missing", "has no 'missing'"),
        ("factory:tests.nowhere:tiny", "cannot import 'tests.nowhere'"),
        ("factory:tests.zoo.factories:no_logits", "cannot be explained"),
        (f"{HERE}:broken", "the disk is on fire"),
    ],
)
def test_a_model_that_cannot_be_built_says_why_and_harms_nobody(
    tmp_path: Path, source: str, why: str
) -> None:
    with served(tmp_path) as client:
        add(client, source=source)
        until(lambda: "still loading" not in client.get(MODEL).text, SECONDS)
        for refused in (client.get(MODEL), explain(client)):
            check(refused, 424, "model-failed", "'new' could not be loaded", why)
            assert "Retry-After" not in refused.headers
            assert "try again" not in refused.text
        assert client.get("/readyz").status_code == 200
        assert 'gradcam_model_ready{model="new"} 0.0' in client.get("/metrics").text
        other = client.post("/v1/models/fragile:predict", content=PHOTO, headers=PNG)
        assert other.status_code == 200
        assert client.delete(MODEL).status_code == 204
        assert gone(client), traces(client)
        add(client)
        answered(client, 200)


def test_a_load_that_is_waited_for_leaves_nothing_if_it_fails(tmp_path: Path) -> None:
    """`load` of the repository says why itself. `GET` says it after `POST /v1/models`, until the
    model is deleted; `load` takes its place."""
    repository = "/v2/repository/models/new/load"
    entry = {key: value for key, value in NEW.items() if key != "name"}
    bad = {"parameters": {"config": json.dumps({**entry, "source": f"{HERE}:broken"})}}
    good = {"parameters": {"config": json.dumps(entry)}}
    with served(tmp_path, max_models=2) as client:
        for _ in range(2):
            failed = client.post(repository, json=bad)
            assert (failed.status_code, "on fire" in failed.json()["error"]) == (424, True)
            assert client.get("/v1/models").json() == {"models": ["fragile"]}
        check(client.get(MODEL), 404, "unknown-model")
        add(client, source=f"{HERE}:broken")
        answered(client, 424)
        check(client.post("/v1/models", json=NEW), 409, "conflict", "DELETE")
        assert client.post(repository, json=good).status_code == 200
        assert explain(client).status_code == 200


def test_the_reason_of_a_failure_names_no_folder_of_the_server(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    file.write_bytes(b"no tensors")
    entry = FRAGILE.model_copy(update={"name": "bad", "weights": str(file)})
    with served(tmp_path) as client:
        app: Any = client.app
        assert client.portal
        client.portal.call(app.state.manager.add, entry.of_file(tmp_path / "models.toml"))
        failed = answered(client, 424, "/v1/models/bad")
        check(failed, 424, "model-failed", "key 'weights'", "weights.safetensors")
        assert str(tmp_path) not in failed.text


def test_a_factory_that_would_end_the_process_is_a_mistake_in_its_entry() -> None:
    entry = ModelEntry(name="new", source=f"{HERE}:exits", **TINY)
    with pytest.raises(ConfigError, match="key 'source'"):
        load(entry)


def test_there_are_so_many_models_and_no_more(tmp_path: Path) -> None:
    with served(tmp_path, max_models=2) as client:
        add(client)
        check(client.post("/v1/models", json=NEW), 409, "conflict", "'new' already", "DELETE")
        third = {**NEW, "name": "third"}
        refused = client.post("/v1/models", json=third)
        check(refused, 409, "conflict", "the number of models is 2", "DELETE one")
        check(client.get("/v1/models/third"), 404, "unknown-model")
        answered(client, 200)
        assert client.delete(MODEL).status_code == 204
        add(client, name="third")
        answered(client, 200, "/v1/models/third")


def test_a_model_leaves_when_those_that_take_many_passes_are_done(tmp_path: Path) -> None:
    """Between two of them nothing of theirs is in its queue."""
    with served(tmp_path) as client, ThreadPoolExecutor(2) as threads:
        add(client, source=f"{HERE}:paused", max_batch=1)
        answered(client, 200)
        may_run.clear()
        running.clear()
        address = f"{MODEL}:explain?method=rise&budget=64&size=layer"
        asking = threads.submit(client.post, address, content=PHOTO, headers=PNG)
        assert running.wait(SECONDS)
        leaving = threads.submit(client.delete, MODEL)
        answered(client, 503)
        may_run.set()
        assert asking.result().status_code == 200
        assert leaving.result().status_code == 204


def fails_when_it_may() -> nn.Module:
    building.set()
    may_build.wait(SECONDS)
    raise RuntimeError("no such weights")


def test_one_that_is_removed_while_it_loads_ends_nothing(tmp_path: Path) -> None:
    """Though it could not have been loaded: the next one is."""
    building.clear()
    may_build.clear()
    file = tmp_path / "keys.toml"
    key, entry = new_key("operator", ["admin", "explain"], None)
    file.write_text(entry)
    late, tiny = (ModelEntry(**{**NEW, "name": name}) for name in ("late", "tiny"))
    late = late.model_copy(update={"source": f"{HERE}:fails_when_it_may"})
    app = create_app(Settings(keys=file), [late, tiny])
    with TestClient(app, headers={"X-API-Key": key}) as client:
        assert building.wait(SECONDS)
        with ThreadPoolExecutor(1) as threads:
            leaving = threads.submit(client.delete, "/v1/models/late")
            until(lambda: client.get("/v1/models/late").status_code == 404)
            may_build.set()
            assert leaving.result().status_code == 204
        wait_until_ready(client)
        assert client.get("/v1/models").json() == {"models": ["tiny"]}
        assert app.state.manager.loaded.exception() is None
