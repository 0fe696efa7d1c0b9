"""Routes that submit, list, follow and cancel jobs, and return their results."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import TypeVar

from fastapi import APIRouter
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from service import __version__
from service.core.errors import (
    InsufficientStorage,
    InternalError,
    InvalidParameter,
    QueueFull,
    Unavailable,
)
from service.core.schemas import dump
from service.features.jobs import documentation
from service.features.jobs.cluster_schemas import JobClusters
from service.features.jobs.errors import NoMaps, NotFinished, UnknownItem, UnknownJob
from service.features.jobs.export import parquet, zipped
from service.features.jobs.host import Jobs, JobService
from service.features.jobs.queries import (
    ArchiveQuery,
    CancelQuery,
    ListQuery,
    ResultQuery,
    ResultsQuery,
    read_query,
)
from service.features.jobs.records import Finished, Job, storable
from service.features.jobs.results import line_of, picture_of_line
from service.features.jobs.schemas import ItemResult, JobDocument, JobList
from service.http.access import needs
from service.http.contract import EVENTS, JSON, UNCHANGED, answers, takes, worked_example
from service.http.middleware import CLIENT_LEFT
from service.http.operation import NDJSON
from service.http.responses import choose, list_of, matches
from service.pipeline.rendering import PICTURES

CSV = "text/csv"
PAGE = 100
"""Largest number of result lines that are read at a time."""
PIECE_BYTES = 1_000_000
"""Lines of at least this size are sent before more lines are read."""
LOOK_SECONDS = 0.5
QUIET_SECONDS = 10.0
"""Time after which an idle event stream sends a comment, so that no proxy closes it as dead."""
LONGEST_WAIT = 60
CLUSTERS_AT_ONCE = 8
"""Number of requests for clusters that wait or are computed in one process."""
RESULTS_AT_ONCE = 2
"""Number of single results that are read, and drawn as pictures, at a time in one process: one of
12 megapixels takes 100 MB meanwhile."""
Result = TypeVar("Result")


class ItemId(PathConvertor):
    """The rest of a path, line breaks included."""

    regex = "(?s:.*)"


def make_jobs_router(jobs: Jobs) -> APIRouter:
    register_url_convertor("item", ItemId())
    router, routes = APIRouter(tags=["jobs"]), JobRoutes(jobs)
    router.post(
        "/v1/jobs",
        summary="Explain many images when there is time",
        description=(
            "Accepts inline images, a form, a zip or tar, or lines that name images. The service "
            "writes them to the disk as they arrive and then answers, so an accepted job is not "
            "lost. An item that fails does not affect the others."
        ),
        status_code=202,
        response_model=JobDocument,
        responses=documentation.ACCEPTED,
        openapi_extra=documentation.SUBMIT,
    )(routes.submit_job)
    router.get(
        "/v1/jobs",
        summary="The jobs, the latest first",
        response_model=JobList,
        responses=answers(JobList, problems=[401, 403, 422, 429, 503]),
        openapi_extra=takes(ListQuery),
    )(routes.list_jobs)
    router.get(
        "/v1/jobs/{job}",
        summary="A job's progress",
        response_model=JobDocument,
        responses=answers(JobDocument, problems=documentation.READING_JOBS),
    )(routes.get_job)
    router.delete(
        "/v1/jobs/{job}",
        summary="Cancel a job, or remove it",
        description=(
            "Finished results stay until the job expires; a job that has ended does not change. "
            "With `purge=true` the job and its results are removed."
        ),
        response_model=JobDocument,
        responses={
            **answers(
                JobDocument,
                example={**worked_example(JobDocument), "state": "cancelled"},
                problems=[*documentation.READING_JOBS, 507],
            ),
            204: {"description": "The job is removed."},
        },
        openapi_extra=takes(CancelQuery),
    )(routes.cancel_job)
    router.get(
        "/v1/jobs/{job}/events",
        summary="A job's progress, as server-sent events",
        description=(
            "`progress` whenever something has changed, `end` when the job has ended; the data of "
            "each event is the job as `GET /v1/jobs/{job}` shows it."
        ),
        response_class=Response,
        responses=answers(
            forms={EVENTS: 'event: progress\ndata: {"id": "…"}\n\n'},
            problems=[*documentation.READING_JOBS, 406],
        ),
    )(routes.follow_job)
    router.get(
        "/v1/jobs/{job}/results",
        summary="The finished results of a job, one per line",
        description=(
            "The results, in the order in which the items were finished. Send `X-Next-Cursor` as "
            "`after` in the next request. A running job returns the results that are finished so "
            "far."
        ),
        response_class=Response,
        responses={
            **answers(
                forms={NDJSON: documentation.RESULT_LINE},
                headers=["Cache-Control", "ETag", "X-Next-Cursor"],
                problems=[*documentation.READING_JOBS, 406],
            ),
            **UNCHANGED,
        },
        openapi_extra=takes(ResultsQuery),
    )(routes.list_results)
    router.get(
        "/v1/jobs/{job}/results/{item:item}",
        summary="The result of one item",
        response_model=ItemResult,
        responses={
            **answers(
                ItemResult,
                dict.fromkeys(PICTURES),
                example=documentation.RESULT,
                headers=["Cache-Control", "ETag"],
                problems=[*documentation.READING_JOBS, 406, 409],
            ),
            **UNCHANGED,
        },
        openapi_extra=takes(ResultQuery),
    )(routes.get_result)
    router.get(
        "/v1/jobs/{job}/archive",
        summary="All results of a job that has ended, in one file",
        response_class=Response,
        responses=answers(
            forms=dict.fromkeys(("application/zip", "application/vnd.apache.parquet")),
            problems=[*documentation.READING_JOBS, 406, 409],
        ),
        openapi_extra=takes(ArchiveQuery),
    )(routes.download_archive)
    router.get(
        "/v1/jobs/{job}/clusters",
        summary="Clusters of the maps of a job that has ended, the suspect ones first",
        description=(
            "The maps of each class, grouped by where their heat lies. A cluster is suspect if its "
            "maps have one pattern at a place of their own, as maps of photos with a watermark do. "
            "Only the maps are evidence, because the photos may be gone; the report of "
            "`gradcam batch` looks at the photos, too. Ten thousand small maps take about half a "
            "minute; a process clusters one job at a time. `text/csv` has a line for each map of "
            "the classes with at least 30; there, an id or a class that begins with =, +, -, @, a "
            "tab or a carriage return has an apostrophe before it, so that a spreadsheet does not "
            "take it for a formula."
        ),
        response_model=JobClusters,
        responses=answers(
            JobClusters,
            {CSV: documentation.CLUSTER_LINES},
            problems=[*documentation.READING_JOBS, 406, 409, 429],
        ),
    )(routes.get_clusters)
    return router


class JobRoutes:
    """The routes of jobs, with the jobs that they share.

    FastAPI shows the docstrings of such methods to callers, so they have none: the table above says
    what each answers.
    """

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        # Clusters take a core for up to a minute; other requests need the pool's other threads.
        self._clustering = asyncio.Lock()
        self._places = asyncio.Semaphore(CLUSTERS_AT_ONCE)
        self._reading = asyncio.Semaphore(RESULTS_AT_ONCE)

    @needs("explain", streams=True)
    async def submit_job(self, request: Request) -> Response:
        return await accepted(self._jobs.place, request, "explain")

    @needs("read")
    async def list_jobs(self, request: Request) -> Response:
        place = self._jobs.place
        query = read_query(ListQuery, request)
        limit, state = query.limit, query.state
        before = None if query.before is None else storable(query.before)
        listed = await place.pool.run(
            lambda: place.listing.latest(_sees(request), before=before, state=state, most=limit + 1)
        )
        following = None
        if len(listed) > limit:
            listed = listed[:limit]
            also = f"&state={state}" if state else ""
            root = request.scope.get("root_path", "")
            following = f"{root}/v1/jobs?limit={limit}&before={listed[-1].id}{also}"
        documents = [await place.describe(job) for job in listed]
        return Response(dump(JobList(jobs=documents, next=following)), media_type=JSON)

    @needs("read")
    async def get_job(self, job: str, request: Request) -> Response:
        place = self._jobs.place
        document = await place.describe(await find_job(place, job, request))
        return Response(dump(document), media_type=JSON, headers=retry_after(document))

    @needs("explain")
    async def cancel_job(self, job: str, request: Request) -> Response:
        place = self._jobs.place
        query = read_query(CancelQuery, request)
        await find_job(place, job, request)
        await place.pool.run(lambda: place.listing.cancel(job))
        place.runner.drop(job)
        if query.purge:
            # The janitor removes the files later, because a million results take a while.
            await place.pool.run(lambda: place.listing.leave(job))
            return Response(status_code=204)
        document = await place.describe(await find_job(place, job, request))
        return Response(dump(document), media_type=JSON)

    @needs("read")
    async def follow_job(self, job: str, request: Request) -> Response:
        place = self._jobs.place
        choose(request.headers.get("accept"), [EVENTS])
        document = await place.describe(await find_job(place, job, request))
        return StreamingResponse(
            self._events(place, document, request),
            media_type=EVENTS,
            headers={"Cache-Control": "no-store"},
        )

    @needs("read")
    async def list_results(self, job: str, request: Request) -> Response:
        place = self._jobs.place
        choose(request.headers.get("accept"), [NDJSON])
        query = read_query(ResultsQuery, request)
        known = await find_job(place, job, request)
        last = min(query.after + query.limit, known.settled)
        maps = query.maps or place.instead(known) is not None  # an audit's results have no maps
        headers = {
            **_kept(job, query.after, last, maps),
            "X-Next-Cursor": str(max(last, query.after)),
        }
        if _has(request, headers):
            return Response(status_code=304, headers=headers)
        lines = _lines(place, known, query.after, last, maps)
        return StreamingResponse(lines, media_type=NDJSON, headers=headers)

    @needs("read")
    async def get_result(self, job: str, item: str, request: Request) -> Response:
        place = self._jobs.place
        form = choose(request.headers.get("accept"), [JSON, *PICTURES])
        width = read_query(ResultQuery, request).width
        if width is not None and form == JSON:
            raise InvalidParameter(
                f"width is {width}, but JSON has no width; ask for {', '.join(PICTURES)}",
                pointer="/query/width",
            )
        known = await find_job(place, job, request)
        finished = await place.pool.run(lambda: place.result_store.result(known, storable(item)))
        if finished is False:
            raise UnknownItem(f"job {job} has no item {item[:200]!r}")
        if finished is True:
            if known.ended:
                raise NotFinished(f"job {job} was cancelled before item {item[:200]!r} was done")
            raise NotFinished(f"item {item[:200]!r} is not done yet; try again", retry_after=1)

        headers = {**_kept(job, item, form, width), "Vary": "Accept"}
        if _has(request, headers):
            return Response(status_code=304, headers=headers)

        def answer() -> bytes:
            line = line_of(place.folder, known, finished)
            return line if form == JSON else picture_of_line(line, form, width)

        try:
            async with self._reading:
                body = await place.pool.run(answer)
        except InternalError:
            await find_job(place, job, request)  # if it was removed meanwhile, its files are gone
            raise
        return Response(body, media_type=form, headers=headers)

    @needs("read")
    async def download_archive(self, job: str, request: Request) -> Response:
        place = self._jobs.place
        form = read_query(ArchiveQuery, request).format
        media_type = "application/zip" if form == "zip" else "application/vnd.apache.parquet"
        choose(request.headers.get("accept"), [media_type])
        known = await find_job(place, job, request)
        await _must_have_ended(place, known)
        if form == "parquet" and (instead := place.instead(known)):
            raise InvalidParameter(
                f"{instead}; a Parquet file holds maps, so take format=zip",
                pointer="/query/format",
            )
        pack = zipped if form == "zip" else parquet
        headers = {"Content-Disposition": f'attachment; filename="{job}.{form}"'}
        body = pack(place.result_store, place.folder, known)
        return StreamingResponse(body, media_type=media_type, headers=headers)

    @needs("read")
    async def get_clusters(self, job: str, request: Request) -> Response:
        place = self._jobs.place
        form = choose(request.headers.get("accept"), [JSON, CSV])
        known = await find_job(place, job, request)
        if instead := place.instead(known):
            raise NoMaps(instead)
        await _must_have_ended(place, known)
        if self._places.locked():
            raise QueueFull(
                f"{CLUSTERS_AT_ONCE} requests for clusters are in progress, which is the maximum; "
                "try again",
                retry_after=LONGEST_WAIT,
            )
        async with self._places, self._clustering:
            if await request.is_disconnected():
                return Response(status_code=CLIENT_LEFT)
            try:
                if form == JSON:
                    body = await place.pool.run(lambda: dump(place.clusterings.document(known)))
                else:
                    table = await place.pool.run(lambda: place.clusterings.table(known))
                    body = table.encode("utf-8", "replace")
            except InternalError:
                await find_job(place, job, request)  # it may have been removed meanwhile
                raise
        return Response(body, media_type=form, headers={"Vary": "Accept"})

    async def _events(
        self, place: JobService, document: JobDocument, request: Request
    ) -> AsyncIterator[bytes]:
        told: bytes | None = None
        quiet = 0.0
        while not place.manager.draining:
            said = dump(document)
            if said != told:
                told, quiet = said, 0.0
                yield _event("progress", said)
            if document.ended:
                yield _event("end", said)
                return
            await asyncio.sleep(LOOK_SECONDS)
            quiet += LOOK_SECONDS
            if quiet >= QUIET_SECONDS:
                quiet = 0.0
                yield b": still there\n\n"
            document = await _now(place, document, request)


async def accepted(place: JobService, request: Request, kind: str) -> Response:
    """Receive a job, and return the answer that it is accepted.

    Raises:
        Problem: if it is not accepted.
    """
    job = await place.intake.receive(request, _owner(request), place.kinds[kind])
    request.scope["state"]["told"].update(model=job.model, images=job.total)
    place.runner.wake()
    document = await place.describe(job)
    address = f"/v1/{place.kinds[kind].folder}/{job.id}"
    headers = {"Location": address, "Retry-After": str(_wait(document))}
    return Response(dump(document), 202, media_type=JSON, headers=headers)


def retry_after(document: JobDocument) -> dict[str, str]:
    """Return the header that says when to ask again for a job that has not ended."""
    return {} if document.ended else {"Retry-After": str(_wait(document))}


def _kept(*answer: object) -> dict[str, str]:
    """Return the headers with which a caller keeps an answer about results, and asks whether it
    still holds. A result does not change once it is there.

    Args:
        answer: what the answer is of, and its form. The version is in the tag, because another
            one may write a result otherwise.
    """
    digest = hashlib.blake2b(repr((__version__, *answer)).encode(), digest_size=16)
    return {"ETag": f'W/"{digest.hexdigest()}"', "Cache-Control": "private, no-cache"}


def _has(request: Request, headers: dict[str, str]) -> bool:
    """Return whether the caller has the answer with these headers already."""
    return matches(list_of(request, "if-none-match"), headers["ETag"])


async def _must_have_ended(place: JobService, job: Job) -> None:
    """Raise NotFinished if the job waits or runs."""
    if not job.ended:
        raise NotFinished(
            f"job {job.id} is {job.state}, {job.settled} of {job.total} are done; try again, or "
            f"read /v1/jobs/{job.id}/results",
            retry_after=_wait(await place.describe(job)),
        )


async def _lines(
    place: JobService, job: Job, after: int, last: int, maps: bool
) -> AsyncIterator[bytes]:
    """Yield the job's results from `after` to `last`, with or without maps, as JSON lines in
    pieces. A piece has at least one line and ends with the line that makes it longer than
    `PIECE_BYTES`.

    Raises:
        UnknownJob: if the job was removed meanwhile. An answer that merely ended would look whole.
    """
    while after < last:
        start, count = after, min(PAGE, last - after)
        found = await place.pool.run(lambda: place.result_store.results(job, start, count))  # noqa: B023
        if len(found) < count:
            raise UnknownJob(f"job {job.id} was removed while its results were read")
        after += count
        while found:
            piece, found = await place.pool.run(lambda: _piece(place, job, found, maps))  # noqa: B023
            yield piece


def _piece(
    place: JobService, job: Job, found: list[Finished], maps: bool
) -> tuple[bytes, list[Finished]]:
    """Return the lines of the first results, and the results that are left."""
    lines: list[bytes] = []
    size = 0
    while len(lines) < len(found) and size < PIECE_BYTES:
        lines.append(line_of(place.folder, job, found[len(lines)], maps=maps) + b"\n")
        size += len(lines[-1])
    return b"".join(lines), found[len(lines) :]


def _event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


async def _now(place: JobService, job: JobDocument, request: Request) -> JobDocument:
    """Return the job's present state: unchanged if the database is unavailable or the disk is full,
    cancelled if the job was removed before it ended."""
    try:
        return await place.describe(await find_job(place, job.id, request))
    except UnknownJob:
        gone = {"state": "cancelled", "eta_seconds": None, "stalled": None}
        return job if job.ended else job.model_copy(update=gone)
    except (InsufficientStorage, Unavailable):
        return job


async def find_job(place: JobService, job: str, request: Request) -> Job:
    """Return a job that the caller may see.

    Raises:
        UnknownJob: if there is none.
    """
    return await place.pool.run(lambda: place.listing.get(storable(job), _sees(request)))


def _owner(request: Request) -> str:
    """Return the owner of the jobs that this caller submits: the name of the key, or ""."""
    return str(request.scope.get("state", {}).get("key", ""))


def _sees(request: Request) -> str | None:
    """Return the owner whose jobs this caller may see, or None if it may see all jobs."""
    state = request.scope.get("state", {})
    return None if state.get("admin") or "key" not in state else _owner(request)


def _wait(document: JobDocument) -> int:
    """Return the seconds after which the caller should ask again."""
    return min(max(round((document.eta_seconds or 0) / 4), 1), LONGEST_WAIT)
