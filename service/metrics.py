"""What Prometheus sees: fixed names, few labels, one registry per app."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counters, gauges and histograms of one service."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "gradcam_requests",
            "Requests answered",
            ["route", "method", "status"],
            registry=self._registry,
        )
        self.request_seconds = Histogram(
            "gradcam_request_seconds",
            "Time from a request's first byte to its answer's last",
            ["route"],
            buckets=SECONDS,
            registry=self._registry,
        )
        self.phase_seconds = Histogram(
            "gradcam_phase_seconds",
            "Time spent in decode, preprocess, queue, forward_backward, render",
            ["phase"],
            buckets=SECONDS,
            registry=self._registry,
        )
        self.batch_size = Histogram(
            "gradcam_batch_size",
            "Images in one forward pass",
            ["model"],
            buckets=(1, 2, 4, 8, 16, 32, 64, 128),
            registry=self._registry,
        )
        self.answers = Counter(
            "gradcam_answers",
            "Answers to images, by how: made, joined (one that was being made), remembered",
            ["model", "how"],
            registry=self._registry,
        )
        self.queue_depth = Gauge(
            "gradcam_queue_depth", "Images waiting", ["model"], registry=self._registry
        )
        self.rejected = Counter(
            "gradcam_rejected", "Requests refused", ["reason"], registry=self._registry
        )
        self.model_ready = Gauge(
            "gradcam_model_ready",
            "1 once a model is loaded, warm and its worker alive",
            ["model"],
            registry=self._registry,
        )

    def render(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self._registry)
