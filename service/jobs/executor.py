"""Tries at an item of a job: its answer, what keeps it from having one, or neither yet."""

from __future__ import annotations

import asyncio
from collections import Counter

from service.core.errors import (
    InvalidParameter,
    ModelFailed,
    Problem,
    Unavailable,
    UnknownModel,
    unexpected,
)
from service.core.pool import Pool
from service.core.schemas import dump
from service.engine.manager import ModelManager
from service.engine.replicas import Replicas
from service.jobs.documents import ItemAnswer
from service.jobs.errors import FolderAway
from service.jobs.records import Leased
from service.jobs.sources import Sources
from service.pipeline.instances import Instance
from service.pipeline.pipeline import Pipeline
from service.pipeline.retries import MOST_TRIES, PASSING, PAUSE_SECONDS
from service.pipeline.targets import MAX_MAPS


class ItemExecutor:
    """Explains the items of jobs, at background priority.

    Args:
        pool: for what blocks.
    """

    def __init__(
        self, *, manager: ModelManager, pipeline: Pipeline, sources: Sources, pool: Pool
    ) -> None:
        self._manager = manager
        self._pipeline = pipeline
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
            answer = unexpected(f"item {item.number} of job {item.job}")
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
        async with self._pipeline.explain(
            replicas, instance, priority="background", json_of=1
        ) as result:
            answer = ItemAnswer(
                index=item.number,
                item=item.id,
                prediction=result.prediction(),
                explanations=await result.as_json(),
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
