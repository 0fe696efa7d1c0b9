"""The audits among the jobs: reading their photos' records, and summarising them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cachetools import LRUCache

from cam.evaluation.metrics import DEFAULTS
from service.audit.report import audit_page
from service.audit.summary import summarise
from service.core.audit_schemas import Audit, PhotoRecord
from service.core.errors import InternalError
from service.jobs.folder import Folder
from service.jobs.records import Job, parameters_of
from service.jobs.result_store import ResultStore

PAGE: Final = 100
KEPT: Final = 8
"""Largest number of summaries that are kept in memory."""


class Audits:
    """Summarises the records of audits. Each method blocks."""

    def __init__(self, results: ResultStore, folder: Folder) -> None:
        self._results = results
        self._folder = folder
        self._known: LRUCache[str, Audit] = LRUCache(KEPT)

    def summary(self, job: Job) -> Audit:
        """Return the summary of the photos that are measured by now.

        Raises:
            InternalError: if a record is gone from the disk.
        """
        found = self._known.get(job.id)
        if found is None:
            found = self._summarised(job, *self._records(job))
            if job.ended:
                self._known[job.id] = found
        return found

    def report(self, job: Job) -> str:
        """Return the report of the photos that are measured by now as an HTML page.

        Raises:
            InternalError: if a record is gone from the disk.
        """
        records, failed = self._records(job)
        return "".join(audit_page(self._summarised(job, records, failed), records))

    def _summarised(self, job: Job, records: list[PhotoRecord], failed: Mapping[str, str]) -> Audit:
        return summarise(
            records,
            model=job.model,
            weights=job.weights.partition("-")[0],
            metrics=tuple(parameters_of(job.parameters, {}).evaluate) or DEFAULTS,
            failed=failed,
        )

    def _records(self, job: Job) -> tuple[list[PhotoRecord], dict[str, str]]:
        """Return the records of the finished photos, and the photos that failed, with the
        reason."""
        records, failed, after = [], {}, -1
        while page := self._results.in_order(job, after, PAGE):
            for each in page:
                if each.problem is not None:
                    failed[each.id] = str(each.problem["detail"])
                    continue
                try:
                    document = self._folder.read_result(job.id, each.number)
                except FileNotFoundError:
                    raise InternalError(
                        f"the record of photo {each.id[:200]!r} is gone from the disk"
                    ) from None
                records.append(PhotoRecord.model_validate_json(document))
            after = page[-1].number
        return records, failed
