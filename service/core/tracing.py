"""OpenTelemetry traces: a span for each request, with a span for each phase in it.

Without a tracer, which a feature gives, it costs one function call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Span = Callable[..., None]
"""Function of (name, begun, ended, **attributes), with times in nanoseconds since 1970."""

_tracer: Any = None


@contextmanager
def recorded_by(tracer: Any) -> Iterator[None]:
    """Record spans by a tracer of OpenTelemetry while the block is open."""
    global _tracer
    _tracer = tracer
    try:
        yield
    finally:
        _tracer = None


@contextmanager
def request_span(
    method: str, headers: list[tuple[bytes, bytes]], *, is_probe: bool = False
) -> Iterator[Callable[..., None]]:
    """Open the span of a request, as a child of the span that its `traceparent` header names.
    Probes have none: they come every few seconds, and would hide the requests.

    Yields:
        A function (route, status, request_id) → None, to be called when these are known.
    """
    if _tracer is None or is_probe:
        yield lambda route, status, request_id: None
        return
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    sent = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    parent = TraceContextTextMapPropagator().extract(sent)
    with _tracer.start_as_current_span(method, context=parent, kind=SpanKind.SERVER) as span:

        def tell(route: str, status: int, request_id: str) -> None:
            span.update_name(f"{method} {route}")
            span.set_attribute("http.request.method", method)
            span.set_attribute("http.route", route)
            span.set_attribute("http.response.status_code", status)
            span.set_attribute("gradcam.request_id", request_id)

        yield tell


def phase_spans() -> Span | None:
    """Return what adds phases, from any thread, to the current task's span; None without tracer."""
    tracer = _tracer
    if tracer is None:
        return None
    from opentelemetry.context import get_current

    parent = get_current()

    def draw(name: str, begun: int, ended: int, **attributes: int) -> None:
        span = tracer.start_span(name, context=parent, start_time=begun, attributes=attributes)
        span.end(ended)

    return draw
