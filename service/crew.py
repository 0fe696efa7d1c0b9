"""The engines of one model, one for each device, and its memory of answers."""

from __future__ import annotations

import hashlib
from dataclasses import fields

from torch import Tensor

from cam import Answer, Concept, Observation, Question, Target
from cam.fidelity import Fidelity
from cam.methods.subject import Progress
from service.batcher import Outcome
from service.engine import Engine, Listener
from service.metrics import Metrics
from service.preprocessing import ModelInput
from service.recall import Recall
from service.registry import ServedModel


class Crew:
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
        self._recall: Recall[Outcome[Answer], Progress] = Recall(cache_bytes, _bytes_of)

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
        question: Question,
        progress: Listener | None = None,
        *,
        patient: bool = False,
    ) -> Outcome[Answer]:
        """Answer a question about one image, telling `progress` how far it is. What was answered
        before took no time, in a batch of 0.

        Args:
            patient: it gives way to all others, and takes no place in the memory of answers.

        Raises:
            QueueFull, Unavailable, Unexplainable
        """
        if patient:
            return await self._idlest().answer(seen.tensor, question, progress, patient=True)
        outcome, how = await self._recall.get(
            _key(seen, question),
            lambda report: self._idlest().answer(seen.tensor, question, report),
            progress,
        )
        self._metrics.answers.labels(model=self.model.name, how=how).inc()
        return Outcome(outcome.value, 0.0, 0.0, 0) if how == "remembered" else outcome

    async def observe(
        self, tensor: Tensor, layers: tuple[str, ...], target: Target
    ) -> Outcome[list[Observation]]:
        """See `Engine.observe`."""
        return await self._idlest().observe(tensor, layers, target)

    async def factorise(self, tensor: Tensor, layer: str, count: int) -> Outcome[list[Concept]]:
        """See `Engine.factorise`."""
        return await self._idlest().factorise(tensor, layer, count)

    async def embed(self, tensor: Tensor, layer: str) -> Outcome[Tensor]:
        """See `Engine.embed`."""
        return await self._idlest().embed(tensor, layer)

    def _idlest(self) -> Engine:
        return min(self.engines, key=lambda engine: (not engine.alive, engine.load))


def _key(seen: ModelInput, question: Question) -> bytes:
    """Equal for the same image and question."""
    digest = hashlib.blake2b(seen.digest, digest_size=16)

    def add(value: object) -> None:
        if isinstance(value, Tensor):
            digest.update(f"|{value.dtype}{tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().numpy().data)
        else:
            digest.update(f"|{value!r}".encode())

    for target in question.targets:
        add(type(target).__name__)
        for each in fields(target):
            add(getattr(target, each.name))
    add([getattr(question, each.name) for each in fields(question) if each.name != "targets"])
    return digest.digest()


def _bytes_of(outcome: Outcome[Answer]) -> int | None:
    """What remembering an answer takes; None where it is not small."""
    output = outcome.value.output
    if output.segments is not None or output.layers:
        return None
    # What it shares with the batch stays as long as it does.
    numbers = sum(each.untyped_storage().nbytes() for each in output.numbers)
    maps = [
        each.map if each.map.base is None else each.map.base for each in outcome.value.explanations
    ]
    return 2000 + numbers + sum(each.nbytes for each in maps)
