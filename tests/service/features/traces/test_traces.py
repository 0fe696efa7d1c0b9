"""Traces: of a request a span, and in it one of each phase; and nothing where nobody asks."""

from __future__ import annotations

import base64
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from starlette.testclient import TestClient
from torch import Tensor, nn

from service import __version__
from service.core.errors import ConfigError
from service.features.traces.export import tracing
from service.models.catalog import ModelEntry
from service.settings import Settings
from tests.service.conftest import encoded, noise, running_app
from tests.service.http.test_overload import FRAGILE, TINY
from tests.zoo.hostile import Slow

UNHURRIED = ModelEntry(
    name="unhurried",
    source="factory:tests.service.features.traces.test_traces:unhurried",
    max_batch=1,
    **TINY,
)
EXPLAIN = "/v1/models/fragile:explain"
EXPLAIN_SLOWLY = "/v1/models/unhurried:explain"
PASS_SECONDS = 0.5
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SENT = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
PNG = {"Content-Type": "image/png"}
PHASES = ["room", "decode", "preprocess", "queue", "forward_backward", "render"]


BEGUN = threading.Event()
RAN: list[tuple[int, int]] = []
"""Begin and end of each forward pass, on the clock of spans."""


class Paced(Slow):
    """Says when a forward pass begins and ends."""

    def forward(self, x: Tensor) -> Tensor:
        BEGUN.set()
        begun, output = time.time_ns(), super().forward(x)
        RAN.append((begun, time.time_ns()))
        return output


PACED = Paced(0.0)
"""A forward pass takes its time, once all is loaded."""


def unhurried() -> nn.Module:
    return PACED.eval()


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with running_app(Settings(), [FRAGILE, UNHURRIED]) as client:
        PACED.seconds = PASS_SECONDS
        yield client
        PACED.seconds = 0.0


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Keeps what would be sent."""
    kept = InMemorySpanExporter()
    monkeypatch.setattr(trace_exporter, "OTLPSpanExporter", lambda: kept)
    return kept


@contextmanager
def traced(kept: InMemorySpanExporter) -> Iterator[list[ReadableSpan]]:
    """The spans of the block, once it is left."""
    found: list[ReadableSpan] = []
    with tracing():
        yield found
    found.extend(kept.get_finished_spans())


def ask(client: TestClient, seed: int = 0, path: str = EXPLAIN, **headers: str) -> str:
    """An id of the request that was answered."""
    photo = encoded(noise(8, 8, seed))
    response = client.post(path, content=photo, headers={**PNG, **headers})
    assert response.status_code == 200
    return response.headers["x-request-id"]


def server_spans(found: list[ReadableSpan]) -> list[ReadableSpan]:
    return [span for span in found if span.kind == SpanKind.SERVER]


def children(found: list[ReadableSpan], of: ReadableSpan) -> list[ReadableSpan]:
    return [span for span in found if span.parent and span.parent.span_id == of.context.span_id]


def check_within(inner: ReadableSpan, outer: ReadableSpan) -> None:
    (begun, ended), (first, last) = times(inner), times(outer)
    assert begun <= ended
    assert first <= begun, f"{inner.name} begins before its request"
    assert ended <= last, f"{inner.name} ends after its request"


def times(span: ReadableSpan) -> tuple[int, int]:
    """When it began and ended, in nanoseconds."""
    assert span.start_time
    assert span.end_time
    return span.start_time, span.end_time


def test_probes_are_no_spans(client: TestClient, spans: InMemorySpanExporter) -> None:
    with traced(spans) as found:
        for path in ("/healthz", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready"):
            assert client.get(path).status_code == 200
        assert client.get("/v1/models").status_code == 200
    assert [span.name for span in server_spans(found)] == ["GET /v1/models"]


def test_a_request_is_a_span_of_its_callers_trace(
    client: TestClient, spans: InMemorySpanExporter
) -> None:
    with traced(spans) as found:
        named = ask(client, seed=1, **SENT)
    (server,) = server_spans(found)
    assert server.name == "POST /v1/models/{model}:explain"
    assert f"{server.context.trace_id:032x}" == TRACE
    assert server.parent
    assert f"{server.parent.span_id:016x}" == PARENT
    assert dict(server.attributes or {}) == {
        "http.request.method": "POST",
        "http.route": "/v1/models/{model}:explain",
        "http.response.status_code": 200,
        "gradcam.request_id": named,
    }
    assert server.resource.attributes["service.name"] == "gradcam-service"
    assert server.resource.attributes["service.version"] == __version__


def test_its_phases_are_children_that_lie_within_it_one_after_the_other(
    client: TestClient, spans: InMemorySpanExporter
) -> None:
    with traced(spans) as found:
        ask(client, seed=2, path=EXPLAIN_SLOWLY, **SENT)
    (server,) = server_spans(found)
    phases = sorted(children(found, server), key=times)
    assert [span.name for span in phases] == PHASES
    assert len(found) == 1 + len(PHASES)
    for span in phases:
        check_within(span, server)
        assert f"{span.context.trace_id:032x}" == TRACE
        assert span.kind == SpanKind.INTERNAL
    passed = phases[PHASES.index("forward_backward")]
    assert dict(passed.attributes or {}) == {"batch_size": 1}
    begun, ended = times(passed)
    forward, returned = RAN[-1]
    assert ended - begun >= returned - forward


def test_a_request_of_several_images_has_the_phases_of_each(
    client: TestClient, spans: InMemorySpanExporter
) -> None:
    images = [
        {"image": {"b64": base64.b64encode(encoded(noise(8, 8, s))).decode()}} for s in (3, 4)
    ]
    with traced(spans) as found:
        assert client.post(EXPLAIN, json={"instances": images}).status_code == 200
    (server,) = server_spans(found)
    assert server.parent is None
    names = [span.name for span in children(found, server)]
    assert sorted(names) == sorted([*PHASES, *PHASES])


def test_requests_at_once_keep_their_phases_apart(
    client: TestClient, spans: InMemorySpanExporter
) -> None:
    with traced(spans) as found, ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda seed: ask(client, seed), range(10, 14)))
    assert len(server_spans(found)) == 4
    assert len({server.context.trace_id for server in server_spans(found)}) == 4
    for server in server_spans(found):
        inner = children(found, server)
        assert sorted(span.name for span in inner) == sorted(PHASES)
        for span in inner:
            check_within(span, server)
            assert span.context.trace_id == server.context.trace_id


@pytest.mark.parametrize("joined", [False, True], ids=["remembered", "joined"])
def test_an_answer_that_others_asked_for_has_no_time_before_its_request(
    client: TestClient, spans: InMemorySpanExporter, joined: bool
) -> None:
    """Who comes while the forward pass is under way waits for the rest of it."""
    path, seed = EXPLAIN_SLOWLY, 20 + int(joined)
    with traced(spans) as found, ThreadPoolExecutor(1) as threads:
        BEGUN.clear()
        first = threads.submit(ask, client, seed, path)
        assert BEGUN.wait(30)
        if not joined:
            first.result()
        ask(client, seed, path, **SENT)
        first.result()
    (server,) = [s for s in server_spans(found) if f"{s.context.trace_id:032x}" == TRACE]
    for span in children(found, server):
        check_within(span, server)


@pytest.mark.parametrize(
    ("method", "path", "name", "status"),
    [
        ("GET", "/v1/models", "GET /v1/models", 200),
        ("GET", "/nothing/secret", "GET unmatched", 404),
        ("POST", "/v1/models/other:explain", "POST /v1/models/{model}:explain", 404),
        ("DELETE", "/v1/models/fragile", "DELETE unmatched", 403),
    ],
)
def test_what_is_refused_is_traced_too_and_no_address_is_told(
    client: TestClient,
    spans: InMemorySpanExporter,
    method: str,
    path: str,
    name: str,
    status: int,
) -> None:
    with traced(spans) as found:
        headers = {**PNG, "Authorization": "Bearer secret"}
        assert client.request(method, path, headers=headers).status_code == status
    (server,) = found
    assert server.name == name
    assert server.attributes
    assert server.attributes["http.response.status_code"] == status
    assert "secret" not in server.to_json()


@pytest.mark.parametrize("sent", ["", "00-xyz", f"00-{'0' * 32}-{PARENT}-01", "\xff" * 50])
def test_a_traceparent_that_is_none_begins_a_trace(
    client: TestClient, spans: InMemorySpanExporter, sent: str
) -> None:
    with traced(spans) as found:
        headers = [(b"traceparent", sent.encode("latin-1"))]
        assert client.get("/v1/models", headers=headers).status_code == 200
    (server,) = found
    assert server.parent is None
    assert server.context.trace_id


def test_without_tracing_nothing_is_recorded(
    client: TestClient, spans: InMemorySpanExporter
) -> None:
    ask(client, seed=30, **SENT)
    with traced(spans) as found:
        pass
    ask(client, seed=31, **SENT)
    assert found == []
    assert spans.get_finished_spans() == ()


def test_without_the_packages_it_is_a_mistake_in_the_configuration(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    said = r"GRADCAM_TRACES.*gradcam-service\[traces\]"
    with pytest.raises(ConfigError, match=said), tracing():
        raise AssertionError("it was entered")
    ask(client, seed=32)
