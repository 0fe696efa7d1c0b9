"""The duration of each phase of a request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter, time_ns
from typing import Any

from service.backend.outcome import Outcome
from service.core.metrics import Metrics
from service.core.tracing import Span, phase_spans


@dataclass
class Timings:
    """Seconds per phase; for several images, those of the slowest image."""

    seconds: dict[str, float] = field(default_factory=dict)
    batch_size: int = 0
    _made: int = field(default_factory=time_ns)
    _span: Span | None = field(default_factory=phase_spans)
    """Records a phase in the trace of the request in which this object is made, if it has one."""

    @contextmanager
    def phase(self, name: str, metrics: Metrics) -> Iterator[None]:
        """Record the duration of the block, here, in the trace and in the metrics."""
        started, begun = perf_counter(), time_ns()
        try:
            yield
        finally:
            seconds = perf_counter() - started
            self.note(name, seconds)
            if self._span:
                self._span(name, begun, time_ns())
            metrics.phase_seconds.labels(phase=name).observe(seconds)

    def note(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = max(self.seconds.get(phase, 0.0), seconds)

    def note_outcome(self, outcome: Outcome[Any]) -> None:
        self.note("queue", outcome.queued_seconds)
        self.note("forward_backward", outcome.run_seconds)
        self.batch_size = max(self.batch_size, outcome.batch_size)
        if not self._span:
            return
        ended = time_ns()
        # A computation shared with other requests may have started before this request.
        begun = max(ended - round(outcome.run_seconds * 1e9), self._made)
        queued = max(begun - round(outcome.queued_seconds * 1e9), self._made)
        self._span("queue", queued, begun)
        self._span("forward_backward", begun, ended, batch_size=outcome.batch_size)

    @property
    def milliseconds(self) -> dict[str, float]:
        """Milliseconds per phase, to a tenth."""
        # A copy, because the threads of a request that was given up may still add phases.
        return {phase: round(each * 1000, 1) for phase, each in self.seconds.copy().items()}

    def header(self) -> str:
        """Return the value of a Server-Timing header, with durations in milliseconds."""
        entries = []
        for phase, spent in self.milliseconds.items():
            batch = f';desc="batch of {self.batch_size}"' if phase == "forward_backward" else ""
            entries.append(f"{phase};dur={spent}{batch}")
        return ", ".join(entries)
