"""The execution of one item of a job, which gives an answer, a problem or a request to retry."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Final

from cachetools import LRUCache

from service.backend.interface import Backend, ModelBackend
from service.core.errors import (
    MOST_TRIES,
    PASSING,
    PAUSE_SECONDS,
    Blamed,
    InvalidParameter,
    ModelFailed,
    Problem,
    Unavailable,
    UnknownModel,
    unexpected,
)
from service.core.job_schemas import ItemAnswer
from service.core.pool import Pool
from service.core.schemas import dump
from service.features.jobs.errors import FolderAway
from service.features.jobs.leases import Store
from service.features.jobs.records import Leased
from service.features.jobs.results import stored
from service.features.jobs.sources import ItemReader
from service.insights.audit.grids import Neighbours
from service.insights.audit.measurement import AuditMeasurement
from service.insights.audit.plan import plan_of
from service.models.preprocessing import ModelInput
from service.pipeline.instances import Instance
from service.pipeline.pipeline import Pipeline
from service.pipeline.result import AnswerBudget
from service.pipeline.targets import MAX_MAPS

AUDITS: Final = 4
"""Largest number of audits whose photos are kept in memory."""


class ItemExecutor:
    """Explains the items of jobs, or measures those of audits, at background priority.

    Args:
        pool: threads for blocking calls.
    """

    def __init__(
        self,
        *,
        manager: Backend,
        pipeline: Pipeline,
        sources: ItemReader,
        store: Store,
        pool: Pool,
    ) -> None:
        self._manager = manager
        self._pipeline = pipeline
        self._sources = sources
        self._pool = pool
        self._store = store
        self._failed: Counter[tuple[str, int]] = Counter()
        self._neighbours: LRUCache[str, Neighbours] = LRUCache(AUDITS)

    async def answer(self, item: Leased) -> bytes | Problem:
        """Return the item's answer, as the bytes of its file, or the problem that prevents one.

        Raises:
            Withdrawn: if the item should be tried again later.
            FolderAway: if the files of jobs cannot be read, so that no item can be processed now.
        """
        key = item.job, item.number
        try:
            work = self._measure if item.kind == "audit" else self._explain
            answer: bytes | Problem = await work(item)
        except (Withdrawn, FolderAway):
            raise
        except (UnknownModel, ModelFailed):  # removed or loaded again
            raise Withdrawn from None
        except Unavailable as problem:
            # If the item is blamed, the store counts this attempt, because the process may be
            # replaced after a few hung workers. If not, the item was not even tried.
            if not problem.blamed:
                await asyncio.sleep(PAUSE_SECONDS)
            raise Withdrawn(blamed=problem.blamed) from None
        except PASSING as problem:
            self._failed[key] += 1
            if self._failed[key] < MOST_TRIES:
                await asyncio.sleep(PAUSE_SECONDS)
                raise Withdrawn from None
            answer = problem
        except Problem as problem:
            answer = problem
        except Exception:
            answer = unexpected(f"item {item.number} of job {item.job}")
        self._failed.pop(key, None)
        return answer

    def forget(self, job: str) -> None:
        """Discard the failed attempts and the photos of a job that is no longer processed."""
        self._neighbours.pop(job, None)
        for key in [key for key in self._failed if key[0] == job]:
            del self._failed[key]

    async def _explain(self, item: Leased) -> bytes:
        if item.parameters.maps > MAX_MAPS:  # the item's own parameters count, too
            raise InvalidParameter(
                f"the image would have {item.parameters.maps} maps; at most {MAX_MAPS} are allowed"
            )
        data = await self._sources.read(item)
        replicas = self._replicas(item)
        instance = Instance(item.number, item.id, data, "", item.parameters)
        async with self._pipeline.explain(
            replicas, instance, priority="background", budget=AnswerBudget()
        ) as result:
            drawn = await result.each(lambda record, drawing: (record.as_json(drawing), record))
            answer = ItemAnswer(
                index=item.number,
                item=item.id,
                prediction=result.prediction(),
                explanations=[explanation for explanation, _ in drawn],
            )
        return await self._pool.run(lambda: stored(answer, [record for _, record in drawn]))

    async def _measure(self, item: Leased) -> bytes:
        """Return the record of one photo of an audit."""
        replicas = self._replicas(item)
        plan = plan_of(replicas.model, item.parameters, item.total)
        if item.job not in self._neighbours:
            self._neighbours[item.job] = Neighbours(
                item.total, partial(self._seen, item), plan.seed
            )
        measurement = AuditMeasurement(replicas, plan, self._neighbours[item.job])
        seen, warnings = await self._opened(item)
        sent = item.parameters.target
        record = await measurement.measure(item.number, item.id, seen, sent, warnings)
        return await self._pool.run(lambda: dump(record))

    async def _seen(self, item: Leased, number: int) -> ModelInput:
        """Return what the model sees of another photo of an item's job."""
        source = await self._pool.run(lambda: self._store.source(item.job, number))
        seen, _ = await self._opened(replace(item, number=number, source=source))
        return seen

    async def _opened(self, item: Leased) -> tuple[ModelInput, list[str]]:
        data = await self._sources.read(item)
        instance = Instance(item.number, item.id, data, "", item.parameters)
        return await self._pipeline.input_of(self._replicas(item).model, instance, "background")

    def _replicas(self, item: Leased) -> ModelBackend:
        """Return the replicas of the item's model.

        Raises:
            UnknownModel: if the model is gone.
            ModelFailed: if it could not be loaded.
            Withdrawn: if it is not ready, or has other weights than when the item was leased.
        """
        try:
            replicas = self._manager.replicas(item.model)
        except Unavailable:
            raise Withdrawn from None
        if replicas.model.fingerprint != item.weights:
            raise Withdrawn
        return replicas


class Withdrawn(Exception):
    """An item must be returned unfinished.

    Attributes:
        blamed: what ended while it worked on the item: see `Unavailable`.
    """

    def __init__(self, *, blamed: Blamed | None = None) -> None:
        super().__init__()
        self.blamed = blamed
