"""Metrics for Prometheus: fixed names, few labels, one registry per app."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

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
            "Time spent in room (waiting for memory), decode, preprocess, queue, "
            "forward_backward, render",
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

        self.worker_restarts = Counter(
            "gradcam_worker_restarts",
            "Workers replaced, because they hung or ended",
            ["model"],
            registry=self._registry,
        )
        self.connections = Gauge(
            "gradcam_connections", "Connections that are open", registry=self._registry
        )
        ProcessCollector(registry=self._registry)

    def forget(self, model: str) -> None:
        """Drop the series of a model that was removed."""
        for metric in (
            self.model_ready,
            self.queue_depth,
            self.worker_restarts,
            self.batch_size,
            self.answers,
        ):
            metric.remove_by_labels({"model": model})

    def render(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self._registry)
