"""The engines of one model, one for each device, and its memory of answers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields, replace

from torch import Tensor

from cam import Answer, Concept, Explanation, Observation, Question, Target
from cam.methods.subject import Progress
from cam.passes.fidelity import Fidelity
from service.core.metrics import Metrics
from service.core.pool import Priority
from service.engine.batcher import Outcome
from service.engine.engine import Engine, Listener, Pixels
from service.engine.response_cache import ResponseCache
from service.models.preprocessing import ModelInput
from service.models.registry import ServedModel


class Replicas:
    """Answers questions about preprocessed images at whichever engine has the least to do.

    The same image with the same question is answered once: those who ask meanwhile wait with the
    first, and answers are remembered while they are among the latest.

    Args:
        engines: at least one, entered and left by the caller; all of the same model.
        cache_bytes: of the answers to remember.
    """

    def __init__(self, engines: list[Engine], *, cache_bytes: int, metrics: Metrics) -> None:
        self.engines = tuple(engines)
        self._metrics = metrics
        self._response_cache: ResponseCache[Outcome[Answer], Progress] = ResponseCache(
            cache_bytes, _bytes_of
        )

    def replace(self, turn: int, engine: Engine) -> None:
        """Put another engine of the model in the place of one."""
        self.engines = (*self.engines[:turn], engine, *self.engines[turn + 1 :])

    @property
    def model(self) -> ServedModel:
        """As it is on the first device."""
        return self.engines[0].model

    @property
    def devices(self) -> str:
        """As people read them."""
        return ", ".join(str(engine.model.device) for engine in self.engines)

    @property
    def fidelity(self) -> float | None:
        """The worst of the methods that are served fast; None without."""
        found = [each.worst for name, each in self.fidelities.items() if self.is_fast(name)]
        return min(found, default=None)

    @property
    def fidelities(self) -> dict[str, Fidelity]:
        """Method → how much its fast maps are like the exact ones, on the engine where that is
        least."""
        judged = [engine.fidelities for engine in self.engines if engine.fidelities]
        names = dict.fromkeys(name for each in judged for name in each)
        return {
            name: min(
                (each[name] for each in judged if name in each),
                key=lambda found: (found.worst, found.median),
            )
            for name in names
        }

    def is_fast(self, method: str) -> bool:
        """Whether every engine makes the method's maps at the default layer in the fast way."""
        return all(engine.is_fast(method) for engine in self.engines)

    @property
    def alive(self) -> bool:
        """Whether there is an engine that works."""
        return any(engine.alive for engine in self.engines)

    @property
    def waiting(self) -> int:
        """Images in the queues."""
        return sum(engine.waiting for engine in self.engines)

    async def answer(
        self,
        seen: ModelInput,
        *questions: Question,
        progress: Listener | None = None,
        priority: Priority = "interactive",
        until: float | None = None,
    ) -> Outcome[Answer]:
        """Answer questions about one image, telling `progress` how far it is. What was answered
        before took no time, in a batch of 0.

        Args:
            questions: at least one, all with the same targets and each with a method of its own.
                Methods of one pass share a forward pass, those that are served fast another one;
                each method of many passes follows by itself. A class that is left to the model is
                the same for all of them.
            priority: background questions give way to interactive ones, and their answers are not
                remembered.
            until: see `Engine.answer`.

        Returns:
            One answer, its explanations in the questions' order.

        Raises:
            QueueFull, Unavailable, Unexplainable
        """
        if len(questions) == 1:
            return await self._answer(seen, questions, progress, priority, until)
        outcomes: list[Outcome[Answer]] = []
        found: dict[str, list[Explanation]] = {}
        for group in self._groups(questions):
            if outcomes:  # two passes, in two precisions, might disagree about the best class
                explained = outcomes[0].value.explanations
                targets = tuple({each.turn: each.target for each in explained}.values())
                group = tuple(replace(each, targets=targets) for each in group)
            told = progress and _naming(group[0].method, progress)
            outcomes.append(await self._answer(seen, group, told, priority, until))
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
        """The questions that one pass answers together."""
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
    ) -> Outcome[Answer]:
        """Answer questions of one pass, or one of many passes."""
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
        return Outcome(outcome.value, 0.0, 0.0, 0) if how == "remembered" else outcome

    async def observe(
        self, pixels: Pixels, layers: tuple[str, ...], target: Target
    ) -> Outcome[list[Observation]]:
        """See `Engine.observe`."""
        return await self._idlest().observe(pixels, layers, target)

    async def factorise(self, pixels: Pixels, layer: str, count: int) -> Outcome[list[Concept]]:
        """See `Engine.factorise`."""
        return await self._idlest().factorise(pixels, layer, count)

    async def embed(self, pixels: Pixels, layer: str) -> Outcome[Tensor]:
        """See `Engine.embed`."""
        return await self._idlest().embed(pixels, layer)

    def _idlest(self) -> Engine:
        return min(self.engines, key=lambda engine: (not engine.alive, engine.load))


def _naming(method: str, progress: Listener) -> Listener:
    """Tells also which of several methods is at work."""
    return lambda step: progress(replace(step, method=method))


def _key(seen: ModelInput, questions: Sequence[Question]) -> bytes:
    """Equal for the same image and questions."""
    digest = hashlib.blake2b(seen.digest, digest_size=16)

    def add(value: object) -> None:
        if isinstance(value, Tensor):
            digest.update(f"|{value.dtype}{tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().numpy().data)
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
    """What remembering an answer takes; None where it is not small."""
    output = outcome.value.output
    if any(each.passes and each.passes.stopped for each in outcome.value.explanations):
        return None  # who has more time gets more
    if output.segments is not None or output.layers:
        return None
    # What it shares with the batch stays as long as it does.
    numbers = sum(each.untyped_storage().nbytes() for each in output.numbers)
    maps = [
        each.map if each.map.base is None else each.map.base for each in outcome.value.explanations
    ]
    return 2000 + numbers + sum(each.nbytes for each in maps)
