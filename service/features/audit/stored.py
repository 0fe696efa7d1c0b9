"""Audits that are jobs: what the photos that are measured by now say together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cachetools import LRUCache

from cam.evaluation.metrics import DEFAULTS
from service.core.errors import InternalError
from service.features.audit.records import PhotoRecord
from service.features.audit.report import audit_page
from service.features.audit.schemas import Audit
from service.features.audit.summary import summarise
from service.features.jobs.host import JobService
from service.features.jobs.records import Job, parameters_of
from service.features.jobs.results import all_finished

KEPT: Final = 8
"""Largest number of summaries, and of reports, that are kept in memory."""
Moment = tuple[str, int]
"""A job, and the number of its photos that were settled."""


class Audits:
    """Summarises the records of audits. Each method blocks, for seconds if the audit is large and
    has measured more photos since the last call; call one at a time."""

    def __init__(self) -> None:
        self._summaries: LRUCache[Moment, Audit] = LRUCache(KEPT)
        self._reports: LRUCache[Moment, str] = LRUCache(KEPT)

    def summary(self, place: JobService, job: Job) -> Audit:
        """Return the summary of the photos that are measured by now.

        Raises:
            InternalError: if a record is gone from the disk.
            UnknownJob: if the job was removed meanwhile.
        """
        moment = job.id, job.settled
        if moment not in self._summaries:
            self._summaries[moment] = self._summarised(job, *self._records(place, job))
        return self._summaries[moment]

    def report(self, place: JobService, job: Job) -> str:
        """Return the report of the photos that are measured by now as an HTML page.

        Raises:
            InternalError: if a record is gone from the disk.
            UnknownJob: if the job was removed meanwhile.
        """
        moment = job.id, job.settled
        if moment not in self._reports:
            records, failed = self._records(place, job)
            summary = self._summaries.get(moment) or self._summarised(job, records, failed)
            self._summaries[moment] = summary
            self._reports[moment] = "".join(audit_page(summary, records))
        return self._reports[moment]

    def _summarised(self, job: Job, records: list[PhotoRecord], failed: Mapping[str, str]) -> Audit:
        return summarise(
            records,
            model=job.model,
            weights=job.weights.partition("-")[0],
            metrics=tuple(parameters_of(job.parameters, {}).evaluate) or DEFAULTS,
            failed=failed,
        )

    def _records(self, place: JobService, job: Job) -> tuple[list[PhotoRecord], dict[str, str]]:
        """Return the records of the finished photos, and the photos that failed, with the
        reason."""
        records, failed = [], {}
        for item in all_finished(place.result_store, job):
            if item.problem is not None:
                failed[item.id] = str(item.problem["detail"])
                continue
            try:
                document = place.folder.read_result(job.id, item.number)
            except FileNotFoundError:
                raise InternalError(
                    f"the record of photo {item.id[:200]!r} is gone from the disk"
                ) from None
            records.append(PhotoRecord.model_validate_json(document))
        return records, failed
