"""The setting of traces."""

from __future__ import annotations

from pydantic import Field

from service.core.settings import CoreSettings


class TraceSettings(CoreSettings):
    """Whether there are traces."""

    traces: bool = Field(
        False, description="send OpenTelemetry traces to OTEL_EXPORTER_OTLP_ENDPOINT"
    )
