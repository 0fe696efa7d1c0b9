"""What jobs may take of memory, of the disk and of the tables, whatever they consist of."""

from __future__ import annotations

import base64
import json
import select
import socket
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

from service.features.jobs.collector import CHUNK_BYTES, Collector
from service.features.jobs.records import MOST_ID_BYTES
from service.features.jobs.runner import AT_ONCE
from service.settings import Settings
from tests import waiting
from tests.chaos.stage import staged
from tests.service.conftest import encoded, noise
from tests.service.features.jobs.conftest import TINY, app_with
from tests.service.features.jobs.desk import desk_at
from tests.service.features.jobs.forms import NDJSON, ZIP, accepted, check, inline, lines, zipped
from tests.service.features.jobs.test_postgres import http
from tests.waiting import stays, until

JSON = {"Content-Type": "application/json"}
DOT = inline(encoded(noise(9, 9)))
SQUARE = encoded(Image.new("RGB", (100, 100)))
LARGE = base64.b64encode(bytes(100_000)).decode()
"""A picture that is none, which is found out when its item is worked on."""


@pytest.mark.slow
def test_results_beyond_the_share_of_the_disk_wait(tmp_path: Path) -> None:
    """A job of few bytes may have large results; those of this one have 10 MB."""
    share, result = 1_000_000, 100 * 100 * 4 * 4 / 3
    with app_with((TINY,), Settings(jobs=tmp_path, jobs_bytes=share)) as client:
        body = zipped({f"{at}.png": SQUARE for at in range(200)})
        query = {"output": "values", "size": "image"}
        job = accepted(client.post("/v1/jobs", params=query, content=body, headers=ZIP))["id"]
        stalled = until(lambda: client.get(f"/v1/jobs/{job}").json().get("stalled"), 60)
        assert f"at most {share} are allowed; delete one" in stalled

        def stalls() -> bool:
            counts = client.get(f"/v1/jobs/{job}").json()["counts"]
            done = share / result / 2 < counts["done"] < share / result + 2 * AT_ONCE
            return bool(done and counts["failed"] == 0)

        stays(stalls, 1)
        refused = client.post("/v1/jobs", content=body, headers=ZIP)
        check(refused, 507, "insufficient-storage", f"at most {share} are allowed; delete one")
        # What is finished may be deleted, and the others go on where there is room for them.
        assert client.delete(f"/v1/jobs/{job}?purge=true").status_code == 204


def own(count: int) -> list[dict[str, Any]]:
    """Instances whose own parameters have 130 kB."""
    target = {"class": 1, "mask": {"b64": LARGE}}
    return [{"id": str(at), "image": DOT, "target": target} for at in range(count)]


def test_the_parameters_of_instances_take_of_the_disk(tmp_path: Path) -> None:
    with app_with((TINY,), Settings(jobs=tmp_path, jobs_bytes=1_000_000)) as client:
        refused = client.post("/v1/jobs", content=lines(own(10)), headers=NDJSON)
        check(refused, 507, "insufficient-storage", "all the disk space that is allowed")
        accepted(client.post("/v1/jobs", content=lines(own(5)), headers=NDJSON))
        refused = client.post("/v1/jobs", content=lines(own(5)), headers=NDJSON)
        check(refused, 507, "insufficient-storage")


def test_the_parameters_of_instances_do_not_wait_in_memory(tmp_path: Path) -> None:
    with desk_at(tmp_path) as desk:
        job = desk.submissions.begin("receiver", desk.draft())
        with desk.folder.blob(job, 10**9) as blob:
            collector = Collector(
                job, blob, desk.submissions, max_items=10**6, max_image_bytes=10**6
            )
            for at in range(200):
                collector.image(str(at), b"image", {"target": LARGE})
                assert collector.held < CHUNK_BYTES
            collector.close()
        assert collector.held == 0
        assert collector.told > 200 * len(LARGE)
        assert desk.rows(job)["items"] == 200


def test_parameters_of_all_instances(jobs: TestClient) -> None:
    """They are told wherever the job is."""
    sent = {
        "model": "tiny",
        "instances": [{"image": DOT}],
        "parameters": {"target": {"like": {"b64": LARGE * 2}}},
    }
    refused = jobs.post("/v1/jobs", json=sent)
    check(refused, 413, "body-too-large", "at most 250000 are allowed", "smaller pictures")


@pytest.mark.parametrize("sign", ["語", "😀"])
def test_an_id_that_is_long_in_bytes(jobs: TestClient, sign: str) -> None:
    most = MOST_ID_BYTES // len(sign.encode())
    for count, status in ((most, 202), (most + 1, 400)):
        sent = {"instances": [{"id": sign * count, "image": DOT}], "model": "tiny"}
        answer = jobs.post("/v1/jobs", content=json.dumps(sent), headers=JSON)
        assert answer.status_code == status, answer.text
        if status == 400:
            check(answer, 400, "malformed-request", "bytes in UTF-8; at most 2500 are allowed")
        else:
            jobs.delete(f"/v1/jobs/{answer.json()['id']}")


@pytest.mark.slow
def test_what_comes_in_is_bounded_together(tmp_path: Path) -> None:
    """Lines without an end, of callers who take their time."""
    head = (
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
        b"Content-Length: 4000000\r\n\r\n"
    )
    with (
        staged(
            "calm", jobs=str(tmp_path), max_body_bytes="2000000", max_bodies_bytes="5000000"
        ) as stage,
        http(stage) as client,
    ):
        with ExitStack() as scope:
            three = [
                scope.enter_context(socket.create_connection(("127.0.0.1", stage.port)))
                for _ in range(3)
            ]
            for one in three:
                one.sendall(head + b" " * 2_000_000)
            answered, _, _ = select.select(three, [], [], 20)
            assert [one.recv(12) for one in answered] == [b"HTTP/1.1 503"]
        body = lines([{"image": DOT}])
        sent = partial(client.post, "/v1/jobs", content=body, headers=NDJSON)
        waiting.until(lambda: sent().status_code == 202, 20)
