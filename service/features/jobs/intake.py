"""The intake of jobs: reading a request as it streams in and storing it before it is accepted."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from python_multipart.multipart import parse_options_header
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request

from service.backend.interface import Backend
from service.core.errors import (
    BodyTooLarge,
    InvalidParameter,
    MalformedRequest,
    Problem,
    UnsupportedMediaType,
)
from service.core.pool import Pool
from service.features.jobs.collector import Collector
from service.features.jobs.errors import no_room
from service.features.jobs.executor import KindOfJob
from service.features.jobs.job_files import Folder
from service.features.jobs.listing import Listing
from service.features.jobs.readers import ArchiveReader, FormReader, JsonReader, LinesReader, Reader
from service.features.jobs.records import Job, NewJob, parameters_json
from service.features.jobs.settings import JobSettings
from service.features.jobs.submission import Submissions
from service.limits.body_budget import BodyBudget
from service.pipeline.parameters import Parameters
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
"""Largest size of a job's parameters in JSON, in bytes: every description of the job holds them."""


class Intake:
    """Receives jobs.

    Args:
        runner: name of this process's runner. If it dies, the jobs that it was receiving are
            removed.
        body_budget: the memory budget for request bodies, shared with all other requests.
        pool: threads for blocking calls.
    """

    def __init__(
        self,
        *,
        runner: str,
        folder: Folder,
        submissions: Submissions,
        listing: Listing,
        manager: Backend,
        body_budget: BodyBudget,
        settings: JobSettings,
        pool: Pool,
    ) -> None:
        self._runner = runner
        self._folder = folder
        self._submissions = submissions
        self._listing = listing
        self._manager = manager
        self._body_budget = body_budget
        self._settings = settings
        self._pool = pool
        self._undone: set[str] = set()

    async def receive(self, request: Request, owner: str, kind: KindOfJob) -> Job:
        """Read a job from a request. When this returns, the job is on the disk and accepted.

        Args:
            owner: name of the caller's API key; "" without one.
            kind: what is done with the images.

        Raises:
            Problem: if the job is not accepted. Everything received is then removed.
        """
        idempotency = _idempotency(request)
        query = request.query_params
        model = query.get("model")
        given = ImmutableMultiDict(
            [(name, value) for name, value in query.multi_items() if name != "model"]
        )
        base = read_parameters(Parameters, given, "/query")
        draft = NewJob(self._model(model), "", base, owner, idempotency, kind.name)
        job, room = await self._pool.run(lambda: self._begin(draft))
        accepted = None
        try:
            order = await self._read(request, job, draft, kind, room)
            most = self._settings.jobs_bytes
            accepted = await self._pool.run(
                lambda: self._submissions.accept(job, **order, most_bytes=most)
            )
            return accepted
        finally:
            if accepted is None or accepted.id != job:
                # The shield makes sure that the received data is removed even if the client
                # disconnects.
                await asyncio.shield(self._pool.run(lambda: self._discard(job)))

    async def _read(
        self, request: Request, job: str, draft: NewJob, kind: KindOfJob, room: int
    ) -> dict[str, Any]:
        """Store the request's images on the disk and return the arguments of `Submissions.accept`,
        without the job's id."""
        with ExitStack() as scope:
            blob = scope.enter_context(self._folder.blob(job, room))
            collector = Collector(
                job,
                blob,
                self._submissions,
                max_items=self._settings.max_job_items,
                max_image_bytes=self._settings.max_body_bytes,
                shared=kind.shared,
            )
            reader = self._reader(request, collector, scope)
            hold = scope.enter_context(self._body_budget.share())
            async for data in request.stream():
                if data:
                    await self._pool.run(lambda data=data: reader.feed(data))  # type: ignore[misc]
                    hold(reader.held + collector.held)
            await self._pool.run(reader.end)
            await self._pool.run(collector.close)
            new = self._asked(draft, reader, kind, collector.count)
            parameters = parameters_json(new.parameters)
            if len(parameters) > MOST_PARAMETERS:
                raise BodyTooLarge(
                    f"the parameters of all instances have {len(parameters)} bytes in JSON; at "
                    f"most {MOST_PARAMETERS} are allowed: send smaller pictures with them"
                )
            told = parameters if new.kind == "explain" else f"{new.kind} {parameters}"
            digest = collector.digest(new.model, told)
            return {
                "new": new,
                "total": collector.count,
                "size": blob.size + collector.told + len(parameters),
                "digest": digest,
                "warnings": collector.warnings,
            }

    def _asked(self, draft: NewJob, reader: Reader, kind: KindOfJob, total: int) -> NewJob:
        """Combine the parameters of the query and of the body, which takes precedence.

        Args:
            total: number of images.
        """
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
            # Report an unknown label now, not for each item.
            kind.check(served, parameters, total)
        except Problem as problem:
            where = origins.get(problem.parameter or "")
            raise (problem.at(f"{where}/{problem.parameter}") if where else problem) from None
        return replace(
            draft,
            model=model,
            weights=served.fingerprint,
            parameters=parameters,
            default_fit=served.preprocessing.default_fit,
        )

    def _reader(self, request: Request, collector: Collector, scope: ExitStack) -> Reader:
        header = request.headers.get("content-type", "")
        media, options = parse_options_header(header)
        kind = media.decode("latin-1").strip().lower()
        if kind == "application/json":
            return JsonReader(collector, self._settings.max_body_bytes)
        if kind == "application/x-ndjson":
            # Room for the largest allowed image in base64. A somewhat larger image still fits, and
            # then only its own item fails.
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
        self._manager.replicas(name)  # raises if the model does not exist or is not ready
        return name

    def _begin(self, new: NewJob) -> tuple[str, int]:
        """Create the job; return its id and the number of bytes that it may take on the disk."""
        settings = self._settings
        if new.idempotency is not None and self._submissions.knows(new.owner, new.idempotency):
            # The client probably retries because it missed the answer, so the limits are wider
            # than for a new job.
            most, left = 2 * settings.max_jobs, settings.max_job_bytes
        else:
            most, left = settings.max_jobs, settings.jobs_bytes - self._submissions.bytes()
        if left <= 0:
            raise no_room(settings.jobs_bytes - left, settings.jobs_bytes)
        return self._submissions.begin(self._runner, new, most), left

    def clear_up(self) -> None:
        """Remove the jobs that were not accepted and could not be removed at that time."""
        for job in list(self._undone):
            self._discard(job)

    def _discard(self, job: str) -> None:
        try:
            # The job may have been accepted although the call failed, if the connection to the
            # database broke at that moment.
            if self._listing.leave(job, accepted=False):
                self._folder.remove(job)
                self._listing.remove(job)
        except Problem:
            self._undone.add(job)
        else:
            self._undone.discard(job)


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
