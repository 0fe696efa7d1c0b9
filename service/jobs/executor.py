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
from service.engine.manager import Fleet
from service.engine.replicas import Crew
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


class Tries:
    """
    Args:
        explainer: a patient one.
        pool: for what blocks.
    """

    def __init__(self, *, fleet: Fleet, explainer: Explainer, sources: Sources, pool: Pool) -> None:
        self._fleet = fleet
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
        crew = self._crew(item)
        instance = Instance(item.number, item.id, data, "", item.parameters)
        async with self._explainer.case(crew, instance, Timings()) as case:
            require_few_numbers(case)
            explained = await self._explainer.explain(case)
            described = await self._explainer.describe(case, explained)
            prediction = self._explainer.predictions(case, explained)
        answer = ItemAnswer(
            index=item.number, item=item.id, prediction=prediction, explanations=described
        )
        return await self._pool.run(lambda: dump(answer))

    def _crew(self, item: Leased) -> Crew:
        """Those for whom it was leased; meanwhile they may have gone, or others have come."""
        try:
            crew = self._fleet.crew(item.model)
        except (UnknownModel, ModelFailed, Unavailable):
            raise Withdrawn from None
        if crew.model.fingerprint != item.weights:
            raise Withdrawn
        return crew


class Withdrawn(Exception):
    """An item is to be given back unfinished.

    Attributes:
        blamed: it, or another one that was at hand with it, has hung the model.
    """

    def __init__(self, *, blamed: bool = False) -> None:
        super().__init__()
        self.blamed = blamed
