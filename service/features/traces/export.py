"""Sending of traces: the spans of `service.core.tracing`, through OpenTelemetry's SDK."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from cam.errors import to_install
from service import __version__
from service.core.errors import ConfigError
from service.core.settings import CoreSettings
from service.core.tracing import recorded_by
from service.features.traces.settings import TraceSettings


def opened(settings: CoreSettings) -> AbstractContextManager[None]:
    """Return what traces the requests of a process while it is entered."""
    assert isinstance(settings, TraceSettings)
    return tracing() if settings.traces else nullcontext()


@contextmanager
def tracing() -> Iterator[None]:
    """Trace requests while the block is open. Leaving it sends the remaining spans.

    Raises:
        ConfigError: if the packages are not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError(
            f"GRADCAM_TRACES needs packages of its own; {to_install('traces')}"
        ) from None
    resource = Resource.create({SERVICE_NAME: "gradcam-service", SERVICE_VERSION: __version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    try:
        with recorded_by(provider.get_tracer("gradcam-service", __version__)):
            yield
    finally:
        provider.shutdown()
