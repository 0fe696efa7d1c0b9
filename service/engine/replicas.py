"""The engines of one model, one for each device, and the cache of the model's answers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any, Final, cast

import numpy as np

from cam import Explanation, Question
from cam.agreement import Fidelity
from cam.progress import Progress
from service.backend.interface import Listener, naming
from service.backend.outcome import Outcome, ServedAnswer
from service.backend.watch import Watch, WatchWork
from service.backend.work import Explain, Value, Work
from service.core.choices import RuntimeName
from service.core.metrics import Metrics
from service.engine.engine import Engine
from service.engine.response_cache import ResponseCache
from service.loading.served_model import ServedModel
from service.models.preprocessing import ModelInput


class Replicas:
    """Answers questions about preprocessed images on the engine with the lowest load.

    The same questions about the same image are computed once: concurrent requests share one
    computation, and the most recently used answers are kept in a cache.

    Args:
        engines: at least one engine, all of the same model; the caller enters and leaves them.
        cache_bytes: size of the cache of answers, in bytes.
        watches: who is told the answers to live traffic; they are closed with this object.
    """

    def __init__(
        self,
        engines: list[Engine],
        *,
        cache_bytes: int,
        metrics: Metrics,
        watches: Sequence[Watch] = (),
    ) -> None:
        self.engines = tuple(engines)
        self.model: ServedModel = engines[0].model
        """The model's copy on the first device."""
        self.copies: Final = len(engines)
        """Number of copies of the model, one for each engine."""
        self._metrics = metrics
        self._watches = watches
        self._response_cache: ResponseCache[Outcome[ServedAnswer], Progress] = ResponseCache(
            cache_bytes, _bytes_of
        )

    def replace(self, turn: int, engine: Engine) -> None:
        """Replace the engine at the index `turn` with another engine of the same model."""
        self.engines = (*self.engines[:turn], engine, *self.engines[turn + 1 :])
        self.model = self.engines[0].model

    async def close(self) -> None:
        """End what is done in the background, such as explaining samples; the engines go on."""
        for watch in self._watches:
            await watch.close()

    @property
    def devices(self) -> str:
        """Names of the devices, separated by commas."""
        return ", ".join(str(engine.model.device) for engine in self.engines)

    @property
    def fidelities(self) -> dict[str, Fidelity]:
        """Method name → fidelity of its fast maps to the exact maps, on the engine where it is
        lowest."""
        judged = [engine.fidelities for engine in self.engines if engine.fidelities]
        names = dict.fromkeys(name for fidelities in judged for name in fidelities)
        return {
            name: min(
                (fidelities[name] for fidelities in judged if name in fidelities),
                key=lambda fidelity: (fidelity.worst, fidelity.median),
            )
            for name in names
        }

    @property
    def images_a_second(self) -> float:
        """Number of images that all engines explain in a second; 0 if that is not known."""
        return sum(engine.images_a_second for engine in self.engines)

    @property
    def runtime(self) -> RuntimeName:
        """What runs the model for the methods that `is_fast` names."""
        return self.engines[0].runtime

    def is_fast(self, method: str) -> bool:
        """Return whether every engine computes the method's maps at the default layer with the
        fast path."""
        return all(engine.is_fast(method) for engine in self.engines)

    @property
    def alive(self) -> bool:
        """Whether at least one engine is alive."""
        return any(engine.batcher.alive for engine in self.engines)

    @property
    def waiting(self) -> int:
        """Number of images in the queues."""
        return sum(len(engine.batcher) for engine in self.engines)

    async def ask(self, work: Work[Value], *, progress: Listener | None = None) -> Outcome[Value]:
        """Do a piece of work on the engine that is free first: see `ModelBackend.ask`."""
        if isinstance(work, Explain):
            return cast(Outcome[Value], await self._explain(work, progress))
        if isinstance(work, WatchWork):
            return Outcome(await work.result(self._watches), 0.0, 0.0, 0)
        engine = self._idlest(type(work))
        return await engine.begin(work, progress=progress)

    async def _explain(self, work: Explain, progress: Listener | None) -> Outcome[ServedAnswer]:
        if len(work.questions) == 1:
            return await self._explain_group(work, progress, work.questions)
        outcomes: list[Outcome[ServedAnswer]] = []
        by_method: dict[str, list[Explanation]] = {}
        for asked in self._groups(work.questions):
            group = asked
            if outcomes:  # passes in different precisions might choose different classes
                explained = outcomes[0].value.explanations
                targets = tuple(
                    {explanation.turn: explanation.target for explanation in explained}.values()
                )
                group = tuple(replace(question, targets=targets) for question in asked)
            told = progress and naming(group[0].method, progress)
            outcomes.append(await self._explain_group(replace(work, questions=group), told, asked))
            for explanation in outcomes[-1].value.explanations:
                by_method.setdefault(explanation.method, []).append(explanation)
        explanations = [
            explanation for one in work.questions for explanation in by_method.get(one.method, [])
        ]
        return Outcome(
            replace(
                outcomes[0].value,
                explanations=tuple(explanations),
                fast=frozenset().union(*(outcome.value.fast for outcome in outcomes)),
            ),
            sum(outcome.queued_seconds for outcome in outcomes),
            sum(outcome.run_seconds for outcome in outcomes),
            max(outcome.batch_size for outcome in outcomes),
        )

    def _groups(self, questions: Sequence[Question]) -> list[tuple[Question, ...]]:
        """Return the groups of questions that are answered together."""
        groups: dict[object, list[Question]] = {}
        for question in questions:
            key = question.method if question.in_steps else self.is_fast(question.method)
            groups.setdefault(key, []).append(question)
        return [tuple(group) for group in groups.values()]

    async def _explain_group(
        self, work: Explain, progress: Listener | None, asked: Sequence[Question]
    ) -> Outcome[ServedAnswer]:
        """Answer one group of questions: those of one-pass methods, or a single question of a
        method of many passes.

        Args:
            asked: the questions as the caller asked them. What is watched depends on these, not on
                the order of the caller's methods.
        """
        if work.priority == "background":
            return await self._idlest().begin(work, progress=progress)
        outcome, how = await self._response_cache.get(
            _key(work),
            lambda report: self._idlest().begin(work, progress=report),
            progress,
        )
        self._metrics.answers.labels(model=self.model.name, how=how).inc()
        if how == "made" and work.watched and not work.prompts:  # with prompts, classes are others
            self._tell(work.seen, asked, outcome.value)
        return Outcome(outcome.value, 0.0, 0.0, 0) if how == "remembered" else outcome

    def _tell(self, seen: ModelInput, questions: Sequence[Question], answer: ServedAnswer) -> None:
        """Tell the watches an answer to live traffic."""

        async def explain(question: Question) -> ServedAnswer:
            work = Explain(seen, (question,), "background", watched=True)
            return (await self._idlest().begin(work)).value

        for watch in self._watches:
            watch.answered(seen, questions, answer, explain)

    def _idlest(self, kind: type[Work[Any]] = Explain) -> Engine:
        """Return the engine with the lowest load; for a kind of work of which only a few run at a
        time, the one that has the fewest of it."""
        if len(self.engines) == 1:  # to count who waits takes longer than the rest
            return self.engines[0]
        return min(
            self.engines,
            key=lambda at: (not at.batcher.alive, at.limited[kind], at.batcher.load),
        )


def _key(work: Explain) -> bytes:
    """Return a digest that is equal for the same image, prompts and questions."""
    digest, questions = hashlib.blake2b(work.seen.digest, digest_size=16), work.questions

    def add(value: object) -> None:
        if isinstance(value, np.ndarray):
            digest.update(f"|{value.dtype}{value.shape}".encode())
            digest.update(np.ascontiguousarray(value).data)
        else:
            digest.update(f"|{value!r}".encode())

    add(work.prompts)
    for target in questions[0].targets:
        add(type(target).__name__)
        for name in _names(cast(Hashable, type(target))):
            add(getattr(target, name))
    for question in questions:
        add(
            [
                getattr(question, name)
                for name in _names(cast(Hashable, Question))
                if name != "targets"
            ]
        )
    return digest.digest()


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of a data class's fields."""
    return tuple(field.name for field in fields(kind))


def _bytes_of(outcome: Outcome[ServedAnswer]) -> float:
    """Return the size of an answer in the cache, in bytes; infinity if it must not be cached."""
    answer = outcome.value
    if any(
        explanation.passes and explanation.passes.stopped for explanation in answer.explanations
    ):
        return math.inf  # a deadline stopped it; a later request may have more time
    # A view keeps the maps of its whole batch in memory, so these count.
    maps = [
        explanation.map if explanation.map.base is None else explanation.map.base
        for explanation in answer.explanations
    ]
    return 2000 + answer.prediction.nbytes + sum(map_.nbytes for map_ in maps)
