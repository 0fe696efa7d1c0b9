"""Routes that submit audits of models, and return their summaries and reports."""

from __future__ import annotations

import asyncio
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from service.core.errors import Problem
from service.features.audit.schemas import AuditDocument
from service.features.audit.stored import Audits
from service.features.jobs.documentation import ACCEPTED, READING_JOBS, submission
from service.features.jobs.errors import NotFinished
from service.features.jobs.host import Jobs, JobService
from service.features.jobs.records import Job
from service.features.jobs.routes import accepted, find_job, retry_after
from service.features.jobs.schemas import JobDocument
from service.http.access import needs
from service.http.contract import JSON, answers
from service.http.responses import choose

HTML: Final = "text/html"
AUDIT: Final = "audit"
"""The kind of these jobs."""
SUBMIT: Final = submission(
    {
        "instances": [{"image": {"path": "cats/a.jpg"}, "target": "Egyptian cat"}],
        "parameters": {"method": ["gradcam", "layercam"]},
    }
)


class NotAnAudit(Problem):
    status = 404
    title = "The job is not an audit"


def make_audits_router(jobs: Jobs) -> APIRouter:
    router, routes = APIRouter(tags=["audits"]), AuditRoutes(jobs)
    router.post(
        "/v1/audits",
        summary="Measure which methods and layers explain a model",
        description=(
            "Takes photos as `POST /v1/jobs` does, at least twenty, and measures methods at layers "
            "on each: whether the map changes when the weights are random, whether its heat lies "
            "on the right photo of a grid, faithfulness, stability and time. An audit is a job: "
            "`/v1/jobs/{job}` follows, cancels and removes it, too. Parameters: `method` and "
            "`layer` (several; without them, the usual ones), `evaluate` (metrics), `target`, "
            "`fit`."
        ),
        status_code=202,
        response_model=JobDocument,
        responses=ACCEPTED,
        openapi_extra=SUBMIT,
    )(routes.submit_audit)
    router.get(
        "/v1/audits/{job}",
        summary="An audit's progress and summary",
        description="`audit` sums up the photos that have been measured so far.",
        response_model=AuditDocument,
        responses=answers(AuditDocument, problems=READING_JOBS),
    )(routes.get_audit)
    router.get(
        "/v1/audits/{job}/report",
        summary="The report of an audit, as a page",
        response_class=Response,
        responses=answers(forms={HTML: "<!doctype html>…"}, problems=[*READING_JOBS, 406, 409]),
    )(routes.get_report)
    return router


class AuditRoutes:
    """The routes of audits, with the jobs that they share.

    FastAPI shows the docstrings of such methods to callers, so they have none: the table above says
    what each answers.
    """

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._audits = Audits()
        # A summary of hundreds of photos takes a core for seconds; other requests need the pool's
        # other threads.
        self._summing = asyncio.Lock()

    @needs("explain", streams=True)
    async def submit_audit(self, request: Request) -> Response:
        return await accepted(self._jobs.place, request, AUDIT)

    @needs("read")
    async def get_audit(self, job: str, request: Request) -> Response:
        place = self._jobs.place
        audit = await _audit(place, job, request)
        document = await place.describe(audit)
        async with self._summing:
            summary = await place.pool.run(lambda: self._audits.summary(place, audit))
        whole = AuditDocument(**document.model_dump(), audit=summary)
        # Of the job what is null is left out; in the summary it says that a number does not exist.
        absent = {name for name in JobDocument.model_fields if getattr(document, name) is None}
        body = whole.model_dump_json(exclude=absent)
        return Response(body, media_type=JSON, headers=retry_after(document))

    @needs("read")
    async def get_report(self, job: str, request: Request) -> Response:
        place = self._jobs.place
        choose(request.headers.get("accept"), [HTML])
        audit = await _audit(place, job, request)
        if not audit.done and not audit.ended:
            raise NotFinished(f"no photo of audit {job} is measured yet; try again", retry_after=1)
        async with self._summing:
            page = await place.pool.run(lambda: self._audits.report(place, audit))
        return HTMLResponse(
            page.encode("utf-8", "replace"), headers={"X-Content-Type-Options": "nosniff"}
        )


async def _audit(place: JobService, job: str, request: Request) -> Job:
    """Return the audit of this id.

    Raises:
        UnknownJob: if there is no job of this id.
        NotAnAudit: if the job explains images.
    """
    audit = await find_job(place, job, request)
    if audit.kind != AUDIT:
        raise NotAnAudit(f"job {job} is not an audit; /v1/jobs/{job} shows it")
    return audit
