"""OpenTelemetry traces of requests, sent to a collector."""
