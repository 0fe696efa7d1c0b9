"""The components that process jobs, opened and closed together with the application."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

from service.backend.interface import Backend
from service.core.errors import ConfigError, InsufficientStorage, Unavailable
from service.core.pool import Pool
from service.features.jobs.clusters import Clusterings
from service.features.jobs.database import Database
from service.features.jobs.errors import unwritable
from service.features.jobs.executor import EXPLAIN, ItemExecutor, KindOfJob
from service.features.jobs.intake import Intake
from service.features.jobs.janitor import Janitor, enlisted
from service.features.jobs.job_files import Folder
from service.features.jobs.leases import Store
from service.features.jobs.listing import Listing
from service.features.jobs.metrics import JobMetrics
from service.features.jobs.records import Job
from service.features.jobs.results import ResultStore
from service.features.jobs.runner import Runner
from service.features.jobs.schemas import Counts, JobDocument
from service.features.jobs.settings import JobSettings
from service.features.jobs.sources import ItemReader
from service.features.jobs.submission import Submissions
from service.http.adapter import AppParts

THREADS: Final = 4
AGAIN_SECONDS: Final = 5.0
log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class JobService:
    """The open components that receive, process and look up jobs."""

    listing: Listing
    result_store: ResultStore
    clusterings: Clusterings
    folder: Folder
    intake: Intake
    runner: Runner
    pool: Pool
    manager: Backend
    kinds: Mapping[str, KindOfJob]
    retention_seconds: float

    def instead(self, job: Job) -> str | None:
        """Return why a job has no maps, and where its results are; None if it has maps."""
        kind = self.kinds.get(job.kind)
        return kind.instead(job.id) if kind and kind.instead else None

    async def describe(self, job: Job) -> JobDocument:
        rate = await self.pool.run(lambda: self.result_store.speed(job))
        return describe_job(
            job, rate=rate, stalled=self._stalled(job), retention_seconds=self.retention_seconds
        )

    def _stalled(self, job: Job) -> str | None:
        if self.manager.draining:
            return "the service is shutting down"
        if job.kind not in self.kinds:
            return f"this service has no jobs of the kind {job.kind!r}"
        if job.model not in self.manager.names:
            return f"there is no model {job.model!r} any more"
        if not self.manager.model_ready(job.model):
            return f"the model {job.model!r} is not ready"
        if self.manager.replicas(job.model).model.fingerprint != job.weights:
            return f"the model {job.model!r} has other weights than when the job came"
        return self.runner.stalled


class Jobs:
    """Opens and closes the components for jobs.

    Use with `async with`. Entering succeeds even if jobs cannot be stored, because explanations do
    not depend on jobs; requests for jobs are then answered with the reason, and the log names the
    folder. If the reason may be temporary (a folder that cannot be written, a full disk, an
    unreachable database), opening is tried again.

    Args:
        parts: of the app. Only the first process of a service processes the items of jobs.
        kinds: the kinds of jobs beside `explain`.
    """

    def __init__(self, parts: AppParts, kinds: Sequence[KindOfJob]) -> None:
        self._parts, self.settings = parts, parts.settings_of(JobSettings)
        self._kinds = {kind.name: kind for kind in (EXPLAIN, *kinds)}
        parts.metrics.own(JobMetrics)  # the series are there from the start
        self._scope = AsyncExitStack()
        self._place: JobService | None = None
        self._opening: asyncio.Task[None] | None = None
        self._why_not = "the service is starting"
        self.failure: ConfigError | None = None
        """Reason why the database that the settings name cannot be used; None if there is none."""

    async def __aenter__(self) -> Jobs:
        if not await self._opened():
            self._opening = asyncio.create_task(self._keep_trying(), name="open jobs")
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._place, self._why_not = None, "the service is shutting down"
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        await self._scope.aclose()

    @property
    def place(self) -> JobService:
        """The open components.

        Raises:
            Unavailable: if they are not open; the message says why.
        """
        if self._place is None:
            wait = 60 if self._opening is not None else None
            raise Unavailable(f"jobs are not available: {self._why_not}", retry_after=wait)
        return self._place

    async def _opened(self) -> bool:
        """Try to open the components. Return False if another attempt may succeed, else True."""
        try:
            self._place = await self._scope.enter_async_context(self._open())
        except ConfigError as error:
            if self.settings.jobs_database:
                self.failure = error
            self._tell(str(error))
        except (InsufficientStorage, Unavailable) as problem:
            self._tell(problem.detail)
            return False
        return True

    def _tell(self, why_not: str) -> None:
        """Keep the reason why jobs are not available, and write it to the log if it is new."""
        if self._why_not != why_not:
            user = f"user {os.geteuid()}, group {os.getegid()}" if hasattr(os, "geteuid") else "-"
            log.error(
                "no jobs are taken: %s (the folder is %s, the service runs as %s; GRADCAM_JOBS "
                "names another folder)",
                why_not,
                self.settings.jobs_folder,
                user,
            )
        self._why_not = why_not

    async def _keep_trying(self) -> None:
        while True:
            await asyncio.sleep(AGAIN_SECONDS)
            if await self._opened():
                return

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[JobService]:
        settings, name = self.settings, uuid4().hex
        path = self.settings.jobs_folder
        with ExitStack() as scope:
            # Separate threads, so that a request for a job's status does not wait until an archive
            # is unpacked or images are read.
            pool, intake_pool, image_pool = (
                scope.enter_context(Pool(threads, THREADS))
                for threads in ("jobs", "job intake", "job images")
            )

            def open_files() -> tuple[Database, Folder, Store]:
                folder = Folder(path)
                database = scope.enter_context(Database(path, settings.jobs_database))
                store = Store(database, settings.jobs_bytes)
                try:
                    scope.enter_context(enlisted(name, store, folder))
                except InsufficientStorage:
                    database.spend_reserve()
                    scope.enter_context(enlisted(name, store, folder))
                return database, folder, store

            try:
                database, folder, store = await pool.run(open_files)
            except OSError as error:
                raise unwritable(error) from None
            listing = Listing(database)
            intake = Intake(
                runner=name,
                folder=folder,
                submissions=Submissions(database),
                listing=listing,
                manager=self._parts.manager,
                body_budget=self._parts.body_budget,
                settings=settings,
                pool=intake_pool,
            )
            runner = self._runner(name, store, folder, pool, image_pool)
            janitor = Janitor(
                runner,
                store,
                listing,
                folder,
                pool,
                retention_seconds=settings.job_retention_seconds,
                clear_up=intake.clear_up,
                metrics=self._parts.metrics,
            )
            async with AsyncExitStack() as open_scope:
                if self._parts.is_first:
                    await open_scope.enter_async_context(runner)
                await open_scope.enter_async_context(janitor)
                results = ResultStore(database)
                yield JobService(
                    listing,
                    results,
                    Clusterings(results, folder),
                    folder,
                    intake,
                    runner,
                    pool,
                    self._parts.manager,
                    self._kinds,
                    settings.job_retention_seconds,
                )

    def _runner(
        self, name: str, store: Store, folder: Folder, pool: Pool, image_pool: Pool
    ) -> Runner:
        """Return what processes the items, not yet entered."""
        executor = ItemExecutor(
            self._kinds,
            manager=self._parts.manager,
            pipeline=self._parts.pipeline,
            sources=ItemReader(folder, self._parts.reception, self.settings, image_pool),
            store=store,
            pool=pool,
        )
        return Runner(
            name,
            store=store,
            folder=folder,
            executor=executor,
            manager=self._parts.manager,
            admission=self._parts.admission,
            pool=pool,
            metrics=self._parts.metrics,
        )


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
        warnings=list(job.warnings),
    )


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(round(seconds, 3), UTC)
