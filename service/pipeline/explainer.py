"""The way of one image: decode → preprocess → engine → draw. No step back, no second decode."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType

from PIL import Image

from cam import Answer, Concept, Explanation, Observation, Question, SimilarityTarget
from cam.drawing.overlay import Picture
from service.core import schemas
from service.core.errors import NotAcceptable, Problem
from service.core.metrics import Metrics
from service.core.settings import Settings
from service.engine.engine import NOTHING, Listener
from service.engine.replicas import Replicas
from service.engine.timings import Timings
from service.limits.pixel_budget import Lanes
from service.models.preprocessing import Fit, ModelInput
from service.models.registry import ServedModel
from service.pipeline.coordinates import picture_of
from service.pipeline.descriptions import caption_of, describe, describe_target, predict
from service.pipeline.images import decode, measure
from service.pipeline.instances import Instance, P
from service.pipeline.parameters import (
    ActivationParameters,
    Parameters,
    PredictParameters,
    points_at_photo,
)
from service.pipeline.rendering import Drawing, draw, encode, encode_values
from service.pipeline.resolve import layers_of, placed, questions_of, target_of
from service.pipeline.work_item import WorkItem


@dataclass(frozen=True, eq=False)
class Explained:
    """One image, what the model saw of it and what came out."""

    photo: Image.Image
    seen: ModelInput
    answer: Answer


class Explainer:
    """Takes instances through every step, keeping the heavy ones off the event loop.

    Use with `async with`: leaving it ends the threads when what they do is done. A caller who
    gives up frees no thread before its work ends, so never more than there are are at work.

    Args:
        max_pixels: of an image.
        pixel_budget: of all images at a time, from their decoding until they are drawn.
        threads: how many images are decoded or drawn at a time; a large one beside them.
        patient: its images give way to those of all other explainers.
    """

    def __init__(
        self, *, max_pixels: int, pixel_budget: int, threads: int, metrics: Metrics, patient: bool
    ) -> None:
        self._max_pixels = max_pixels
        self._patient = patient
        self._lanes = Lanes(
            pixels=pixel_budget, threads=threads, largest=max_pixels, patient=patient
        )
        self._metrics = metrics

    async def __aenter__(self) -> Explainer:
        await self._lanes.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._lanes.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def work_item(
        self, replicas: Replicas, instance: Instance[P], timings: Timings
    ) -> AsyncIterator[WorkItem[P]]:
        """Open a case of one image: wait for room for it, which it has until the block is left.

        Raises:
            Problem: of this instance alone, if it is no image or too large a one.
        """
        try:
            pixels = await self._lanes.small.run(partial(self._measure, replicas.model, instance))
        except Problem as problem:
            raise problem.at(instance.pointer) from None
        async with AsyncExitStack() as scope:
            with timings.phase("room", self._metrics):
                room = self._lanes.room(pixels, replicas.model.name)
                lane = await scope.enter_async_context(room)
            yield WorkItem(replicas, instance, timings, lane, pixels)

    async def explain(
        self, work_item: WorkItem[Parameters], progress: Listener | None = None
    ) -> Explained:
        """Ask the engine for the maps that the instance's parameters ask for.

        Raises:
            Problem: of this instance alone.
        """
        try:
            questions = questions_of(work_item.replicas.model, work_item.instance.parameters)
            photo, seen = await self._seen(work_item)
            first = await self._placed(work_item, questions[0], photo, seen)
        except Problem as problem:
            raise work_item.instance.blame(problem) from None
        questions = tuple(replace(each, targets=first.targets) for each in questions)
        outcome = await work_item.replicas.answer(
            seen, *questions, progress=progress, patient=self._patient
        )
        work_item.timings.note_outcome(outcome)
        return Explained(photo, seen, outcome.value)

    async def predict(self, work_item: WorkItem[PredictParameters]) -> Explained:
        """The same without a map: one forward pass."""
        photo, seen = await self._seen(work_item)
        outcome = await work_item.replicas.answer(seen, NOTHING)
        work_item.timings.note_outcome(outcome)
        return Explained(photo, seen, outcome.value)

    async def observe(self, work_item: WorkItem[ActivationParameters]) -> list[Observation]:
        """What the layers that the parameters name do with the instance. Raises the same."""
        replicas, parameters = work_item.replicas, work_item.instance.parameters
        try:
            layers = layers_of(replicas.model, parameters)
            target = target_of(replicas.model, parameters.target)
            photo, seen = await self._seen(work_item)
            question = Question((target,), "gradcam", ())
            question = await self._placed(work_item, question, photo, seen)
        except Problem as problem:
            raise work_item.instance.blame(problem) from None
        outcome = await replicas.observe(seen.pixels, layers, question.targets[0])
        work_item.timings.note_outcome(outcome)
        return outcome.value

    async def concepts(
        self, work_item: WorkItem[ActivationParameters]
    ) -> tuple[Explained, dict[str, list[Concept]]]:
        """Layer → its concepts, of each layer that the parameters name.

        Raises:
            Problem: of this instance alone.
        """
        replicas, parameters = work_item.replicas, work_item.instance.parameters
        try:
            layers = layers_of(replicas.model, parameters)
        except Problem as problem:
            raise work_item.instance.blame(problem) from None
        photo, seen = await self._seen(work_item)
        said = await replicas.answer(seen, NOTHING)
        found = {}
        for layer in layers:
            outcome = await replicas.factorise(seen.pixels, layer, parameters.concepts or 2)
            work_item.timings.note_outcome(outcome)
            found[layer] = outcome.value
        return Explained(photo, seen, said.value), found

    async def describe(
        self, work_item: WorkItem[Parameters], explained: Explained
    ) -> list[schemas.Explanation]:
        """The instance's explanations as JSON has them."""
        instance = work_item.instance

        def work(number: int) -> schemas.Explanation:
            explanation = explained.answer.explanations[number]
            return describe(
                self.draw(explained, explanation, instance.parameters),
                explained.answer,
                number,
                work_item.replicas.model,
                explained.seen,
                instance.parameters,
                instance=instance.index,
                name=instance.id,
            )

        with work_item.timings.phase("render", self._metrics):
            # One by one: a caller who gives up does so between two maps.
            return [
                await work_item.lane.run(partial(work, number))
                for number in range(len(explained.answer.explanations))
            ]

    async def render(
        self, work_item: WorkItem[Parameters], explained: Explained, media_type: str
    ) -> bytes:
        """The instance's only explanation as a picture or as an .npy file."""
        explanations = explained.answer.explanations
        if len(explanations) != 1:  # of a detector, as many as there are boxes
            raise NotAcceptable(
                f"{media_type} holds exactly one map, and the answer has {len(explanations)}; ask "
                "for application/json or application/x-ndjson"
            )
        (explanation,) = explanations
        parameters = work_item.instance.parameters

        def work() -> bytes:
            with work_item.timings.phase("render", self._metrics):
                drawing = self.draw(explained, explanation, parameters)
                if media_type == "application/x-npy":
                    raw = parameters.normalize == "none"
                    return encode_values(drawing.values if raw else drawing.scaled)
                model = work_item.replicas.model
                picture = self.picture(model, explained, explanation, drawing, parameters)
                return encode(picture, media_type)

        return await work_item.lane.run(work)

    @staticmethod
    def predictions(
        work_item: WorkItem[PredictParameters], explained: Explained
    ) -> schemas.Prediction:
        return predict(
            explained.answer,
            work_item.replicas.model,
            explained.seen,
            work_item.instance.parameters.top_k,
            instance=work_item.instance.index,
            name=work_item.instance.id,
        )

    async def _placed(
        self,
        work_item: WorkItem[Parameters] | WorkItem[ActivationParameters],
        question: Question,
        photo: Image.Image,
        seen: ModelInput,
    ) -> Question:
        """The question with all that points at the photo, or at another one, in the model's terms.

        Raises:
            Problem: of this instance alone.
        """
        model, parameters = work_item.replicas.model, work_item.instance.parameters
        if not points_at_photo(parameters.target):
            return question
        limit = self._max_pixels
        place = partial(placed, model, question, parameters, photo, seen, max_pixels=limit)
        # Nobody has measured a mask or another photo: they are for the threads of large ones.
        question, others = await self._lanes.large.run(place)
        targets = list(question.targets)
        fit: Fit = parameters.fit

        def look(b64: str) -> ModelInput:
            return model.preprocessing.apply(picture_of(b64, "like", max_pixels=limit), fit)

        for turn, other in others.items():  # one by one: each photo is let go of before the next
            like = await self._lanes.large.run(partial(look, other.b64))
            outcome = await work_item.replicas.embed(like.pixels, other.layer)
            targets[turn] = SimilarityTarget(other.layer, outcome.value, other.against)
        return replace(question, targets=tuple(targets))

    async def _seen(self, work_item: WorkItem[P]) -> tuple[Image.Image, ModelInput]:
        try:
            return await work_item.lane.run(partial(self._see, work_item))
        except Problem as problem:
            raise problem.at(work_item.instance.pointer) from None

    def _measure(self, model: ServedModel, instance: Instance[P]) -> int:
        if isinstance(instance.image, Problem):
            raise instance.image
        assert isinstance(instance.image, bytes)  # it was fetched
        return measure(instance.image, max_pixels=self._max_pixels)

    def _see(self, work_item: WorkItem[P]) -> tuple[Image.Image, ModelInput]:
        model, instance, timings = work_item.replicas.model, work_item.instance, work_item.timings
        assert isinstance(instance.image, bytes)  # it was measured
        with timings.phase("decode", self._metrics):
            photo = decode(instance.image, max_pixels=self._max_pixels)
        with timings.phase("preprocess", self._metrics):
            fit: Fit = instance.parameters.fit
            return photo, model.preprocessing.apply(photo, fit)

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


def make_explainer(settings: Settings, metrics: Metrics, *, patient: bool = False) -> Explainer:
    return Explainer(
        max_pixels=settings.max_pixels,
        pixel_budget=settings.pixel_budget // (2 if patient else 1),
        threads=os.cpu_count() or 1,
        metrics=metrics,
        patient=patient,
    )
