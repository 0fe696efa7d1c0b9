"""Tries at an item of a job: its answer, what keeps it from having one, or neither yet."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Final

from service.core.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidParameter,
    ModelFailed,
    OutOfMemory,
    Problem,
    QueueFull,
    Unavailable,
    UnknownModel,
)
from service.core.pool import Pool
from service.core.schemas import dump
from service.engine.manager import ModelManager
from service.engine.replicas import Replicas
from service.engine.timings import Timings
from service.jobs.documents import ItemAnswer
from service.jobs.errors import FolderAway
from service.jobs.records import Leased
from service.jobs.sources import Sources
from service.pipeline.explainer import Explainer
from service.pipeline.instances import Instance
from service.pipeline.targets import MAX_MAPS
from service.pipeline.work_item import require_few_numbers

MOST_TRIES: Final = 5
"""Of an item that fails for a reason that may pass."""
PAUSE_SECONDS: Final = 1.0
"""After such a try."""
PASSING: Final = (DeadlineExceeded, OutOfMemory, QueueFull, Unavailable)
log = logging.getLogger(__name__)


class ItemExecutor:
    """
    Args:
        explainer: a patient one.
        pool: for what blocks.
    """

    def __init__(
        self, *, manager: ModelManager, explainer: Explainer, sources: Sources, pool: Pool
    ) -> None:
        self._manager = manager
        self._explainer = explainer
        self._sources = sources
        self._pool = pool
        self._failed: Counter[tuple[str, int]] = Counter()

    async def answer(self, item: Leased) -> bytes | Problem:
        """The item's answer as its file has it, or what keeps it from having one.

        Raises:
            Withdrawn: if it may fare better later.
            FolderAway: if none fares better now.
        """
        key = item.job, item.number
        try:
            answer: bytes | Problem = await self._explain(item)
        except (Withdrawn, FolderAway):
            raise
        except PASSING as problem:
            if isinstance(problem, Unavailable) and problem.blamed:
                # Counted where it outlives the process: few workers may hang before it is replaced.
                raise Withdrawn(blamed=True) from None
            self._failed[key] += 1
            if self._failed[key] < MOST_TRIES:
                await asyncio.sleep(PAUSE_SECONDS)
                raise Withdrawn from None
            answer = problem
        except Problem as problem:
            answer = problem
        except Exception:
            log.exception("item %d of job %s failed", item.number, item.job)
            answer = InternalError("the service failed at this image; its log has the cause")
        self._failed.pop(key, None)
        return answer

    def forget(self, job: str) -> None:
        """It is worked on no more."""
        for key in [key for key in self._failed if key[0] == job]:
            del self._failed[key]

    async def _explain(self, item: Leased) -> bytes:
        if item.parameters.maps > MAX_MAPS:  # with those of its own
            raise InvalidParameter(
                f"the image would have {item.parameters.maps} maps; at most {MAX_MAPS} are allowed"
            )
        data = await self._sources.read(item)
        replicas = self._replicas(item)
        instance = Instance(item.number, item.id, data, "", item.parameters)
        async with self._explainer.work_item(replicas, instance, Timings()) as work_item:
            require_few_numbers(work_item)
            explained = await self._explainer.explain(work_item)
            described = await self._explainer.describe(work_item, explained)
            prediction = self._explainer.predictions(work_item, explained)
        answer = ItemAnswer(
            index=item.number, item=item.id, prediction=prediction, explanations=described
        )
        return await self._pool.run(lambda: dump(answer))

    def _replicas(self, item: Leased) -> Replicas:
        """Those for whom it was leased; meanwhile they may have gone, or others have come."""
        try:
            replicas = self._manager.replicas(item.model)
        except (UnknownModel, ModelFailed, Unavailable):
            raise Withdrawn from None
        if replicas.model.fingerprint != item.weights:
            raise Withdrawn
        return replicas


class Withdrawn(Exception):
    """An item is to be given back unfinished.

    Attributes:
        blamed: it, or another one that was at hand with it, has hung the model.
    """

    def __init__(self, *, blamed: bool = False) -> None:
        super().__init__()
        self.blamed = blamed
