"""What is Serve's own about a served service; `test_serve` runs it inside the stage, where
GRADCAM_TEST_URL is."""

from __future__ import annotations

import base64
import json
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from tests.ray.stage import PNG, ask
from tests.service.conftest import ELSEWHERE, MODEL, encoded, noise
from tests.service.http.test_bad_input import check
from tests.waiting import stays

URL = ELSEWHERE or ""
SLOW, NARROW = f"{URL}/slow", f"{URL}/narrow"


def several(url: str, count: int, first: int) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(lambda seed: ask(url, seed), range(first, first + count)))


def test_the_services_own_429() -> None:
    answers = several(SLOW, 8, 0)
    assert {answer["status"] for answer in answers} == {200, 429}
    refused = [answer for answer in answers if answer["status"] == 429]
    for answer in refused:
        assert answer["type"] == "urn:gradcam-service:queue-full"
        assert answer["retry"] == "1"


def test_serves_own_429_is_a_problem_too() -> None:
    """The replica has as many requests as it may (1), as many more wait (1)."""
    for turn in range(5):  # the proxy counts who comes at the same moment as waiting
        answers = several(NARROW, 6, 10 + 6 * turn)
        assert {answer["status"] for answer in answers} == {200, 429}
        for answer in answers:
            if answer["status"] == 429:
                assert answer["type"] == "urn:gradcam-service:queue-full"
                assert answer["retry"] == "1"
                assert answer["seconds"] < max(other["seconds"] for other in answers)


def test_a_body_is_bounded_in_the_proxy(cat: bytes) -> None:
    """While no replica takes it, too: nobody else would count it."""
    with ThreadPoolExecutor(2) as threads, httpx2.Client(timeout=60) as http:
        busy = threads.submit(ask, NARROW, 90, passes=30)
        time.sleep(0.5)
        wrong = http.post(
            f"{NARROW}/v1/models/slow:explain",
            content=iter([bytes(1_000_000)] * 11),
            headers=PNG,
        )
        check(wrong, 413, "body-too-large", "at most 10000000")
        assert not busy.done()
        claimed = http.post(
            f"{SLOW}/v1/models/slow:explain", content=bytes(11_000_000), headers=PNG
        )
        check(claimed, 413, "body-too-large", "the body has 11000000 bytes")
        assert busy.result()["status"] == 200
        assert ask(NARROW, 91)["status"] == 200


def batches(http: httpx2.Client, model: str) -> float:
    (found,) = re.findall(
        rf'gradcam_batch_size_count{{model="{model}"}} (\S+)', http.get("/metrics").text
    )
    return float(found)


def test_who_leaves_is_not_worked_for() -> None:
    with ThreadPoolExecutor(1) as threads, httpx2.Client(base_url=SLOW, timeout=60) as http:
        assert ask(SLOW, 29)["status"] == 200
        before = batches(http, "slow")
        busy = threads.submit(ask, SLOW, 30, 3)
        time.sleep(0.5)
        photo = encoded(noise(8, 8, 31))
        host, port = URL.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as leaving:
            head = (
                "POST /slow/v1/models/slow:explain HTTP/1.1\r\nHost: localhost\r\n"
                f"Content-Type: image/png\r\nContent-Length: {len(photo)}\r\n\r\n"
            )
            leaving.sendall(head.encode() + photo)
            time.sleep(0.3)
        assert busy.result()["status"] == 200
        # It would have been worked for in the meantime.
        stays(lambda: batches(http, "slow") == before + 3, 1)
        assert 'gradcam_queue_depth{model="slow"} 0.0' in http.get("/metrics").text


def test_lines_come_as_they_are_ready(cat: bytes) -> None:
    body = {
        "instances": [{"image": {"b64": base64.b64encode(cat).decode()}}],
        "parameters": {"method": "occlusion", "budget": 200},
    }
    headers = {"Accept": "application/x-ndjson"}
    came: list[tuple[float, dict[str, Any]]] = []
    with httpx2.stream(
        "POST", f"{URL}{MODEL}:explain", json=body, headers=headers, timeout=60
    ) as answer:
        began = time.monotonic()
        came.extend((time.monotonic() - began, json.loads(line)) for line in answer.iter_lines())
    assert len(came) > 2
    assert "progress" in came[0][1]
    assert "heatmap" in came[-1][1]
    assert came[-1][0] - came[0][0] > 0.2  # two hundred passes take longer


@pytest.mark.parametrize(("given", "kept"), [("mine-1", True), ("a b", False), ("é", False)])
def test_a_request_has_one_name(given: str, kept: bool) -> None:
    for path in ("/healthz", "/nowhere", "/-/healthz"):
        answer = httpx2.get(f"{URL}{path}", headers=[(b"X-Request-ID", given.encode())])
        (name,) = answer.headers.get_list("x-request-id")
        assert (name == given) == kept
        assert kept or len(name) == 36


def test_callers_do_not_change_how_long_serve_waits() -> None:
    headers = {**PNG, "X-Request-Timeout-Seconds": "0.01"}
    photo = encoded(noise(8, 8, 40))
    answer = httpx2.post(
        f"{SLOW}/v1/models/slow:explain", content=photo, headers=headers, timeout=60
    )
    assert answer.status_code == 200


def test_a_prefix_of_the_route_opens_no_door() -> None:
    assert httpx2.get(f"{SLOW}/readyz").json() == {"status": "ok"}
    assert httpx2.get(f"{SLOW}/v1/models").json() == {"models": ["slow"]}
    new = httpx2.post(f"{SLOW}/v1/models", json={"name": "x", "source": "timm:test_resnet"})
    check(new, 403, "forbidden", "scope 'admin'")
    check(httpx2.delete(f"{SLOW}/v1/models/slow"), 403, "forbidden", "scope 'admin'")
