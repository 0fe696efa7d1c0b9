"""The way of one image: decode → preprocess → engine → draw. No step back, no second decode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import Any, TypeVar

from PIL import Image

from cam import Answer, Explanation, Observation, Question
from service import schemas
from service.batcher import Outcome
from service.engine import Engine
from service.errors import Problem
from service.images import decode
from service.metrics import Metrics
from service.parameters import ActivationParameters, Parameters, PredictParameters
from service.preprocessing import Fit, ModelInput
from service.questions import layers_of, question_of, target_of
from service.registry import ServedModel
from service.rendering import Drawing, describe, draw, encode, encode_values, top_classes
from service.requests import Instance

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Explained:
    """One image, what the model saw of it and what came out."""

    photo: Image.Image
    seen: ModelInput
    answer: Answer


@dataclass
class Timings:
    """Seconds per phase; of several images, the slowest one's."""

    seconds: dict[str, float] = field(default_factory=dict)
    batch_size: int = 0

    def note(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = max(self.seconds.get(phase, 0.0), seconds)

    def note_outcome(self, outcome: Outcome[Any]) -> None:
        self.note("queue", outcome.queued_seconds)
        self.note("forward_backward", outcome.run_seconds)
        self.batch_size = max(self.batch_size, outcome.batch_size)

    def header(self) -> str:
        """As a Server-Timing header: durations in milliseconds."""
        entries = []
        for phase, seconds in self.seconds.items():
            batch = f';desc="batch of {self.batch_size}"' if phase == "forward_backward" else ""
            entries.append(f"{phase};dur={seconds * 1000:.1f}{batch}")
        return ", ".join(entries)


class Explainer:
    """Takes instances through every step, keeping the heavy ones off the event loop.

    Use with `async with`: leaving it ends the threads when what they do is done. A caller who
    gives up frees no thread before its work ends, so never more than `threads` are at work.

    Args:
        max_pixels: of an image.
        threads: how many images are decoded or drawn at a time.
    """

    def __init__(self, *, max_pixels: int, threads: int, metrics: Metrics) -> None:
        self._max_pixels = max_pixels
        self._threads = threads
        self._metrics = metrics

    async def __aenter__(self) -> Explainer:
        self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix="explainer")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def explain(
        self, engine: Engine, instance: Instance[Parameters], timings: Timings
    ) -> Explained:
        """Ask the engine for the maps that the instance's parameters ask for.

        Raises:
            Problem: of this instance alone.
        """
        try:
            question = question_of(engine.model, instance.parameters)
        except Problem as problem:
            raise instance.blame(problem) from None
        return await self._answer(engine, instance, question, timings)

    async def predict(
        self, engine: Engine, instance: Instance[PredictParameters], timings: Timings
    ) -> Explained:
        """The same without a map: one forward pass.

        Raises:
            Problem: of this instance alone.
        """
        return await self._answer(engine, instance, Question((), "gradcam", ()), timings)

    async def observe(
        self, engine: Engine, instance: Instance[ActivationParameters], timings: Timings
    ) -> list[Observation]:
        """What the layers that the parameters name do with the instance.

        Raises:
            Problem: of this instance alone.
        """
        try:
            layers = layers_of(engine.model, instance.parameters)
            target = target_of(engine.model, instance.parameters.target)
        except Problem as problem:
            raise instance.blame(problem) from None
        _, seen = await self._seen(engine, instance, timings)
        outcome = await engine.observe(seen.tensor, layers, target)
        timings.note_outcome(outcome)
        return outcome.value

    async def describe(
        self,
        engine: Engine,
        instance: Instance[Parameters],
        explained: Explained,
        timings: Timings,
    ) -> list[schemas.Explanation]:
        """The instance's explanations as JSON has them."""

        def work(explanation: Explanation) -> schemas.Explanation:
            return describe(
                self.draw(explained, explanation, instance.parameters),
                explanation,
                engine.model.labels,
                instance.parameters,
                instance=instance.index,
                name=instance.id,
            )

        with self._phase("render", timings):
            # One by one: a caller who gives up does so between two maps.
            return [
                await self._in_thread(partial(work, explanation))
                for explanation in explained.answer.explanations
            ]

    async def render(
        self,
        instance: Instance[Parameters],
        explained: Explained,
        media_type: str,
        timings: Timings,
    ) -> bytes:
        """The instance's only explanation as a picture or as an .npy file."""
        (explanation,) = explained.answer.explanations
        parameters = instance.parameters

        def work() -> bytes:
            with self._phase("render", timings):
                drawing = self.draw(explained, explanation, parameters)
                if media_type == "application/x-npy":
                    raw = parameters.normalize == "none"
                    return encode_values(drawing.values if raw else drawing.scaled)
                kind = parameters.output or "overlay"
                picture = drawing.picture(kind, parameters.colormap, parameters.opacity)
                return encode(picture, media_type)

        return await self._in_thread(work)

    @staticmethod
    def predictions(
        engine: Engine, instance: Instance[PredictParameters], explained: Explained
    ) -> schemas.Prediction:
        return schemas.Prediction(
            instance=instance.index,
            id=instance.id,
            classes=top_classes(
                explained.answer.logits, engine.model.labels, instance.parameters.top_k
            ),
        )

    async def _answer(
        self,
        engine: Engine,
        instance: Instance[PredictParameters],
        question: Question,
        timings: Timings,
    ) -> Explained:
        photo, seen = await self._seen(engine, instance, timings)
        outcome = await engine.answer(seen.tensor, question)
        timings.note_outcome(outcome)
        return Explained(photo, seen, outcome.value)

    async def _seen(
        self, engine: Engine, instance: Instance[PredictParameters], timings: Timings
    ) -> tuple[Image.Image, ModelInput]:
        try:
            return await self._in_thread(partial(self._see, engine.model, instance, timings))
        except Problem as problem:
            raise problem.at(instance.pointer) from None

    def _see(
        self, model: ServedModel, instance: Instance[PredictParameters], timings: Timings
    ) -> tuple[Image.Image, ModelInput]:
        if isinstance(instance.image, Problem):
            raise instance.image
        with self._phase("decode", timings):
            photo = decode(instance.image, max_pixels=self._max_pixels)
        with self._phase("preprocess", timings):
            fit: Fit = instance.parameters.fit
            return photo, model.preprocessing.apply(photo, fit)

    @staticmethod
    def draw(explained: Explained, explanation: Explanation, parameters: Parameters) -> Drawing:
        """One of the maps on the pixels that the parameters ask for."""
        return draw(explained.photo, explained.seen, explanation, parameters.size)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    @contextmanager
    def _phase(self, name: str, timings: Timings) -> Iterator[None]:
        started = perf_counter()
        try:
            yield
        finally:
            seconds = perf_counter() - started
            timings.note(name, seconds)
            self._metrics.phase_seconds.labels(phase=name).observe(seconds)
