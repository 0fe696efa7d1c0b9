"""The execution of one item of a job, which gives an answer, a problem or a request to retry."""

from __future__ import annotations

import asyncio
from collections import Counter

from service.backend.interface import Backend, ModelBackend
from service.core.errors import (
    Blamed,
    InvalidParameter,
    ModelFailed,
    Problem,
    Unavailable,
    UnknownModel,
    unexpected,
)
from service.core.pool import Pool
from service.core.schemas import dump
from service.jobs.documents import ItemAnswer
from service.jobs.errors import FolderAway
from service.jobs.records import Leased
from service.jobs.sources import Sources
from service.pipeline.instances import Instance
from service.pipeline.pipeline import Pipeline
from service.pipeline.retries import MOST_TRIES, PASSING, PAUSE_SECONDS
from service.pipeline.targets import MAX_MAPS


class ItemExecutor:
    """Explains the items of jobs at background priority.

    Args:
        pool: threads for blocking calls.
    """

    def __init__(
        self, *, manager: Backend, pipeline: Pipeline, sources: Sources, pool: Pool
    ) -> None:
        self._manager = manager
        self._pipeline = pipeline
        self._sources = sources
        self._pool = pool
        self._failed: Counter[tuple[str, int]] = Counter()

    async def answer(self, item: Leased) -> bytes | Problem:
        """Return the item's answer, as the bytes of its file, or the problem that prevents one.

        Raises:
            Withdrawn: if the item should be tried again later.
            FolderAway: if the files of jobs cannot be read, so that no item can be processed now.
        """
        key = item.job, item.number
        try:
            answer: bytes | Problem = await self._explain(item)
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
        """Discard the failed attempts of a job that is no longer processed."""
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
            replicas, instance, priority="background", json_of=1
        ) as result:
            answer = ItemAnswer(
                index=item.number,
                item=item.id,
                prediction=result.prediction(),
                explanations=await result.as_json(),
            )
        return await self._pool.run(lambda: dump(answer))

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
