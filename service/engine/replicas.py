"""The engines of one model, one for each device, and the cache of the model's answers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from cam import Concept, Explanation, Observation, Question, Target
from cam.agreement import Fidelity
from cam.evaluation.candidate import Candidate
from cam.evaluation.metrics import Options, Scores
from cam.methods.progress import Progress
from service.backend.answers import Answer
from service.backend.drift import Drift
from service.backend.interface import Listener, Pixels, Stage, naming
from service.backend.outcome import Outcome
from service.core.choices import Runtime
from service.core.metrics import Metrics
from service.core.pool import Priority
from service.engine.engine import Engine
from service.engine.response_cache import ResponseCache
from service.engine.watch import Watch
from service.loading.served_model import ServedModel
from service.models.preprocessing import ModelInput


class Replicas:
    """Answers questions about preprocessed images on the engine with the lowest load.

    The same questions about the same image are computed once: concurrent requests share one
    computation, and the most recently used answers are kept in a cache.

    Args:
        engines: at least one engine, all of the same model; the caller enters and leaves them.
        cache_bytes: size of the cache of answers, in bytes.
    """

    def __init__(self, engines: list[Engine], *, cache_bytes: int, metrics: Metrics) -> None:
        self.engines = tuple(engines)
        self._metrics = metrics
        model = engines[0].model
        self.watch = Watch(model, metrics, sample=model.explain_sample)
        self._response_cache: ResponseCache[Outcome[Answer], Progress] = ResponseCache(
            cache_bytes, _bytes_of
        )

    def replace(self, turn: int, engine: Engine) -> None:
        """Replace the engine at the index `turn` with another engine of the same model."""
        self.engines = (*self.engines[:turn], engine, *self.engines[turn + 1 :])

    async def close(self) -> None:
        """End what is done in the background, such as explaining samples; the engines go on."""
        await self.watch.close()

    @property
    def model(self) -> ServedModel:
        """The model's copy on the first device."""
        return self.engines[0].model

    @property
    def devices(self) -> str:
        """Names of the devices, separated by commas."""
        return ", ".join(str(engine.model.device) for engine in self.engines)

    @property
    def fidelity(self) -> float | None:
        """Worst fidelity of the methods that use the fast path; None if no method does."""
        found = [each.worst for name, each in self.fidelities.items() if self.is_fast(name)]
        return min(found, default=None)

    @property
    def fidelities(self) -> dict[str, Fidelity]:
        """Method name → fidelity of its fast maps to the exact maps, on the engine where it is
        lowest."""
        judged = [engine.fidelities for engine in self.engines if engine.fidelities]
        names = dict.fromkeys(name for each in judged for name in each)
        return {
            name: min(
                (each[name] for each in judged if name in each),
                key=lambda found: (found.worst, found.median),
            )
            for name in names
        }

    @property
    def runtime(self) -> Runtime:
        """What runs the model for the methods that `is_fast` names."""
        return self.engines[0].runtime

    def is_fast(self, method: str) -> bool:
        """Return whether every engine computes the method's maps at the default layer with the
        fast path."""
        return all(engine.is_fast(method) for engine in self.engines)

    @property
    def copies(self) -> int:
        """Number of copies of the model, one for each engine."""
        return len(self.engines)

    @property
    def alive(self) -> bool:
        """Whether at least one engine is alive."""
        return any(engine.alive for engine in self.engines)

    @property
    def waiting(self) -> int:
        """Number of images in the queues."""
        return sum(engine.waiting for engine in self.engines)

    async def answer(
        self,
        seen: ModelInput,
        *questions: Question,
        progress: Listener | None = None,
        priority: Priority = "interactive",
        until: float | None = None,
        watched: bool = False,
    ) -> Outcome[Answer]:
        """Answer one or more questions about one image: see `ModelBackend.answer`."""
        if len(questions) == 1:
            return await self._answer(
                seen, questions, progress, priority, until, questions if watched else ()
            )
        outcomes: list[Outcome[Answer]] = []
        found: dict[str, list[Explanation]] = {}
        for group in self._groups(questions):
            # What is watched depends on what the caller asked, not on the order of its methods.
            asked = group if watched else ()
            if outcomes:  # passes in different precisions might choose different classes
                explained = outcomes[0].value.explanations
                targets = tuple({each.turn: each.target for each in explained}.values())
                group = tuple(replace(each, targets=targets) for each in group)
            told = progress and naming(group[0].method, progress)
            outcomes.append(await self._answer(seen, group, told, priority, until, asked))
            for each in outcomes[-1].value.explanations:
                found.setdefault(each.method, []).append(each)
        explanations = [each for question in questions for each in found.get(question.method, [])]
        return Outcome(
            replace(outcomes[0].value, explanations=tuple(explanations)),
            sum(each.queued_seconds for each in outcomes),
            sum(each.run_seconds for each in outcomes),
            max(each.batch_size for each in outcomes),
        )

    def _groups(self, questions: Sequence[Question]) -> list[tuple[Question, ...]]:
        """Return the groups of questions that are answered together."""
        groups: dict[object, list[Question]] = {}
        for each in questions:
            key = each.method if each.in_steps else self.is_fast(each.method)
            groups.setdefault(key, []).append(each)
        return [tuple(group) for group in groups.values()]

    async def _answer(
        self,
        seen: ModelInput,
        questions: tuple[Question, ...],
        progress: Listener | None,
        priority: Priority,
        until: float | None,
        asked: tuple[Question, ...],
    ) -> Outcome[Answer]:
        """Answer one group of questions: those of one-pass methods, or a single question of a
        method of many passes.

        Args:
            asked: the questions as the caller asked them, if the photo is live traffic.
        """
        if priority == "background":
            idlest = self._idlest()
            return await idlest.answer(
                seen.pixels, *questions, progress=progress, priority=priority
            )
        outcome, how = await self._response_cache.get(
            _key(seen, questions),
            lambda report: self._idlest().answer(
                seen.pixels, *questions, progress=report, until=until
            ),
            progress,
        )
        self._metrics.answers.labels(model=self.model.name, how=how).inc()
        if how == "made" and asked and self.watch.watches(seen):
            self._watch(seen, asked, outcome.value)
        return Outcome(outcome.value, 0.0, 0.0, 0) if how == "remembered" else outcome

    def _watch(self, seen: ModelInput, questions: tuple[Question, ...], answer: Answer) -> None:
        """Record an answer to live traffic."""

        async def explain(question: Question) -> Answer:
            # Statistics need no repeatable last bits, which would cost the passes of four images.
            outcome = await self._idlest().answer(
                seen.pixels, question, priority="background", repeatable=False
            )
            return outcome.value

        self.watch.note(questions, answer, seen.pixels)
        self.watch.sample(questions, explain, seen.pixels)

    async def drift(self) -> Drift:
        """See `ModelBackend.drift`."""
        return await self.watch.drift()

    async def evaluate(
        self,
        pixels: Pixels,
        question: Question,
        candidates: Sequence[Candidate],
        metrics: Sequence[str],
        options: Options,
        *,
        progress: Listener | None = None,
    ) -> Outcome[list[Scores]]:
        """See `ModelBackend.evaluate`."""
        return await self._idlest().evaluate(
            pixels, question, candidates, metrics, options, progress=progress
        )

    async def randomised(
        self, pixels: Pixels, questions: Sequence[Question], *, stages: int, seed: int
    ) -> Outcome[list[Stage]]:
        """See `ModelBackend.randomised`."""
        engine = min(self.engines, key=lambda each: (not each.alive, each.randomising, each.load))
        return await engine.randomised(pixels, questions, stages=stages, seed=seed)

    async def observe(
        self, pixels: Pixels, layers: tuple[str, ...], target: Target
    ) -> Outcome[list[Observation]]:
        """See `Engine.observe`."""
        return await self._idlest().observe(pixels, layers, target)

    async def factorise(self, pixels: Pixels, layer: str, count: int) -> Outcome[list[Concept]]:
        """See `Engine.factorise`."""
        return await self._idlest().factorise(pixels, layer, count)

    async def embed(self, pixels: Pixels, layer: str) -> Outcome[NDArray[np.float32]]:
        """See `Engine.embed`."""
        return await self._idlest().embed(pixels, layer)

    def _idlest(self) -> Engine:
        return min(self.engines, key=lambda engine: (not engine.alive, engine.load))


def _key(seen: ModelInput, questions: Sequence[Question]) -> bytes:
    """Return a digest that is equal for the same image and questions."""
    digest = hashlib.blake2b(seen.digest, digest_size=16)

    def add(value: object) -> None:
        if isinstance(value, np.ndarray):
            digest.update(f"|{value.dtype}{value.shape}".encode())
            digest.update(np.ascontiguousarray(value).data)
        else:
            digest.update(f"|{value!r}".encode())

    for target in questions[0].targets:
        add(type(target).__name__)
        for each in fields(target):
            add(getattr(target, each.name))
    for question in questions:
        add([getattr(question, each.name) for each in fields(question) if each.name != "targets"])
    return digest.digest()


def _bytes_of(outcome: Outcome[Answer]) -> int | None:
    """Return the size of an answer in the cache, in bytes; None if it must not be cached."""
    answer = outcome.value
    if any(each.passes and each.passes.stopped for each in answer.explanations):
        return None  # a deadline stopped it; a later request may have more time
    # A view keeps the maps of its whole batch in memory, so these count.
    maps = [each.map if each.map.base is None else each.map.base for each in answer.explanations]
    return 2000 + answer.prediction.nbytes + sum(each.nbytes for each in maps)
