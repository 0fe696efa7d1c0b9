"""Metrics for Prometheus: fixed names, few labels, one registry per app.

If the environment variable PROMETHEUS_MULTIPROC_DIR names a folder, the metrics are those of all
processes of the service: each writes its own into files in that folder, also those of a process
that has ended.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from service import __version__

Own = TypeVar("Own")
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
CLEARED = math.nan
"""Value of a gauge's series that no longer has a value; `render` leaves such series out.
`Gauge.remove` works only if one process keeps the metrics in memory. If several processes keep them
in files, prometheus_client cannot remove a series and would show its last value for ever."""
FOLDER = "PROMETHEUS_MULTIPROC_DIR"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counters, gauges and histograms of one service."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        counter = partial(Counter, registry=self._registry)
        histogram = partial(Histogram, registry=self._registry)
        gauge = partial(Gauge, registry=self._registry, multiprocess_mode="livemostrecent")
        self.requests = counter(
            "gradcam_requests", "Requests answered", ["route", "method", "status"]
        )
        self.request_seconds = histogram(
            "gradcam_request_seconds",
            "Time from a request's first byte to its answer's last",
            ["route"],
            buckets=SECONDS,
        )
        self.phase_seconds = histogram(
            "gradcam_phase_seconds",
            "Time spent in room (waiting for memory), decode, preprocess, queue, "
            "forward_backward, render",
            ["phase"],
            buckets=SECONDS,
        )
        self.batch_size = histogram(
            "gradcam_batch_size",
            "Images in one forward pass",
            ["model"],
            buckets=(1, 2, 4, 8, 16, 32, 64, 128),
        )
        self.answers = counter(
            "gradcam_answers",
            "Answers for images, by origin: made, joined (shared with an answer in progress), "
            "remembered (from the cache)",
            ["model", "how"],
        )
        self.queue_depth = gauge("gradcam_queue_depth", "Images waiting", ["model"])
        self.admission_limit = gauge(
            "gradcam_admission_limit",
            "Requests that may be in progress, in all processes that receive requests together",
            ["model"],
        )
        self.admission_delay = gauge(
            "gradcam_admission_delay_seconds",
            "Requests in progress, divided by the answers a second",
            ["model"],
            multiprocess_mode="livemax",
        )
        self.rejected = counter("gradcam_rejected", "Requests refused", ["reason"])
        self.model_ready = gauge(
            "gradcam_model_ready", "1 once a model is loaded, warm and its worker alive", ["model"]
        )
        self.worker_restarts = counter(
            "gradcam_worker_restarts",
            "Workers that were replaced because they, or their process, hung or ended",
            ["model"],
        )
        self.build_info = gauge(
            "gradcam_build_info",
            "1, with the versions of the service and of Python",
            ["version", "python"],
            multiprocess_mode="max",
        )
        self.build_info.labels(version=__version__, python=platform.python_version()).set(1)
        self.connections = gauge("gradcam_connections", "Connections that are open")
        self.count_connections: Callable[[], int] = lambda: 0
        """Returns the number of connections that are open."""
        self._own: dict[Callable[[CollectorRegistry], Any], Any] = {}
        self._folder = os.environ.get(FOLDER)
        if self._folder is None:
            ProcessCollector(registry=self._registry)

    def own(self, kind: Callable[[CollectorRegistry], Own]) -> Own:
        """Return the metrics of a feature, which are made when they are first asked for.

        Args:
            kind: makes them in a registry.
        """
        if kind not in self._own:
            self._own[kind] = kind(self._registry)
        made: Own = self._own[kind]
        return made

    def measure(self) -> None:
        """Bring those gauges up to date that show what another part of the process counts."""
        self.connections.set(self.count_connections())

    def count_restart(self, models: Iterable[str]) -> None:
        """Count the workers of models as replaced, because their process has died."""
        for model in models:
            self.worker_restarts.labels(model=model).inc()

    def render(self, models: Collection[str]) -> bytes:
        """Return the metrics in Prometheus' text format.

        Args:
            models: names of the models. Series of other models, which were removed, are left out,
                and so are those that were cleared.
        """
        return generate_latest(self._of(models))

    def samples(self, models: Collection[str]) -> Iterator[Sample]:
        """Yield the values that `render` writes."""
        for metric in self._of(models).collect():
            yield from metric.samples

    def _of(self, models: Collection[str]) -> _OfModels:
        self.measure()
        if self._folder is not None:
            return _of_folder(Path(self._folder), models)
        return _OfModels(self._registry, models)


def render_folder(folder: Path, models: Collection[str]) -> bytes:
    """Return the metrics that several processes write into a folder: see `Metrics.render`."""
    return generate_latest(_of_folder(folder, models))


def _of_folder(folder: Path, models: Collection[str]) -> _OfModels:
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(folder))  # type: ignore[no-untyped-call]
    registry.register(_Processes(folder))
    return _OfModels(registry, models)


class _OfModels:
    """A registry without the series of models that no longer exist, and without those that were
    cleared."""

    def __init__(self, registry: CollectorRegistry, models: Collection[str]) -> None:
        self._registry = registry
        self._models = models

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [
                sample
                for sample in metric.samples
                if ("model" not in sample.labels or sample.labels["model"] in self._models)
                and not math.isnan(sample.value)
            ]
            yield metric


class _Processes(Collector):
    """Processor time, memory and open files of each process that writes metrics into a folder and
    is alive. Their sum would fall when one dies, which a counter must not."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        merged: dict[str, Metric] = {}
        for pid in sorted(
            {int(file.stem.rpartition("_")[2]) for file in self._folder.glob("*.db")}
        ):
            with suppress(OSError):  # the process has just ended
                for metric in ProcessCollector(pid=partial(int, pid), registry=None).collect():
                    known = merged.setdefault(metric.name, metric)
                    samples = [
                        sample._replace(labels={"pid": str(pid)}) for sample in metric.samples
                    ]
                    known.samples = samples if known is metric else known.samples + samples
        yield from merged.values()
