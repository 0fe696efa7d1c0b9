"""The way of one image: decode → preprocess → engine → draw. No step back, no second decode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import TypeVar

from PIL import Image

from cam import Answer, Concept, Explanation, Observation, Question, SimilarityTarget
from cam.overlay import Picture
from service import schemas
from service.crew import Crew
from service.descriptions import caption_of, describe, describe_target, predict
from service.engine import Listener
from service.errors import Problem
from service.images import MAX_SIDE, decode_reduced
from service.metrics import Metrics
from service.parameters import ActivationParameters, Parameters, PredictParameters
from service.placement import picture_of
from service.preprocessing import Fit, ModelInput
from service.questions import layers_of, placed, question_of, target_of
from service.registry import ServedModel
from service.rendering import Drawing, draw, encode, encode_values
from service.requests import Instance
from service.timings import Timings

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Explained:
    """One image, what the model saw of it and what came out."""

    photo: Image.Image
    seen: ModelInput
    answer: Answer


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
        self,
        crew: Crew,
        instance: Instance[Parameters],
        timings: Timings,
        progress: Listener | None = None,
    ) -> Explained:
        """Ask the engine for the maps that the instance's parameters ask for.

        Raises:
            Problem: of this instance alone.
        """
        try:
            question = question_of(crew.model, instance.parameters)
            photo, seen = await self._seen(crew, instance, timings)
            question = await self._placed(crew, instance, question, photo, seen)
        except Problem as problem:
            raise instance.blame(problem) from None
        outcome = await crew.answer(seen, question, progress)
        timings.note_outcome(outcome)
        return Explained(photo, seen, outcome.value)

    async def predict(
        self, crew: Crew, instance: Instance[PredictParameters], timings: Timings
    ) -> Explained:
        """The same without a map: one forward pass.

        Raises:
            Problem: of this instance alone.
        """
        photo, seen = await self._seen(crew, instance, timings)
        outcome = await crew.answer(seen, Question((), "gradcam", ()))
        timings.note_outcome(outcome)
        return Explained(photo, seen, outcome.value)

    async def observe(
        self, crew: Crew, instance: Instance[ActivationParameters], timings: Timings
    ) -> list[Observation]:
        """What the layers that the parameters name do with the instance.

        Raises:
            Problem: of this instance alone.
        """
        try:
            layers = layers_of(crew.model, instance.parameters)
            target = target_of(crew.model, instance.parameters.target)
            photo, seen = await self._seen(crew, instance, timings)
            question = Question((target,), "gradcam", ())
            question = await self._placed(crew, instance, question, photo, seen)
        except Problem as problem:
            raise instance.blame(problem) from None
        outcome = await crew.observe(seen.tensor, layers, question.targets[0])
        timings.note_outcome(outcome)
        return outcome.value

    async def concepts(
        self, crew: Crew, instance: Instance[ActivationParameters], timings: Timings
    ) -> tuple[Explained, dict[str, list[Concept]]]:
        """Layer → its concepts, of each layer that the parameters name.

        Raises:
            Problem: of this instance alone.
        """
        try:
            layers = layers_of(crew.model, instance.parameters)
        except Problem as problem:
            raise instance.blame(problem) from None
        photo, seen = await self._seen(crew, instance, timings)
        said = await crew.answer(seen, Question((), "gradcam", ()))
        found = {}
        for layer in layers:
            count = instance.parameters.concepts or 2
            outcome = await crew.factorise(seen.tensor, layer, count)
            timings.note_outcome(outcome)
            found[layer] = outcome.value
        return Explained(photo, seen, said.value), found

    async def describe(
        self,
        crew: Crew,
        instance: Instance[Parameters],
        explained: Explained,
        timings: Timings,
    ) -> list[schemas.Explanation]:
        """The instance's explanations as JSON has them."""

        def work(explanation: Explanation) -> schemas.Explanation:
            return describe(
                self.draw(explained, explanation, instance.parameters),
                explanation,
                crew.model,
                explained.seen,
                instance.parameters,
                instance=instance.index,
                name=instance.id,
            )

        with timings.phase("render", self._metrics):
            # One by one: a caller who gives up does so between two maps.
            return [
                await self.in_thread(partial(work, explanation))
                for explanation in explained.answer.explanations
            ]

    async def render(
        self,
        crew: Crew,
        instance: Instance[Parameters],
        explained: Explained,
        media_type: str,
        timings: Timings,
    ) -> bytes:
        """The instance's only explanation as a picture or as an .npy file."""
        (explanation,) = explained.answer.explanations
        parameters = instance.parameters

        def work() -> bytes:
            with timings.phase("render", self._metrics):
                drawing = self.draw(explained, explanation, parameters)
                if media_type == "application/x-npy":
                    raw = parameters.normalize == "none"
                    return encode_values(drawing.values if raw else drawing.scaled)
                picture = self.picture(crew.model, explained, explanation, drawing, parameters)
                return encode(picture, media_type)

        return await self.in_thread(work)

    @staticmethod
    def predictions(
        crew: Crew, instance: Instance[PredictParameters], explained: Explained
    ) -> schemas.Prediction:
        return predict(
            explained.answer,
            crew.model,
            explained.seen,
            instance.parameters.top_k,
            instance=instance.index,
            name=instance.id,
        )

    async def _placed(
        self,
        crew: Crew,
        instance: Instance[Parameters | ActivationParameters],
        question: Question,
        photo: Image.Image,
        seen: ModelInput,
    ) -> Question:
        """The question with all that points at the photo, or at another one, in the model's terms.

        Raises:
            Problem: of this instance alone.
        """
        place = partial(
            placed,
            crew.model,
            question,
            instance.parameters,
            photo,
            seen,
            max_pixels=self._max_pixels,
        )
        question, others = await self.in_thread(place)
        targets = list(question.targets)
        fit: Fit = instance.parameters.fit

        def look(b64: str) -> ModelInput:
            other = picture_of(b64, "like", max_pixels=self._max_pixels)
            return crew.model.preprocessing.apply(other, fit)

        for turn, other in others.items():  # one by one: each photo is let go of before the next
            like = await self.in_thread(partial(look, other.b64))
            outcome = await crew.embed(like.tensor, other.layer)
            targets[turn] = SimilarityTarget(other.layer, outcome.value, other.against)
        return replace(question, targets=tuple(targets))

    async def _seen(
        self, crew: Crew, instance: Instance[PredictParameters], timings: Timings
    ) -> tuple[Image.Image, ModelInput]:
        try:
            return await self.in_thread(partial(self._see, crew.model, instance, timings))
        except Problem as problem:
            raise problem.at(instance.pointer) from None

    def _see(
        self, model: ServedModel, instance: Instance[PredictParameters], timings: Timings
    ) -> tuple[Image.Image, ModelInput]:
        if isinstance(instance.image, Problem):
            raise instance.image
        seen_as = model.preprocessing
        least = MAX_SIDE if instance.parameters.needs_whole_photo else seen_as.ample_side
        with timings.phase("decode", self._metrics):
            photo, whole = decode_reduced(
                instance.image, max_pixels=self._max_pixels, least_side=least
            )
        with timings.phase("preprocess", self._metrics):
            fit: Fit = instance.parameters.fit
            seen = seen_as.apply(photo, fit)
            return photo, replace(seen, box=seen.box.scaled(photo.size, whole))

    @staticmethod
    def draw(explained: Explained, explanation: Explanation, parameters: Parameters) -> Drawing:
        """One of the maps on the pixels that the parameters ask for."""
        return draw(explained.photo, explained.seen, explanation, parameters.size)

    @staticmethod
    def picture(
        model: ServedModel,
        explained: Explained,
        explanation: Explanation,
        drawing: Drawing,
        parameters: Parameters,
    ) -> Picture:
        """A drawing as the picture that the parameters ask for, an overlay unless they say so."""
        target = describe_target(explanation, model.labels, explained.seen)
        caption = caption_of(explanation, target, model)
        return drawing.picture(parameters.output or "overlay", parameters, caption)

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)
