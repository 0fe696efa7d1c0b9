"""The execution of one item of a job, which gives an answer, a problem or a request to retry, and
what a kind of job says of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

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
from service.core.pool import Pool
from service.features.jobs.errors import FolderAway
from service.features.jobs.leases import Store
from service.features.jobs.records import Leased
from service.features.jobs.results import stored
from service.features.jobs.schemas import ItemAnswer
from service.features.jobs.sources import ItemReader
from service.models.info import ModelInfo
from service.models.preprocessing import ModelInput
from service.pipeline.instances import Instance
from service.pipeline.parameters import Parameters
from service.pipeline.pipeline import Pipeline
from service.pipeline.resolve import questions_of
from service.pipeline.result import AnswerBudget
from service.pipeline.targets import MAX_MAPS


class ItemExecutor:
    """Does what a job's kind does with each of its items, at background priority.

    Args:
        kinds: name of a kind → the kind.
        store: has the sources of other items of a job.
        pool: threads for blocking calls.
    """

    def __init__(
        self,
        kinds: Mapping[str, KindOfJob],
        *,
        manager: Backend,
        pipeline: Pipeline,
        sources: ItemReader,
        store: Store,
        pool: Pool,
    ) -> None:
        self.kinds = kinds
        self.pipeline = pipeline
        self.pool = pool
        self._manager = manager
        self._sources = sources
        self._store = store
        self._failed: Counter[tuple[str, int]] = Counter()

    async def answer(self, item: Leased) -> bytes | Problem:
        """Return the item's answer, as the bytes of its file, or the problem that prevents one.

        Raises:
            Withdrawn: if the item should be tried again later.
            FolderAway: if the files of jobs cannot be read, so that no item can be processed now.
        """
        key = item.job, item.number
        try:
            answer: bytes | Problem = await self.kinds[item.kind].answer(self, item)
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
        """Discard what is known of a job that is no longer processed."""
        for kind in self.kinds.values():
            kind.forget(job)
        for key in [key for key in self._failed if key[0] == job]:
            del self._failed[key]

    async def read(self, item: Leased) -> bytes:
        """Return the bytes of an item's image."""
        return await self._sources.read(item)

    async def seen(self, item: Leased) -> tuple[ModelInput, list[str]]:
        """Return what the model sees of an item's image, and warnings."""
        data = await self.read(item)
        instance = Instance(item.number, item.id, data, "", item.parameters)
        return await self.pipeline.input_of(self.replicas(item), instance, "background")

    async def beside(self, item: Leased, number: int) -> Leased:
        """Return another item of an item's job."""
        source = await self.pool.run(lambda: self._store.source(item.job, number))
        return replace(item, number=number, source=source)

    def replicas(self, item: Leased) -> ModelBackend:
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


@dataclass(frozen=True, eq=False)
class KindOfJob:
    """What is done with each image of a job.

    Args:
        name: the kind's name, in the database and in `kind` of a job's description.
        folder: the part of a job's address after /v1/, and the name of its routes in OpenAPI.
        about: a sentence about them.
        answer: returns the bytes of an item's file, by the executor and the item. It may raise what
            `ItemExecutor.answer` handles.
        check: raises the problem of parameters that do not suit a model, or a number of images.
        shared: name of a parameter that no item may have of its own → the reason.
        at_once: largest number of items in progress, of all models. Such items do not count for the
            limit of each model's items; None: they count, and there is no other limit.
        instead: says of a job (by its id) why it has no maps, and where its results are; None if
            its results are maps.
        forget: called with the id of a job that is no longer processed.
    """

    name: str
    folder: str
    about: str
    answer: Callable[[ItemExecutor, Leased], Awaitable[bytes]]
    check: Callable[[ModelInfo, Parameters, int], object]
    shared: Mapping[str, str] = field(default_factory=dict)
    at_once: int | None = None
    instead: Callable[[str], str] | None = None
    forget: Callable[[str], object] = lambda job: None


async def _explain(executor: ItemExecutor, item: Leased) -> bytes:
    if item.parameters.maps > MAX_MAPS:  # the item's own parameters count, too
        raise InvalidParameter(
            f"the image would have {item.parameters.maps} maps; at most {MAX_MAPS} are allowed"
        )
    data = await executor.read(item)
    replicas = executor.replicas(item)
    instance = Instance(item.number, item.id, data, "", item.parameters)
    async with executor.pipeline.explain(
        replicas, instance, priority="background", budget=AnswerBudget()
    ) as result:
        drawn = await result.each(lambda record, drawing: (record.as_json(drawing), record))
        answer = ItemAnswer(
            index=item.number,
            item=item.id,
            prediction=result.prediction(),
            explanations=[explanation for explanation, _ in drawn],
        )
    return await executor.pool.run(lambda: stored(answer, [record for _, record in drawn]))


EXPLAIN: Final = KindOfJob(
    name="explain",
    folder="jobs",
    about="Many images, when there is time.",
    answer=_explain,
    check=lambda model, parameters, total: questions_of(model, parameters),
)
