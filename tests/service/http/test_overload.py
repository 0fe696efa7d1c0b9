"""More than the service can take, and defects: every caller gets an answer."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

from service.app import create_app
from service.models.catalog import ModelEntry
from service.settings import Settings
from tests.service.conftest import encoded, noise, running_app, wait_until_ready
from tests.service.http.test_bad_input import check
from tests.waiting import until

TINY: dict[str, Any] = {"weights": "none", "input_size": 8}
SLOW = ModelEntry(
    name="slow", source="factory:tests.zoo.factories:slow", max_batch=1, kind="classes", **TINY
)
FRAGILE = ModelEntry(
    name="fragile",
    source="factory:tests.zoo.factories:fragile",
    mean=(0, 0, 0),
    std=(1, 1, 1),
    **TINY,
)
EXPLAIN = "/v1/models/slow:explain"
PNG = {"Content-Type": "image/png"}
PHOTO = encoded(noise(8, 8))


@pytest.fixture
def slow(request: pytest.FixtureRequest) -> Iterator[TestClient]:
    with running_app(Settings(**request.param), [SLOW]) as client:
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("slow", [{"max_queue": 2}], indirect=True)
def test_a_full_queue_answers_429_at_once(slow: TestClient) -> None:
    answers: list[int] = []

    def ask(seed: int) -> None:
        response = slow.post(EXPLAIN, content=encoded(noise(8, 8, seed)), headers=PNG)
        if response.status_code == 429:
            check(
                response,
                429,
                "queue-full",
                "2 images are in progress for model 'slow'",
                "at most 2",
                "try again",
            )
            assert response.headers["retry-after"] == "1"
        answers.append(response.status_code)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, range(8)))
    refused = answers.count(429)
    assert sorted(answers) == [200] * (8 - refused) + [429] * refused
    assert 5 <= refused <= 6  # one runs, one waits, and who comes when the first is done
    assert answers[0] == 429  # before even one forward pass is over
    assert slow.post(EXPLAIN, content=PHOTO, headers=PNG).status_code == 200
    assert 'gradcam_rejected_total{reason="queue full"}' in slow.get("/metrics").text


@pytest.mark.slow
@pytest.mark.parametrize("slow", [{"deadline_seconds": 8}], indirect=True)
def test_a_method_of_many_passes_answers_within_the_deadline_with_those_it_has_made(
    slow: TestClient,
) -> None:
    """A thousand passes of half a second; a budget that the caller gives is kept, or a 504."""
    query: dict[str, str | int] = {"method": "rise"}
    response = slow.post(EXPLAIN, params=query, content=PHOTO, headers=PNG)
    assert response.status_code == 200, response.text
    (found,) = response.json()["explanations"]
    assert 1 <= found["passes"]["made"] <= 16
    assert found["passes"]["of"] == 1000
    assert "the time ran out" in found["warnings"][-1]
    response = slow.post(EXPLAIN, params={**query, "budget": 1000}, content=PHOTO, headers=PNG)
    assert response.status_code == 504


@pytest.mark.slow
@pytest.mark.parametrize("slow", [{"deadline_seconds": 0.2}], indirect=True)
def test_what_takes_too_long_is_a_504_and_leaves_the_queue(slow: TestClient) -> None:
    for verb in ("explain", "predict"):
        response = slow.post(f"/v1/models/slow:{verb}", content=PHOTO, headers=PNG)
        check(response, 504, "deadline-exceeded", "not ready after 0.2 s")
    lines = slow.post(
        EXPLAIN, content=PHOTO, headers={**PNG, "Accept": "application/x-ndjson"}
    ).text.splitlines()
    assert len(lines) == 1
    assert "not ready after 0.2 s" in lines[0]
    assert 'gradcam_queue_depth{model="slow"} 0.0' in slow.get("/metrics").text
    assert slow.get("/readyz").status_code == 200


@pytest.mark.slow
def test_while_it_loads_and_while_it_drains_a_503_says_so() -> None:
    app = create_app(Settings(), [SLOW])
    with TestClient(app) as client:
        for response in (
            client.post(EXPLAIN, content=PHOTO, headers=PNG),
            client.get("/v1/models/slow"),
        ):
            check(response, 503, "unavailable", "'slow' is still loading")
            assert response.headers["retry-after"] == "1"
        assert client.get("/healthz").status_code == 200
        wait_until_ready(client)
        app.state.manager.draining = True
        check(client.get("/readyz"), 503, "unavailable", "shutting down")
        check(client.post(EXPLAIN, content=PHOTO, headers=PNG), 503, "unavailable", "shutting down")
        assert client.get("/healthz").status_code == 200


def test_a_defect_fails_its_own_image_and_is_a_problem() -> None:
    white = encoded(Image.new("RGB", (8, 8), "white"))
    instances = [
        {"image": {"b64": base64.b64encode(each).decode()}} for each in (PHOTO, white, PHOTO)
    ]
    path = "/v1/models/fragile:explain"
    with running_app(Settings(), [FRAGILE]) as client:
        found = client.post(path, json={"instances": instances})
        assert found.status_code == 200
        explanations = found.json()["explanations"]
        assert ["error" in each for each in explanations] == [False, True, False]
        assert explanations[1]["problem"]["type"] == "urn:gradcam-service:internal-error"
        ndjson = {"Accept": "application/x-ndjson"}
        lines = client.post(path, json={"instances": instances}, headers=ndjson).text.splitlines()
        assert sorted("error" in json.loads(line) for line in lines) == [False, False, True]
        for accept in ("application/json", "image/png"):
            alone = client.post(path, content=white, headers={**PNG, "Accept": accept})
            check(alone, 500, "internal-error", "the service failed", "log has the cause")
        assert client.post(path, content=PHOTO, headers=PNG).status_code == 200
        assert client.get("/readyz").status_code == 200


def test_requests_that_fail_free_their_places() -> None:
    """There are eight places at first."""
    path = "/v1/models/fragile:explain"
    bad: list[dict[str, Any]] = [
        {"content": b"no image", "headers": PNG},
        {"content": PHOTO, "headers": {"Content-Type": "text/plain"}},
        {"content": PHOTO, "headers": PNG, "params": {"layer": "none"}},
        {"content": PHOTO, "headers": {**PNG, "Accept": "text/html"}},
        {"content": PHOTO, "headers": {**PNG, "X-Request-Timeout": "soon"}},
        {"content": encoded(Image.new("RGB", (8, 8), "white")), "headers": PNG},
    ]
    with running_app(Settings(), [FRAGILE]) as client:
        for _ in range(4):
            statuses = [client.post(path, **each).status_code for each in bad]
            assert statuses == [422, 415, 422, 406, 400, 500]
        assert client.post(path, content=PHOTO, headers=PNG).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("slow", [{"deadline_seconds": 4}], indirect=True)
def test_a_method_of_many_passes_lets_others_in_and_ends_when_its_caller_does(
    slow: TestClient,
) -> None:
    """A forward pass takes half a second, and this asks for a hundred."""
    begun = passes(slow)
    with ThreadPoolExecutor(1) as threads:
        query: dict[str, str | int] = {"method": "rise", "budget": 100}
        long = threads.submit(slow.post, EXPLAIN, params=query, content=PHOTO, headers=PNG)
        before = until(lambda: (made := passes(slow)) > begun and made)
        assert slow.post(EXPLAIN, content=PHOTO, headers=PNG).status_code == 200
        assert passes(slow) - before <= 3  # the step under way, its own, and the next one's
        assert not long.done()
        check(long.result(), 504, "deadline-exceeded", "not ready after 4 s", "smaller budget")
    before = passes(slow)
    assert slow.post(EXPLAIN, content=encoded(noise(8, 8, 1)), headers=PNG).status_code == 200
    assert passes(slow) - before <= 2


def passes(client: TestClient) -> float:
    """Forward passes of the slow model, each for one image."""
    said = client.get("/metrics").text
    found = re.search(r'gradcam_batch_size_count\{model="slow"\} (\S+)', said)
    return float(found[1]) if found else 0.0


@pytest.mark.slow
@pytest.mark.parametrize("slow", [{}], indirect=True)
def test_many_steps_make_one_answer(slow: TestClient) -> None:
    query = {"method": "occlusion", "budget": "4", "size": "model", "output": "values"}
    response = slow.post(EXPLAIN, params=query, content=PHOTO, headers=PNG)
    (explanation,) = response.json()["explanations"]
    assert explanation["layer"] == "input"
    assert explanation["heatmap"]["shape"] == [8, 8]
    timings = response.headers["server-timing"]
    assert float(timings.split("forward_backward;dur=")[1].split(";")[0]) > 2000
