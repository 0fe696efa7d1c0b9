"""The service's documents about jobs and their results, as the client parses them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from service.client.answers import parsed
from service.client.explanation import Explanation
from service.client.failures import ServiceError, failure
from service.core import schemas
from service.core.audit_schemas import Audit
from service.core.schemas import Open

State = Literal["waiting", "running", "done", "cancelled"]
ENDED = ("done", "cancelled")


class Counts(Open):
    """Numbers of a job's items: `done` have a result, `failed` a problem, `left` have neither."""

    total: int
    done: int
    failed: int
    left: int


class JobDocument(Open):
    """The state of a job."""

    id: str
    kind: Literal["explain", "audit"] = "explain"
    state: State
    model: str
    parameters: dict[str, Any] = Field(default_factory=dict)
    counts: Counts
    created: datetime
    started: datetime | None = None
    finished: datetime | None = None
    expires: datetime | None = None
    rate: float | None = None
    """Images per second."""
    eta_seconds: float | None = None
    stalled: str | None = None
    """Reason why the job does not progress; None while it does."""
    warnings: list[str] = Field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether the job has ended, so that no results will be added."""
        return self.state in ENDED


class AuditDocument(JobDocument):
    """The state of a job that is an audit, and the summary of the photos measured by now."""

    audit: Audit


class JobList(Open):
    """One page of jobs, the latest first."""

    jobs: list[JobDocument]
    next: str | None = None


class ResultLine(Open):
    """The result of one item, as the service writes it."""

    cursor: int
    index: int
    item: str
    prediction: schemas.Prediction | None = None
    explanations: list[schemas.Explanation] = Field(default_factory=list)
    problem: schemas.ProblemDocument | None = None


@dataclass(frozen=True, eq=False)
class Result:
    """The result of one item of a job.

    Attributes:
        cursor: number of results up to and including this one; `results(after=cursor)` continues
            after it.
        index: index of the item in the submitted images, from 0.
        item: id of the item.
        prediction: the model's prediction; None if the item failed.
        explanations: one map for each target and layer; empty if the item failed.
        failure: reason why the item failed; None if it did not.
    """

    cursor: int
    index: int
    item: str
    prediction: schemas.Prediction | None
    explanations: list[Explanation]
    failure: ServiceError | None


def result_of(line: bytes) -> Result:
    """Return the result in a line of NDJSON.

    Raises:
        UnexpectedAnswer: if the line does not fit the schema.
    """
    read = parsed(ResultLine, line)
    return Result(
        cursor=read.cursor,
        index=read.index,
        item=read.item,
        prediction=read.prediction,
        explanations=[Explanation(each) for each in read.explanations],
        failure=None if read.problem is None else failure(read.problem),
    )
