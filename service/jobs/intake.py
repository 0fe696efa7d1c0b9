"""A request that brings a job: read as it streams in, on the disk before it is accepted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

from python_multipart.multipart import parse_options_header
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request

from service.core.errors import (
    BodyTooLarge,
    InvalidParameter,
    MalformedRequest,
    Problem,
    UnsupportedMediaType,
)
from service.core.pool import Pool
from service.core.settings import Settings
from service.engine.manager import ModelManager
from service.jobs.collector import Collector
from service.jobs.errors import no_room
from service.jobs.folder import Folder
from service.jobs.listing import Listing
from service.jobs.readers import ArchiveReader, FormReader, JsonReader, LinesReader, Reader
from service.jobs.records import Job, NewJob, parameters_json
from service.jobs.submission import Submissions
from service.limits.body_budget import BodyBudget
from service.pipeline.parameters import Parameters
from service.pipeline.resolve import questions_of
from service.pipeline.targets import MAX_MAPS
from service.pipeline.validation import read_parameters

ZIP = ("application/zip", "application/x-zip-compressed")
TAR = ("application/x-tar", "application/gzip", "application/x-gzip")
ACCEPTED = (
    "application/json, application/x-ndjson, multipart/form-data, application/zip, "
    "application/x-tar or application/gzip"
)
LONGEST_KEY = 200
MOST_PARAMETERS = 250_000
"""Bytes: they are part of whatever is said of a job."""
Result = TypeVar("Result")


class Intake:
    """Takes jobs in.

    Args:
        runner: in whose name; what it has not accepted goes when it dies.
        holding: of bodies, those of other requests, too.
        pool: for what blocks.
    """

    def __init__(
        self,
        *,
        runner: str,
        folder: Folder,
        submissions: Submissions,
        register: Listing,
        manager: ModelManager,
        body_budget: BodyBudget,
        settings: Settings,
        pool: Pool,
    ) -> None:
        self._runner = runner
        self._folder = folder
        self._submissions = submissions
        self._register = register
        self._manager = manager
        self._body_budget = body_budget
        self._settings = settings
        self._pool = pool
        self._undone: set[str] = set()

    async def receive(self, request: Request, owner: str) -> Job:
        """Read a job; when this returns, it is on the disk, and will be worked on.

        Args:
            owner: the name of the caller's key, "" without.

        Raises:
            Problem: if it is not accepted. Then nothing of it is left.
        """
        idempotency = _idempotency(request)
        query = request.query_params
        model = query.get("model")
        given = ImmutableMultiDict(
            [(name, value) for name, value in query.multi_items() if name != "model"]
        )
        base = read_parameters(Parameters, given, "/query")
        draft = NewJob(self._model(model), "", base, owner, idempotency)
        job, room = await self._run(lambda: self._begin(draft))
        accepted = None
        try:
            order = await self._read(request, job, draft, room)
            most = self._settings.jobs_bytes
            accepted = await self._run(
                lambda: self._submissions.accept(job, **order, most_bytes=most)
            )
            return accepted
        finally:
            if accepted is None or accepted.id != job:
                # Also where the caller has gone: what was received is removed all the same.
                await asyncio.shield(self._run(lambda: self._discard(job)))

    async def _read(self, request: Request, job: str, draft: NewJob, room: int) -> dict[str, Any]:
        """What is to be accepted, as `Arrivals.accept` takes it; its images are on the disk."""
        with ExitStack() as scope:
            blob = scope.enter_context(self._folder.blob(job, room))
            collector = Collector(
                job,
                blob,
                self._submissions,
                max_items=self._settings.max_job_items,
                max_image_bytes=self._settings.max_body_bytes,
            )
            reader = self._reader(request, collector, scope)
            hold = scope.enter_context(self._body_budget.share())
            async for data in request.stream():
                if data:
                    await self._run(lambda data=data: reader.feed(data))  # type: ignore[misc]
                    hold(reader.held + collector.held)
            await self._run(reader.end)
            await self._run(collector.close)
            new = self._asked(draft, reader)
            parameters = parameters_json(new.parameters)
            if len(parameters) > MOST_PARAMETERS:
                raise BodyTooLarge(
                    f"the parameters of all instances have {len(parameters)} bytes in JSON; at "
                    f"most {MOST_PARAMETERS} are allowed: send smaller pictures with them"
                )
            digest = collector.digest(new.model, parameters)
            return {
                "new": new,
                "total": collector.count,
                "size": blob.size + collector.told + len(parameters),
                "digest": digest,
                "warnings": collector.warnings,
            }

    def _asked(self, draft: NewJob, reader: Reader) -> NewJob:
        """What the query and the body ask for together; what the body says wins."""
        model = draft.model if reader.model is None else self._model(reader.model)
        parameters = draft.parameters
        origins = dict.fromkeys(parameters.model_fields_set, "/query")
        if reader.fields:
            fields = ImmutableMultiDict(
                [(name, value) for name, values in reader.fields.items() for value in values]
            )
            parameters = _over(parameters, read_parameters(Parameters, fields, "/form"))
            origins |= dict.fromkeys(reader.fields, "/form")
        if reader.parameters is not None:
            origins |= dict.fromkeys(reader.parameters.model_fields_set, "/parameters")
            parameters = _over(parameters, reader.parameters)
        if parameters.maps > MAX_MAPS:
            raise InvalidParameter(
                f"each image would have {parameters.maps} maps; at most {MAX_MAPS} are allowed"
            )
        served = self._manager.replicas(model).model
        try:
            questions_of(served, parameters)  # a label that no class has is told now, and once
        except Problem as problem:
            where = origins.get(problem.parameter or "")
            raise (problem.at(f"{where}/{problem.parameter}") if where else problem) from None
        return NewJob(model, served.fingerprint, parameters, draft.owner, draft.idempotency)

    def _reader(self, request: Request, collector: Collector, scope: ExitStack) -> Reader:
        header = request.headers.get("content-type", "")
        media, options = parse_options_header(header)
        kind = media.decode("latin-1").strip().lower()
        if kind == "application/json":
            return JsonReader(collector, self._settings.max_body_bytes)
        if kind == "application/x-ndjson":
            # An image as large as may be, in base64; one that is somewhat larger fails alone.
            return LinesReader(collector, 2 * self._settings.max_body_bytes)
        if kind == "multipart/form-data":
            return FormReader(collector, options.get(b"boundary"))
        if kind in ZIP or kind in TAR:
            file = scope.enter_context(self._folder.incoming())
            form = "zip" if kind in ZIP else "tar"
            return ArchiveReader(collector, file, form, self._settings.max_job_bytes)
        said = f"Content-Type is {header[:120]!r}" if header else "there is no Content-Type"
        raise UnsupportedMediaType(f"{said}; send {ACCEPTED}")

    def _model(self, named: str | None) -> str:
        name = next(iter(self._manager.names), "") if named is None else named
        self._manager.replicas(name)  # or there is none, or it is not ready
        return name

    def _begin(self, new: NewJob) -> tuple[str, int]:
        """The job's id, and how many bytes of the disk it may take."""
        settings = self._settings
        if new.idempotency is not None and self._submissions.knows(new.owner, new.idempotency):
            # It only looks for the answer that it missed, which is no reason to turn it away.
            most, left = 2 * settings.max_jobs, settings.max_job_bytes
        else:
            most, left = settings.max_jobs, settings.jobs_bytes - self._submissions.bytes()
        if left <= 0:
            raise no_room(settings.jobs_bytes - left, settings.jobs_bytes)
        return self._submissions.begin(self._runner, new, most), left

    def clear_up(self) -> None:
        """Remove what was not accepted and could not be removed then."""
        for job in list(self._undone):
            self._discard(job)

    def _discard(self, job: str) -> None:
        try:
            # It may be accepted though it was not heard: the database went away in that moment.
            if self._register.leave(job, accepted=False):
                self._folder.remove(job)
                self._register.remove(job)
        except Problem:
            self._undone.add(job)
        else:
            self._undone.discard(job)

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await self._pool.run(work)


def _over(base: Parameters, given: Parameters) -> Parameters:
    set_by = {name: getattr(given, name) for name in given.model_fields_set}
    return base.model_copy(update=set_by)


def _idempotency(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is None or (0 < len(key) <= LONGEST_KEY and key.isascii() and key.isprintable()):
        return key
    raise MalformedRequest(
        f"Idempotency-Key has {len(key)} characters; 1 to {LONGEST_KEY} printable ASCII ones are "
        "allowed"
    )
