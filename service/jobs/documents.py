"""What answers about jobs look like, in JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import Field

from service.core.schemas import Explanation, Open, Prediction, ProblemDocument
from service.jobs.records import Job


class Counts(Open):
    """Of images."""

    total: int
    done: int = Field(description="Those that have a result.")
    failed: int = Field(description="Those that have a problem.")
    left: int


class JobDocument(Open):
    id: str
    state: Literal["waiting", "running", "done", "cancelled"]
    model: str
    parameters: dict[str, Any] = Field(description="As they were sent.")
    counts: Counts
    created: datetime
    started: datetime | None = None
    finished: datetime | None = None
    expires: datetime | None = Field(
        None, description="When it and its results are removed; absent until it has ended."
    )
    rate: float | None = Field(None, description="Images per second: lately, or of all.")
    eta_seconds: float | None = Field(None, description="Until it is done, at that rate.")
    stalled: str | None = Field(None, description="Why it does not go on.")
    warnings: list[str] | None = None


class JobList(Open):
    jobs: list[JobDocument]
    next: str | None = Field(None, description="Where there are more, the address of them.")


class ItemAnswer(Open):
    """What `:explain` answers to one instance."""

    index: int = Field(description="Which of the job's instances, from 0.")
    item: str = Field(description="The instance's id.")
    prediction: Prediction | None = None
    explanations: list[Explanation] | None = None


class ItemResult(ItemAnswer):
    """A line of results: an answer, or why there is none."""

    cursor: int = Field(description="1, 2, 3 … in the order in which items were finished.")
    error: str | None = None
    problem: ProblemDocument | None = None


def describe_job(
    job: Job, *, rate: float | None, stalled: str | None, retention_seconds: float
) -> JobDocument:
    left = job.total - job.settled
    going = rate is not None and rate > 0 and not job.ended
    expires = None if job.finished is None else _time(job.finished + retention_seconds)
    return JobDocument(
        id=job.id,
        state=job.state,
        model=job.model,
        parameters=json.loads(job.parameters),
        counts=Counts(total=job.total, done=job.done, failed=job.failed, left=left),
        created=_time(job.created),
        started=None if job.started is None else _time(job.started),
        finished=None if job.finished is None else _time(job.finished),
        expires=expires,
        rate=None if rate is None else round(rate, 3),
        eta_seconds=round(left / rate, 1) if going and rate else None,
        stalled=None if job.ended else stalled,
        warnings=list(job.warnings) or None,
    )


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(round(seconds, 3), UTC)
