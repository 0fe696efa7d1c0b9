"""Query parameters of job routes: their schemas, and how they are read."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, Strict, ValidationError
from pydantic.json_schema import SkipJsonSchema
from starlette.requests import Request
from typing_extensions import TypeAliasType

from service.core.errors import InvalidParameter
from service.core.pydantic_errors import mistake, range_of
from service.features.jobs.schemas import JobState
from service.pipeline.parameters import Parameters

Query = TypeVar("Query", bound=BaseModel)
ArchiveFormat = TypeAliasType("ArchiveFormat", Literal["zip", "parquet"])


def _whole(sent: object) -> object:
    """Return the number that a text of decimal digits says; pydantic takes other texts, too."""
    plain = isinstance(sent, str) and sent.isascii() and sent.isdigit() and len(sent) <= 12
    return int(sent) if isinstance(sent, str) and plain else sent


def _truth(sent: object) -> object:
    return {"true": True, "false": False}.get(str(sent).lower(), sent)


Whole = Annotated[int, Strict(), BeforeValidator(_whole)]
# In this order pydantic writes the bounds into the schema, although the type is in a union.
Width = Annotated[int, Strict(), Field(ge=1, le=10_000), BeforeValidator(_whole)]
Truth = Annotated[bool, Strict(), BeforeValidator(_truth)]
Absent = SkipJsonSchema[None]
"""None that the schema leaves out, because a query has no null."""
IdempotencyKey = Annotated[str, Field(min_length=1, max_length=200, pattern="^[ -~]+$")]


class JobParameters(Parameters):
    """The parameters of `:explain` and the model, in a query or a form."""

    model: str | Absent = Field(None, min_length=1, description="Without it, the first model.")


class SubmitQuery(JobParameters):
    idempotency_key: IdempotencyKey | Absent = Field(
        None,
        alias="Idempotency-Key",
        description="A second request with the same key and the same job returns the first job.",
        json_schema_extra={"in": "header"},
    )


class ListQuery(BaseModel):
    limit: Whole = Field(50, ge=1, le=200, description="Largest number of jobs.")
    before: str | Absent = Field(None, description="Only jobs that were created before this job.")
    state: JobState | Absent = Field(None, description="Only jobs in this state.")


class CancelQuery(BaseModel):
    purge: Truth = Field(False, description="Remove the job.")


class ResultsQuery(BaseModel):
    after: Whole = Field(0, ge=0, le=2**31 - 1, description="Lines after this cursor.")
    limit: Whole = Field(10_000, ge=1, le=10_000, description="Largest number of lines.")
    maps: Truth = Field(
        True,
        description=(
            "With `false`, each explanation has what is known of its map, without `heatmap` and "
            "`overlay`: a line is then small, however large the photo is."
        ),
    )


class ResultQuery(BaseModel):
    width: Width | Absent = Field(
        None, description="Largest width of the picture in pixels; a wider one is reduced."
    )


class ArchiveQuery(BaseModel):
    format: ArchiveFormat = Field(
        "zip", description="A picture for each map and lines about them, or a table."
    )


def read_query(schema: type[Query], request: Request) -> Query:
    """Return a request's query. Parameters that the schema does not have are ignored.

    Raises:
        InvalidParameter: if a parameter is wrong; it says what is allowed.
    """
    sent = request.query_params
    try:
        return schema.model_validate(
            {name: sent[name] for name in schema.model_fields & sent.keys()}
        )
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        allowed = range_of(schema, name, "whole number") or mistake(first)
        raise InvalidParameter(
            f"{name} is {sent[name][:80]!r}: {allowed}", pointer=f"/query/{name}"
        ) from None
