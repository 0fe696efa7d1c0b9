"""What the service says of jobs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from service.client.answers import parsed
from service.client.explanation import Explanation
from service.client.failures import ServiceError, failure
from service.core import schemas
from service.core.schemas import Open

State = Literal["waiting", "running", "done", "cancelled"]
ENDED = ("done", "cancelled")


class Counts(Open):
    """Of a job's items: `done` have a result, `failed` a problem, `left` neither."""

    total: int
    done: int
    failed: int
    left: int


class JobDocument(Open):
    """How a job stands."""

    id: str
    state: State
    model: str
    parameters: dict[str, Any] = Field(default_factory=dict)
    counts: Counts
    created: datetime
    started: datetime | None = None
    finished: datetime | None = None
    expires: datetime | None = None
    rate: float | None = None
    """Images a second."""
    eta_seconds: float | None = None
    stalled: str | None = None
    """Why it does not go on."""
    warnings: list[str] = Field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether nothing will be added to it."""
        return self.state in ENDED


class JobList(Open):
    """The latest first."""

    jobs: list[JobDocument]
    next: str | None = None


class ResultLine(Open):
    """One item's, as the service writes it."""

    cursor: int
    index: int
    item: str
    prediction: schemas.Prediction | None = None
    explanations: list[schemas.Explanation] = Field(default_factory=list)
    problem: schemas.ProblemDocument | None = None


@dataclass(frozen=True, eq=False)
class Result:
    """What came out of one item of a job.

    Attributes:
        cursor: how many results there were with it; `results(after=cursor)` goes on from here.
        index: of the item in what was submitted, from 0.
        item: its id.
        prediction: what the model said of it; None where it failed.
        explanations: a map for each target and layer.
        failure: why there is none.
    """

    cursor: int
    index: int
    item: str
    prediction: schemas.Prediction | None
    explanations: list[Explanation]
    failure: ServiceError | None


def result_of(line: bytes) -> Result:
    """A line of NDJSON as Python has it.

    Raises:
        UnexpectedAnswer: if it is none.
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
