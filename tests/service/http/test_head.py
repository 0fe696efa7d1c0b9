"""HEAD wherever GET answers."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from tests.service.conftest import MODEL


@pytest.mark.parametrize(
    "path",
    ["/", "/docs", "/openapi.json", "/healthz", "/readyz", "/metrics", "/v1/models", MODEL,
     f"{MODEL}/layers", "/v2", "/v1/models/unknown", "/nothing", "/v1/jobs"],
)  # fmt: skip
def test_it_has_the_status_and_the_headers_and_no_body(client: TestClient, path: str) -> None:
    given, head = client.get(path), client.head(path)
    assert head.status_code == given.status_code
    assert head.content == b""
    rest = {"x-request-id", "date", "server-timing"}
    if path == "/metrics":
        rest.add("content-length")
    assert {k: v for k, v in head.headers.items() if k not in rest} == {
        k: v for k, v in given.headers.items() if k not in rest
    }


def test_what_is_only_posted_has_no_head(client: TestClient) -> None:
    response = client.head(f"{MODEL}:explain")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert response.content == b""
    assert client.post("/metrics").headers["allow"] == "GET, HEAD"
