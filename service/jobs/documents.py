"""The JSON documents that describe jobs and their results."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from pydantic import ConfigDict, Field

from service.audit.documents import Audit
from service.core.choices import JobKind, JobState
from service.core.glossary import TERMS
from service.core.schemas import Explanation, Open, Prediction, ProblemDocument
from service.jobs.records import Job


class Counts(Open):
    """Numbers of images."""

    total: int = Field(examples=[1000])
    done: int = Field(description="Images that have a result.", examples=[310])
    failed: int = Field(description="Images that have a problem.", examples=[4])
    left: int = Field(examples=[686])


class JobDocument(Open):
    id: str = Field(examples=["019acd1b2f008a4be1c95a0df7b2"])
    kind: JobKind = Field(
        "explain", description="`explain`, or `audit` of a job that `POST /v1/audits` began."
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
        None, description="When it and its results are removed; absent until it has ended."
    )
    rate: float | None = Field(
        None, description="Images per second: lately, or of all.", examples=[25.1]
    )
    eta_seconds: float | None = Field(
        None, description="Until it is done, at that rate.", examples=[27.3]
    )
    stalled: str | None = Field(None, description="Why it does not go on.")
    warnings: list[str] | None = None


class AuditDocument(JobDocument):
    """An audit: the job, and the summary of its photos."""

    kind: JobKind = Field("audit", examples=["audit"])
    audit: Audit


class JobList(Open):
    jobs: list[JobDocument]
    next: str | None = Field(None, description="Where there are more, the address of them.")


class ItemAnswer(Open):
    """The answer of `:explain` for one instance."""

    index: int = Field(description="Which of the job's instances, from 0.", examples=[3])
    item: str = Field(description="The instance's id.", examples=["cats/a.jpg"])
    prediction: Prediction | None = None
    explanations: list[Explanation] | None = None


class ItemResult(ItemAnswer):
    """A line of results: an answer, or a problem."""

    cursor: int = Field(
        description="1, 2, 3 … in the order in which items were finished.", examples=[17]
    )
    error: str | None = None
    problem: ProblemDocument | None = None


class ClusteredClass(Open):
    """The class that maps explain."""

    index: int | None = Field(None, description=TERMS["target_index"], examples=[285])
    label: str = Field(description="The target in words.", examples=["Egyptian cat"])


class ClusterPlace(Open):
    """Centre of a mean map's heat, from the left and the top."""

    x: float = Field(description="Share of the width, 0 … 1.", examples=[0.93])
    y: float = Field(description="Share of the height, 0 … 1.", examples=[0.93])


class MapCluster(Open):
    """Maps of one class whose heat lies alike."""

    cluster: int = Field(
        description="Its number in the class, from 0, the most suspicious one first.", examples=[0]
    )
    suspect: bool = Field(
        description=(
            "Whether the maps suggest that the model looks at something else than the class, such "
            "as a watermark. It is a reason to look at the photos, and no proof."
        ),
        examples=[True],
    )
    reasons: list[str] = Field(
        description="What is true of it, in short.",
        examples=[["same pattern", "own place", "border", "isolated"]],
    )
    sentences: list[str] = Field(
        description="The same as sentences.",
        examples=[["the heat has one pattern at one fixed place"]],
    )
    items: list[str] = Field(
        description="The items whose maps are in it.", examples=[["cats/a.jpg", "cats/b.jpg"]]
    )
    numbers: list[int] = Field(
        description="Of each of these items, which of its explanations it is, from 0.",
        examples=[[0, 0]],
    )
    mean: list[list[float]] = Field(
        description="Mean of the maps, row by row, at most 14 × 14, each value 0 … 1.",
        examples=[[[0.02, 0.1], [0.1, 0.97]]],
    )
    place: ClusterPlace
    border: float = Field(
        description="Mean share of the heat near the border, 0 … 1; 0.36 for an even map.",
        examples=[0.71],
    )
    tightness: float = Field(
        description="Mean share of a map's heat that lies as in all of the cluster, 0 … 1.",
        examples=[0.86],
    )


class ClustersOfClass(Open):
    model_config = ConfigDict(frozen=True, serialize_by_alias=True, validate_by_name=True)

    class_: ClusteredClass = Field(alias="class")
    maps: int = Field(description="Number of its maps, one of each item.", examples=[312])
    note: str | None = Field(
        None, description="Why the maps are not split into clusters; absent if they are."
    )
    clusters: list[MapCluster]


class JobClusters(Open):
    """The clusters of a job's maps, the classes with suspect clusters first."""

    classes: list[ClustersOfClass]


def describe_job(
    job: Job, *, rate: float | None, stalled: str | None, retention_seconds: float
) -> JobDocument:
    left = job.total - job.settled
    going = rate is not None and rate > 0 and not job.ended
    expires = None if job.finished is None else _time(job.finished + retention_seconds)
    return JobDocument(
        id=job.id,
        kind=job.kind,
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
