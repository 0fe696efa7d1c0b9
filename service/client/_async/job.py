"""A job of the service, from the outside."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from os import PathLike
from pathlib import Path
from typing import Literal

import httpx2

from service.client import job_calls
from service.client._async.transport import AsyncLine
from service.client.calls import Request
from service.client.options import MediaType
from service.client.responses import Response, Result, parsed, result_of
from service.client.retries import FAILURES, Tries
from service.client.tasks import sleep
from service.core.files import written_whole
from service.features.audit.schemas import Audit, AuditDocument
from service.features.jobs.cluster_schemas import ClustersOfClass, JobClusters
from service.features.jobs.schemas import Counts, ItemFacts, ItemResult, JobDocument, JobState


class AsyncJob:
    """Many photos, explained while nobody waits; it outlives its caller.

    Attributes:
        document: how it stood when it was last looked at.
    """

    def __init__(self, line: AsyncLine, document: JobDocument) -> None:
        self._line = line
        self.document = document

    @property
    def id(self) -> str:
        """By which `AsyncClient.job` finds it again."""
        return self.document.id

    @property
    def state(self) -> JobState:
        """waiting, running, done or cancelled, when it was last looked at."""
        return self.document.state

    @property
    def counts(self) -> Counts:
        """How many of its items are done, failed and left, when it was last looked at."""
        return self.document.counts

    async def refresh(self) -> JobDocument:
        """Look at it.

        Raises:
            NotFound: if it is gone.
        """
        await self._look(job_calls.document(self.id))
        return self.document

    async def wait(self, timeout: float | None = None) -> JobDocument:
        """Until it has ended, by looking at it as often as the service says.

        Raises:
            TimeoutError: if that takes more than `timeout` seconds.
        """
        begun, rhythm = time.monotonic(), job_calls.Rhythm()
        while True:
            answer = await self._look(job_calls.document(self.id))
            if self.document.ended:
                return self.document
            pause = rhythm.pause(answer)
            if timeout is not None:
                left = timeout - (time.monotonic() - begun)
                if left <= 0:
                    raise TimeoutError(job_calls.not_yet(self.document, timeout))
                pause = min(pause, left)
            await sleep(pause)

    async def events(self) -> AsyncGenerator[JobDocument]:
        """How it stands, whenever that changes, until it has ended; through connections that
        break.

        Raises:
            Unreachable: if there is none for too long.
        """
        tries = Tries(self._line.rule, bulky=True)
        told: JobDocument | None = None
        while True:
            try:
                async with self._line.listen(job_calls.events(self.id), tries) as source:
                    async for event in source:
                        self.document = parsed(JobDocument, event.data)
                        tries = Tries(self._line.rule, bulky=True)  # from anew: it works
                        if self.document != told:  # a new connection begins with what is known
                            told = self.document
                            yield told
                        if event.event == "end":
                            return
                raise httpx2.RemoteProtocolError(job_calls.BROKEN)
            except FAILURES as error:
                pause = tries.pause(error)
            await sleep(pause)

    async def results(
        self, after: int = 0, *, page: int = 50, maps: bool = True
    ) -> AsyncGenerator[Result]:
        """What came out, each item as it is finished, until the job has ended: each exactly once,
        also if connections break meanwhile.

        Args:
            after: the cursor of the last result that is known already.
            page: how many to fetch, and hold, at a time.
            maps: whether to fetch the maps and their pictures, which may have megabytes each.
                Without them, an explanation has everything but `map` and `overlay`.
        """
        rhythm = job_calls.Rhythm()
        while True:
            ended = self.document.ended  # known before the page: nothing is added behind it
            answer = await self._line.send(job_calls.results(self.id, after, page, maps=maps))
            lines = job_calls.lines_of(answer)
            for line in lines:
                result = result_of(line, ItemResult if maps else ItemFacts)
                after = result.cursor
                yield result
            if lines:
                rhythm = job_calls.Rhythm()
            elif ended:
                return
            else:
                looked = await self._look(job_calls.document(self.id))
                if not self.document.ended:
                    await sleep(rhythm.pause(looked))

    async def result(self, item: str) -> Result:
        """What came out of one item, by its id.

        Raises:
            NotFound: if there is no such item.
            NotFinished: if it has none yet.
            ValueError: if the id is empty.
        """
        answer = await self._line.send(job_calls.result(self.id, item))
        return result_of(answer.body)

    async def clusters(self) -> list[ClustersOfClass]:
        """The clusters of the maps of each class, the classes with suspect clusters first.

        Raises:
            NotFinished: if the job has not ended.
        """
        answer = await self._line.send(job_calls.clusters(self.id))
        return parsed(JobClusters, answer.body).classes

    async def audit(self) -> Audit:
        """The summary of the photos that an audit has measured by now.

        Raises:
            ServiceError: if the job is not an audit.
        """
        answer = await self._look(job_calls.audit(self.id))
        return parsed(AuditDocument, answer.body).audit

    async def report(self, path: str | PathLike[str]) -> Path:
        """Write the report of an audit, a page of HTML, to `path`.

        Raises:
            OSError: if the file cannot be written.
            NotFinished: if no photo has been measured.
            ServiceError: if the job is not an audit.
        """
        return await self._download(job_calls.audit_report(self.id), Path(path))

    async def picture(
        self, item: str, media_type: MediaType = "image/png", *, width: int | None = None
    ) -> bytes:
        """The picture of an item that has one map.

        Args:
            width: its largest width in pixels; None for that of the photo.

        Raises:
            NotFound, NotFinished: as `result`.
        """
        call = job_calls.result(self.id, item, media_type, width)
        answer = await self._line.send(call)
        return answer.require_picture()

    async def archive(
        self,
        path: str | PathLike[str],
        format: Literal["zip", "parquet"] | None = None,  # noqa: A002 - the contract's name
    ) -> Path:
        """Everything that came out, as a file: pictures and results.ndjson (.zip), or a table
        (.parquet). The file is there once it is whole.

        Raises:
            NotFinished: if the job has not ended.
        """
        target = Path(path)
        return await self._download(job_calls.archive(self.id, target, format), target)

    async def cancel(self) -> JobDocument:
        """Stop it; what is finished stays. One that has ended stays as it is."""
        await self._look(job_calls.cancel(self.id))
        return self.document

    async def purge(self) -> None:
        """Stop it, and have its results deleted."""
        await self._line.send(job_calls.purge(self.id))

    async def _download(self, call: Request, target: Path) -> Path:
        """Write the answer to a call to a file, which is there once it is whole."""
        with written_whole(target) as temporary, temporary.open("wb") as file:
            await self._line.send(call, into=file)
        return target

    async def _look(self, call: Request) -> Response:
        answer = await self._line.send(call)
        self.document = parsed(JobDocument, answer.body)
        return answer

    def __repr__(self) -> str:
        return f"<AsyncJob {self.id}, {self.state}, {self.counts}>"
