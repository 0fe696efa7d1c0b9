"""Bodies with a Content-Encoding, at every way in."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from httpx2 import Response
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from service.core.errors import BodyTooLarge, Overloaded
from service.core.metrics import Metrics
from service.http.access import Access
from service.http.encodings import PIECE
from service.http.middleware import LimitBody
from service.limits.body_budget import BodyBudget
from service.settings import Settings
from tests.service.conftest import encoded, noise, running_app
from tests.service.features.open_inference.test_routes import image
from tests.service.http.test_bad_input import check
from tests.service.http.test_overload import FRAGILE

PHOTO = encoded(noise(8, 8))
MODEL = "/v1/models/fragile"
LIMIT = 100_000
ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "GZip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "identity": bytes,
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    jobs = tmp_path_factory.mktemp("jobs")
    settings = Settings(max_body_bytes=LIMIT, max_job_bytes=3 * LIMIT, jobs=jobs)
    settings = settings.model_copy(
        update={"platform": "sagemaker", "routes": {"/invocations": f"{MODEL}:explain"}}
    )
    with running_app(settings, [FRAGILE]) as client:
        yield client


JSON: dict[str, Any] = {"Content-Type": "application/json"}
WAYS: dict[str, tuple[str, bytes, dict[str, str]]] = {
    "a photo": (f"{MODEL}:explain", PHOTO, {"Content-Type": "image/png"}),
    "JSON": (
        f"{MODEL}:predict",
        json.dumps({"instances": [{"image": {"b64": image(PHOTO)["data"][0]}}]}).encode(),
        JSON,
    ),
    "the Open Inference Protocol": (
        "/v2/models/fragile/infer",
        json.dumps({"inputs": [image(PHOTO)]}).encode(),
        JSON,
    ),
    "SageMaker": ("/invocations", PHOTO, {"Content-Type": "application/x-image"}),
    "a job": (
        "/v1/jobs?model=fragile",
        json.dumps({"id": "a", "image": {"b64": image(PHOTO)["data"][0]}}).encode(),
        {"Content-Type": "application/x-ndjson"},
    ),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> tuple[str, bytes, dict[str, str]]:
    return WAYS[request.param]


def send(
    client: TestClient, way: tuple[str, bytes, dict[str, str]], encoding: str, body: bytes
) -> Response:
    path, _, headers = way
    return client.post(path, content=body, headers={**headers, "Content-Encoding": encoding})


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_encoded_body_is_read_at_every_way_in(
    served: TestClient, way: tuple[str, bytes, dict[str, str]], encoding: str
) -> None:
    path, body, headers = way
    plain = served.post(path, content=body, headers=headers)
    assert plain.status_code in (200, 202), plain.text
    answer = send(served, way, encoding, ENCODINGS[encoding](body))
    assert answer.status_code == plain.status_code, answer.text


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "gzip;q=1"])
def test_another_encoding_is_refused_with_those_that_there_are(
    served: TestClient, way: tuple[str, bytes, dict[str, str]], encoding: str
) -> None:
    refused = send(served, way, encoding, way[1])
    assert refused.status_code == 415
    assert refused.headers["accept-encoding"] == "gzip, deflate"
    assert "gzip or by deflate" in refused.json()["detail"]
    assert encoding in refused.json()["detail"]


BROKEN = {
    "not encoded": PHOTO,
    "cut off": gzip.compress(PHOTO)[:-9],
    "of a wrong sum": gzip.compress(PHOTO)[:-8] + bytes(8),
    "followed by more": gzip.compress(PHOTO) + b"more",
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_body_that_is_not_what_it_says_is_refused(served: TestClient, case: str) -> None:
    refused = send(served, WAYS["a photo"], "gzip", BROKEN[case])
    check(refused, 400, "malformed-request", "gzip")


def test_an_empty_body_is_an_empty_one(served: TestClient) -> None:
    refused = send(served, WAYS["a photo"], "gzip", b"")
    check(refused, 400, "malformed-request", "empty")


@pytest.mark.parametrize("size", [LIMIT + 1, 100_000_000])
def test_a_body_that_is_too_large_when_decoded_is_refused(
    served: TestClient, way: tuple[str, bytes, dict[str, str]], size: int
) -> None:
    size = size if way is not WAYS["a job"] else size + 3 * LIMIT
    refused = send(served, way, "gzip", gzip.compress(bytes(size)))
    assert refused.status_code == 413
    assert "bytes" in refused.json()["detail"]


async def received(
    body: bytes, *, most: int, budget: BodyBudget, metrics: Metrics, streamed: bool = False
) -> list[int]:
    """Sizes of the pieces that an app receives, behind the middleware, until it is refused."""
    sizes: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        more = True
        while more:
            message = await receive()
            sizes.append(len(message["body"]))
            more = message["more_body"]

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def nowhere(message: Message) -> None:
        raise AssertionError

    limited = LimitBody(
        app,
        max_bytes=0 if streamed else most,
        body_budget=budget,
        max_streamed_bytes=most if streamed else 0,
        metrics=metrics,
    )
    state = {"access": Access("explain", streams=streamed)}
    scope = {"type": "http", "headers": [(b"content-encoding", b"gzip")], "state": state}
    try:
        await limited(scope, receive, nowhere)
    except (BodyTooLarge, Overloaded) as problem:
        sizes.append(-problem.status)
    return sizes


@pytest.mark.anyio
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_bomb_is_decoded_up_to_the_limit_and_no_further(streamed: bool) -> None:
    metrics = Metrics()
    sizes = await received(
        gzip.compress(bytes(50_000_000)),
        most=10 * PIECE,
        budget=BodyBudget(100_000_000, metrics),
        metrics=metrics,
        streamed=streamed,
    )
    assert sizes == [PIECE] * 10 + [-413]


@pytest.mark.anyio
async def test_the_decoded_bytes_count_for_the_budget_of_all_bodies() -> None:
    metrics = Metrics()
    budget = BodyBudget(4 * PIECE, metrics)
    bomb = gzip.compress(bytes(50_000_000))
    sizes = await received(bomb, most=10**9, budget=budget, metrics=metrics)
    assert sizes == [PIECE] * 4 + [-503]
    again = await received(bomb, most=10**9, budget=budget, metrics=metrics)
    assert again == sizes, "the bytes of a refused body are given back"


def test_the_client_of_triton_compresses(served: TestClient) -> None:
    """As `tritonclient` does with `request_compression_algorithm`: JSON, then tensors."""
    tensor = len(PHOTO).to_bytes(4, "little") + PHOTO
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "image",
                    "shape": [1],
                    "datatype": "BYTES",
                    "parameters": {"binary_data_size": len(tensor)},
                }
            ]
        }
    ).encode()
    for name in ("gzip", "deflate"):
        answer = served.post(
            "/v2/models/fragile/infer",
            content=ENCODINGS[name](head + tensor),
            headers={"Content-Encoding": name, "Inference-Header-Content-Length": str(len(head))},
        )
        assert answer.status_code == 200, answer.text
