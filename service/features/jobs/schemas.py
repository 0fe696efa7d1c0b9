"""Schemas of JSON answers about jobs and their results."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal

from pydantic import Field
from typing_extensions import TypeAliasType

from service.core.schemas import Explanation, MapFacts, Open, Prediction, ProblemDocument

JobState = TypeAliasType("JobState", Literal["waiting", "running", "done", "cancelled"])
JobKind = TypeAliasType("JobKind", Literal["explain", "audit"])
ENDED: Final = ("done", "cancelled")


class Counts(Open):
    """Numbers of images."""

    total: int = Field(examples=[1000])
    done: int = Field(description="Images that have a result.", examples=[310])
    failed: int = Field(description="Images that have a problem.", examples=[4])
    left: int = Field(examples=[686])


class JobDocument(Open):
    id: str = Field(examples=["019acd1b2f008a4be1c95a0df7b2"])
    kind: JobKind = Field(
        "explain", description="`explain`, or `audit` for a job that `POST /v1/audits` started."
    )
    state: JobState = Field(examples=["running"])
    model: str = Field(examples=["efficientnet-lite0"])
    parameters: dict[str, Any] = Field(
        description="The parameters as they were sent.", examples=[{"fit": "squash"}]
    )
    counts: Counts
    created: datetime = Field(examples=["2026-11-21T20:00:00Z"])
    started: datetime | None = Field(None, examples=["2026-11-21T20:00:00.120000Z"])
    finished: datetime | None = None
    expires: datetime | None = Field(
        None,
        description="When the job and its results are removed; absent until the job has ended.",
    )
    rate: float | None = Field(
        None,
        description="Images per second: the latest ones, or all after the job has ended.",
        examples=[25.1],
    )
    eta_seconds: float | None = Field(
        None, description="Time until the job is done, at that rate.", examples=[27.3]
    )
    stalled: str | None = Field(
        None, description="Why the job makes no progress; absent while it does."
    )
    warnings: list[str] = Field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether the job has ended, so that no results will be added."""
        return self.state in ENDED


class JobList(Open):
    jobs: list[JobDocument]
    next: str | None = Field(
        None, description="The address of the next page; absent on the last one."
    )


class Item(Open):
    index: int = Field(description="Number of the job's instance, from 0.", examples=[3])
    item: str = Field(description="The instance's id.", examples=["cats/a.jpg"])
    prediction: Prediction | None = None


class ItemAnswer(Item):
    """The answer of `:explain` for one instance."""

    explanations: list[Explanation] | None = None


class ItemFacts(Item):
    """A line of results without maps: what is known of them, or a problem."""

    explanations: Sequence[MapFacts] | None = None
    cursor: int = Field(
        description="1, 2, 3 … in the order in which items were finished.", examples=[17]
    )
    error: str | None = None
    problem: ProblemDocument | None = None


class ItemResult(ItemFacts):
    """A line of results: an answer, or a problem."""

    explanations: list[Explanation] | None = None
