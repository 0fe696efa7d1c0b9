"""Schemas of the query parameters of job routes."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema

from service.core.choices import ArchiveFormat, JobState
from service.pipeline.parameters import Parameters

Absent = SkipJsonSchema[None]
"""None that the schema leaves out, because a query has no null."""
IdempotencyKey = Annotated[str, Field(min_length=1, max_length=200, pattern="^[ -~]+$")]


class JobParameters(Parameters):
    """The parameters of `:explain` and the model, in a query or a form."""

    model: str | Absent = Field(None, min_length=1, description="Without it the service's first.")


class SubmitQuery(JobParameters):
    idempotency_key: IdempotencyKey | Absent = Field(
        None,
        alias="Idempotency-Key",
        description="The same key with the same job gives the same job again.",
        json_schema_extra={"in": "header"},
    )


class ListQuery(BaseModel):
    limit: int = Field(50, ge=1, le=200, description="How many.")
    before: str | Absent = Field(None, description="Those that came before this one.")
    state: JobState | Absent = Field(None, description="Those of this state.")


class CancelQuery(BaseModel):
    purge: bool = Field(False, description="Remove it.")


class ResultsQuery(BaseModel):
    after: int = Field(0, ge=0, description="Lines after this cursor.")
    limit: int = Field(10_000, ge=1, le=10_000, description="Most lines.")


class ArchiveQuery(BaseModel):
    format: ArchiveFormat = Field(
        "zip", description="A picture for each map and lines about them, or a table."
    )
