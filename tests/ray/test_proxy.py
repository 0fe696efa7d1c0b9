"""The gate in Serve's proxy, around a proxy of our own making. It needs no Ray."""

from __future__ import annotations

import pytest
from starlette.middleware import Middleware
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from service.features.ray.proxy import Gate, gate
from tests.service.http.test_bad_input import check

pytestmark = pytest.mark.slow


class Proxy:
    """Answers as it is told, as Serve's proxy does."""

    def __init__(self) -> None:
        self.status, self.kind, self.body = 200, "application/json", b"{}"
        self.reads = True
        self.heard: list[str] = []
        self.scope: Scope = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        while self.reads:
            message = await receive()
            self.heard.append(message["type"])
            if message["type"] == "http.disconnect":
                return  # as Serve's does: with no answer
            if not message.get("more_body"):
                break
        if self.status:
            head = [(b"content-type", self.kind.encode())]
            await send({"type": "http.response.start", "status": self.status, "headers": head})
            await send({"type": "http.response.body", "body": self.body})


@pytest.fixture
def proxy() -> Proxy:
    return Proxy()


@pytest.fixture
def client(proxy: Proxy) -> TestClient:
    return TestClient(Gate(proxy, max_bytes=10, max_bytes_in_all=15))


def test_what_the_service_answers_is_left_as_it_is(proxy: Proxy, client: TestClient) -> None:
    answer = client.post("/", content=b"0123456789")
    assert (answer.status_code, answer.content) == (200, b"{}")
    proxy.status, proxy.kind, proxy.body = 429, "application/problem+json", b'{"a": 1}'
    answer = client.post("/")
    assert (answer.status_code, answer.json()) == (429, {"a": 1})
    proxy.status, proxy.kind = 400, "text/plain; charset=utf-8"  # a preflight's
    assert client.post("/").content == b'{"a": 1}'


@pytest.mark.parametrize(
    ("said", "status", "kind", "retry"),
    [
        (404, 404, "unknown-route", None),
        (408, 504, "deadline-exceeded", None),
        (429, 429, "queue-full", "1"),
        (500, 500, "internal-error", None),
        (503, 503, "unavailable", "1"),
        (0, 503, "unavailable", "1"),  # nothing: the replica is lost
    ],
)
def test_what_serve_says_in_text_is_a_problem(
    proxy: Proxy, client: TestClient, said: int, status: int, kind: str, retry: str | None
) -> None:
    proxy.status, proxy.kind, proxy.body = said, "text/plain; charset=utf-8", b"Serve's words"
    answer = client.get("/", headers={"X-Request-ID": "mine"})
    check(answer, status, kind)
    assert answer.headers.get("retry-after") == retry
    assert answer.headers["x-request-id"] == "mine"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_bodies_are_bounded(proxy: Proxy, client: TestClient) -> None:
    check(client.post("/", content=b"01234567890"), 413, "body-too-large", "has 11 bytes")
    assert proxy.heard == ["http.disconnect"]  # nothing of it went on
    proxy.heard.clear()
    chunks = iter([b"01234", b"56789", b"x"])
    check(client.post("/", content=chunks), 413, "body-too-large", "at most 10")
    assert proxy.heard[-1] == "http.disconnect"
    proxy.heard.clear()
    assert client.post("/", content=b"0123456789").status_code == 200  # nothing is held any more


@pytest.mark.parametrize(
    ("given", "kept"), [(b"mine-1", True), (b"a b", False), (b"\xff", False), (b"x" * 129, False)]
)
def test_names_that_would_do_harm_are_replaced(
    proxy: Proxy, client: TestClient, given: bytes, kept: bool
) -> None:
    client.get("/", headers=[(b"X-Request-ID", given)])
    (name,) = [value for key, value in proxy.scope["headers"] if key == b"x-request-id"]
    assert (name == given) == kept
    assert kept or len(name) == 36


def test_headers_that_are_for_serve_are_taken_away(proxy: Proxy, client: TestClient) -> None:
    headers = {"X-Request-Timeout-Seconds": "-1", "X-Request-Disconnect-Disabled": "?1", "A": "b"}
    client.get("/", headers=headers)
    names = {key for key, _ in proxy.scope["headers"]}
    assert b"a" in names
    assert not names & {b"x-request-timeout-seconds", b"x-request-disconnect-disabled"}


def test_the_limits_are_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADCAM_MAX_BODY_BYTES", "123")
    (found,) = gate()
    assert isinstance(found, Middleware)
    made: object = found.cls
    assert made is Gate
    assert found.kwargs == {"max_bytes": 123, "max_bytes_in_all": 250_000_000}
