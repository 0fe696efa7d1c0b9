"""The JSON schema of a job as a client sends it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import FailFast, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from service.core.errors import MalformedRequest, Problem, UnknownParameter
from service.core.pydantic_errors import mistake
from service.features.jobs.records import LONGEST_ID, Source
from service.pipeline.images import decode_base64
from service.pipeline.parameters import ExplainInstance, Parameters
from service.pipeline.targets import Photo, StrictModel
from service.pipeline.validation import parameter_problem

MOST_PATH = 2000
FORMS = ("b64", "url", "path", "uri")


class JobPhoto(Photo):
    """One photo: its bytes, or the location from which the service reads it."""

    path: str | None = Field(
        None,
        min_length=1,
        max_length=MOST_PATH,
        description="Its path below the service's folder of inputs.",
    )
    uri: str | None = Field(
        None,
        min_length=1,
        max_length=MOST_PATH,
        description="Its place in an object store that the service is set up to read, like "
        "`s3://bucket/key`.",
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> JobPhoto:
        if len([name for name in FORMS if getattr(self, name) is not None]) != 1:
            raise PydanticCustomError("image", "an image has b64, url, path or uri, one of them")
        return self

    @property
    def source(self) -> Source | None:
        """Location of the photo; None if its bytes are given."""
        for name in FORMS[1:]:
            value = getattr(self, name)
            if value is not None:
                return {name: value}
        return None

    def data(self) -> bytes | Problem:
        try:
            return decode_base64(self.b64 or "")
        except ValueError as error:
            return MalformedRequest(f"the image is not valid base64: {error}")


class JobInstance(ExplainInstance):
    """One photo of a job, with its own parameters if they differ from those of the job."""

    image: JobPhoto
    id: str | None = Field(
        None,
        min_length=1,
        max_length=LONGEST_ID,
        description="It names the instance's result; without one it is the instance's number.",
    )

    @property
    def own(self) -> dict[str, Any]:
        return self.model_dump(
            mode="json",
            include=set(Parameters.own),
            exclude_none=True,
            exclude_unset=True,
            by_alias=True,
        )


class JobRequest(StrictModel):
    model: str | None = Field(
        None, min_length=1, max_length=200, description="Without it the service's first."
    )
    instances: Annotated[list[JobInstance], FailFast()] = Field(min_length=1)
    parameters: Parameters = Field(default_factory=Parameters)


def manifest_problem(error: ValidationError, where: str = "") -> Problem:
    """Return the problem of an invalid manifest, or of its line at the pointer `where`."""
    first = error.errors()[0]
    way = [str(part)[:80] for part in first["loc"]]
    if way[:1] == ["parameters"] and len(way) > 1:
        return parameter_problem(error, Parameters, "/parameters", depth=1)
    if way[:1] == ["instances"] and len(way) > 2 and way[2] in Parameters.own:
        return parameter_problem(error, Parameters, f"/instances/{way[1]}", depth=2)
    if where and way[:1] and way[0] in Parameters.own:
        return parameter_problem(error, Parameters, where)
    pointer = where + "".join(f"/{part}" for part in way[:4])
    if first["type"] == "extra_forbidden":
        return UnknownParameter(f"there is no field {way[-1]!r} at {pointer}", pointer=pointer)
    return MalformedRequest(f"at {pointer or '/'}: {mistake(first)}", pointer=pointer)
