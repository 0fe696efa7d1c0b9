"""The metrics of jobs."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class JobMetrics:
    """The gauge of the unfinished jobs, and the counter of the images that are finished."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.jobs = Gauge(
            "gradcam_jobs",
            "Unfinished jobs, by state: waiting, running",
            ["state"],
            registry=registry,
            multiprocess_mode="livemostrecent",
        )
        self.items = Counter(
            "gradcam_job_items",
            "Images of jobs that are finished, by outcome: done, failed",
            ["outcome"],
            registry=registry,
        )
        for outcome in ("done", "failed"):  # a rate has a start only if the series is there before
            self.items.labels(outcome=outcome)
