"""The pipeline of one image: decode → preprocess → engine → draw. Routes, jobs, the folder command
and Ray all use it.

    async with pipeline.explain(replicas, instance) as result:
        explanations = await result.as_json()
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cam import (
    ClassTarget,
    Explanation,
    Question,
    SimilarityTarget,
    Target,
)
from cam.evaluation.candidate import Candidate, candidates_of
from cam.evaluation.metrics import MetricOptions, Scores
from cam.reasons.cascade import Cascade, layer_of
from service.backend.answers import Outcome, ServedAnswer
from service.backend.interface import OBSERVED_AT_ONCE, Listener, ModelBackend, naming
from service.backend.timings import Timings
from service.backend.work import (
    Embed,
    Evaluate,
    Explain,
    ReadText,
)
from service.core import schemas
from service.core.choices import WantedFit
from service.core.errors import Problem, UnsuitedModel
from service.core.metrics import Metrics
from service.core.pool import PRIORITIES, Priority
from service.core.settings import CoreSettings
from service.limits.counters import ServiceCounts
from service.limits.pixel_budget import PhotoPool, PixelBudget
from service.models.info import ModelInfo
from service.models.preprocessing import ModelInput
from service.pipeline.evaluation import require_suited
from service.pipeline.images import EncodedPhoto, picture_of
from service.pipeline.instances import Instance, P
from service.pipeline.json_records import predict
from service.pipeline.parameters import Parameters, PredictParameters
from service.pipeline.resolve import (
    asked_model,
    cheapest,
    placed,
    questions_of,
)
from service.pipeline.result import AnswerBudget, ImageResult
from service.pipeline.targets import TargetObject, TargetParameter

T = TypeVar("T")
SMALL_JPEG_BYTES: Final = 128 * 1024
"""Largest size of a JPEG whose header is read in the event loop. Reading it takes less than 0.1 ms,
and at most 2 ms for a malicious file, which is less than the cost of a thread. Malicious headers of
other formats take up to 11 ms."""


class Pipeline:
    """Takes images through every step, and runs the heavy steps outside the event loop.

    Use it with `async with`. When the block is left, each thread ends after its current work. A
    cancelled call keeps its thread until the thread's work ends, so the number of running threads
    is bounded.

    Args:
        max_pixels: maximum number of pixels of an image.
        pixel_budget: number of pixels of all images of interactive priority that are held at a
            time, from decoding to drawing. Images of background priority have a separate budget of
            half the size.
        threads: number of threads that decode and draw small images. Large images have separate
            threads, one fewer.
        counts: the counts of the whole service. By default, only this process is counted.
        fitting: takes the number of images in a full batch of a model, and returns the number of
            ordinary photos that fit even if `pixel_budget` is smaller.
        asking: name of the operation that asks models questions, if there is one.
    """

    def __init__(
        self,
        *,
        max_pixels: int,
        pixel_budget: int,
        threads: int,
        metrics: Metrics,
        counts: ServiceCounts | None = None,
        fitting: Callable[[int], int] = lambda batch: 0,
        asking: str | None = None,
    ) -> None:
        self.max_pixels = max_pixels
        self._asking = asking
        self._fitting = fitting
        self.metrics = metrics
        self.few_at_once = asyncio.Semaphore(OBSERVED_AT_ONCE)
        self._budgets = {
            priority: PixelBudget(
                pixels=pixel_budget // (2 if priority == "background" else 1),
                threads=threads,
                largest=max_pixels,
                priority=priority,
                counts=counts,
            )
            for priority in PRIORITIES
        }

    async def __aenter__(self) -> Pipeline:
        self._scope = ExitStack()
        for budget in self._budgets.values():
            self._scope.enter_context(budget)
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._scope.close()

    @asynccontextmanager
    async def explain(
        self,
        replicas: ModelBackend,
        instance: Instance[Parameters],
        *,
        timings: Timings | None = None,
        progress: Listener | None = None,
        priority: Priority = "interactive",
        budget: AnswerBudget | None = None,
        until: float | None = None,
        used: bool = False,
    ) -> AsyncIterator[ImageResult]:
        """Explain one image. Its photo counts against the pixel budget until the block is left.

        Args:
            instance: the image's bytes and its parameters.
            timings: the timings of the request, to which this image's phases are added.
            progress: called with the progress of a method of many passes.
            priority: the priority of decoding, passes and drawing.
            budget: the limit on the numbers of maps in the answer that contains the result; None if
                the maps are not sent as numbers.
            until: time of `time.monotonic` at which a method of many passes stops and uses the
                passes that it has made, unless the parameters set a `budget`. If maps are scored,
                it stops after half of the time.
            used: whether the explanations record what the model used (`cam.Explanation.used`).

        Raises:
            Problem: if this instance cannot be explained.
        """
        timings, model = timings or Timings(), asked_model_of(replicas, instance)
        metrics = instance.parameters.evaluate or ()
        scores: tuple[Scores, ...] = ()
        if metrics:
            try:
                require_suited(metrics)
            except Problem as problem:
                raise instance.blame(problem) from None
            until = part_of(until, 2)
        async with AsyncExitStack() as scope:
            opened = self.opened(model, instance, timings, priority)
            encoded, pool = await scope.enter_async_context(opened)
            if budget and instance.parameters.size == "image":
                budget.check(instance, encoded.pixels * instance.parameters.maps)
            photo, seen, questions, outcome = await self.explained(
                replicas,
                model,
                instance,
                encoded,
                pool,
                timings,
                progress,
                priority,
                until,
                watched=priority == "interactive",
                used=used,
            )
            if metrics:
                # Scores take seconds. Meanwhile the photo's memory is freed for other requests, and
                # the photo is decoded again for drawing.
                photo.close()
                await scope.aclose()
                scores = await self.scored(
                    replicas,
                    seen,
                    questions,
                    outcome.value,
                    metrics,
                    MetricOptions(),
                    timings,
                    progress,
                    prompts=prompts_of(instance),
                )
                opened = self.opened(model, instance, timings, priority)
                encoded, pool = await scope.enter_async_context(opened)
                photo, seen = await self.seen(model, instance, encoded, pool, timings)
            result = ImageResult(
                instance,
                model,
                photo,
                seen,
                outcome.value,
                scores,
                encoded.warnings,
                pool,
                timings,
                self.metrics,
            )
            if budget:
                budget.take(instance, result.numbers)
            yield result

    async def predict(
        self, replicas: ModelBackend, instance: Instance[PredictParameters], timings: Timings
    ) -> schemas.Prediction:
        """Return the model's prediction for one image, from one forward pass.

        Raises:
            Problem: if there is no prediction for this instance.
        """
        model = asked_model_of(replicas, instance)
        async with self.opened(model, instance, timings) as (encoded, pool):
            _, seen = await self.seen(model, instance, encoded, pool, timings)
            work = Explain(seen, watched=True, prompts=prompts_of(instance))
            outcome = await replicas.ask(work)
        timings.note_outcome(outcome)
        return predict(outcome.value, model, seen, instance)

    async def input_of(
        self, model: ModelInfo, instance: Instance[PredictParameters], priority: Priority
    ) -> tuple[ModelInput, list[str]]:
        """Return what the model sees of one image, and the decoder's warnings.

        Raises:
            Problem: if the image cannot be decoded.
        """
        timings = Timings()
        async with self.opened(model, instance, timings, priority) as (encoded, pool):
            _, seen = await self.seen(model, instance, encoded, pool, timings)
            return seen, list(encoded.warnings)

    async def run(self, work: Callable[[], T]) -> T:
        """Run work on a small image in a thread, after its block of `opened` has ended."""
        return await self._budgets["interactive"].small.run(work)

    @asynccontextmanager
    async def opened(
        self,
        model: ModelInfo,
        instance: Instance[P],
        timings: Timings,
        priority: Priority = "interactive",
    ) -> AsyncIterator[tuple[EncodedPhoto, PhotoPool]]:
        """Read the header of the instance's photo, wait for room for its pixels, and hold that room
        until the block is left. Yield the photo, and the pool whose threads work on it.

        Raises:
            Problem: if the bytes are not an image, or the image is too large.
        """
        budget = self._budgets[priority]
        budget.fit(self._fitting(model.max_batch))
        self._require_kind(model, instance)

        def open_photo() -> EncodedPhoto:
            if isinstance(instance.image, Problem):
                raise instance.image
            assert isinstance(instance.image, bytes)  # a remote image has been fetched by now
            return EncodedPhoto(instance.image, max_pixels=self.max_pixels)

        try:
            if _has_quick_header(instance.image):
                encoded = open_photo()
            else:
                encoded = await budget.small.run(open_photo)
        except Problem as problem:
            raise problem.at(instance.pointer) from None
        async with AsyncExitStack() as scope:
            with timings.phase("room", self.metrics):
                pool = await scope.enter_async_context(budget.hold(encoded.pixels, model.name))
            yield encoded, pool

    def _require_kind(self, model: ModelInfo, instance: Instance[P]) -> None:
        """Check that a model that answers questions is asked a question, and that any other model
        is not.

        Raises:
            UnsuitedModel: if the request does not suit the model.
        """
        if model.answers != instance.parameters.asks:
            where = f"; ask it at :{self._asking}" if self._asking else ""
            raise UnsuitedModel(
                f"model {model.name!r} answers questions about photos{where}"
                if model.answers
                else f"model {model.name!r} answers no questions, but predicts {model.kind}; only "
                "vision–language models are asked questions"
            )

    async def explained(
        self,
        replicas: ModelBackend,
        model: ModelInfo,
        instance: Instance[Parameters],
        encoded: EncodedPhoto,
        pool: PhotoPool,
        timings: Timings,
        progress: Listener | None = None,
        priority: Priority = "interactive",
        until: float | None = None,
        *,
        watched: bool = False,
        used: bool = False,
        blank: bool = False,
    ) -> tuple[Image.Image, ModelInput, tuple[Question, ...], Outcome[ServedAnswer]]:
        """Return the decoded photo, the model's input, the questions that the parameters ask, and
        their answer.

        Args:
            model: the model as the instance asks it: see `asked_model_of`.
            watched: see `Explain`.
            used: see `explain`.
            blank: whether only the targets and the prediction matter, so any method will do.

        Raises:
            Problem: if this instance cannot be explained.
        """
        try:
            questions = questions_of(model, instance.parameters)
            if blank:
                questions = cheapest(model, questions)
            photo, seen = await self.seen(model, instance, encoded, pool, timings)
            targets = await self.placed(
                replicas,
                questions[0],
                instance.parameters.target,
                instance.parameters.fit,
                photo,
                seen,
                priority,
            )
        except Problem as problem:
            raise instance.blame(problem) from None
        questions = tuple(replace(each, targets=targets, used=used) for each in questions)
        first = part_of(until, instance.parameters.reasons)
        work = Explain(seen, questions, priority, first, watched, prompts_of(instance))
        outcome = await replicas.ask(work, progress=progress)
        timings.note_outcome(outcome)
        if instance.parameters.reasons > 1:
            work = replace(work, until=until, watched=False)
            found = await self._reasons(
                replicas, instance.parameters, work, outcome.value, timings, progress
            )
            outcome = replace(outcome, value=replace(outcome.value, explanations=found))
        return photo, seen, questions, outcome

    async def _reasons(
        self,
        replicas: ModelBackend,
        parameters: Parameters,
        work: Explain,
        answer: ServedAnswer,
        timings: Timings,
        progress: Listener | None,
    ) -> tuple[Explanation, ...]:
        """Return the answer's explanations, each followed by its further reasons. To find them, the
        masked pixels of the photo are set to the mean colour: see `cam.reasons`.

        Args:
            work: the work that gave the answer.
        """
        seen, until = work.seen, work.until
        asked = {question.method: question for question in work.questions}
        blank = np.array(replicas.model.preprocessing.blank, np.uint8)
        height, width = seen.pixels.shape[:2]
        found: list[Explanation] = []
        for turn, explanation in enumerate(answer.explanations):
            question = replace(asked[explanation.method], targets=(explanation.target,))
            if name := layer_of(explanation, question.fuse):
                question = replace(question, layers=(name,))
            cascade = Cascade((height, width), parameters.reasons, parameters.threshold)
            cascade.add(explanation)
            while cascade.open:
                pixels = np.where(cascade.masked[..., None], blank, seen.pixels)
                left = (len(answer.explanations) - turn) * parameters.reasons
                further = replace(
                    work,
                    seen=ModelInput.of(pixels, seen.box, seen.fit),
                    questions=(question,),
                    until=part_of(until, left - len(cascade.reasons)),
                )
                outcome = await replicas.ask(further, progress=progress)
                timings.note_outcome(outcome)
                (next_one,) = outcome.value.explanations
                cascade.add(replace(next_one, turn=explanation.turn))
            found += cascade.reasons
        return tuple(found)

    async def scored(
        self,
        replicas: ModelBackend,
        seen: ModelInput,
        questions: Sequence[Question],
        answer: ServedAnswer,
        metrics: Sequence[str],
        options: MetricOptions,
        timings: Timings,
        progress: Listener | None,
        judged: NDArray[np.float32] | None = None,
        prompts: tuple[str, ...] = (),
    ) -> tuple[Scores, ...]:
        """Return the scores of each of the answer's maps, in their order.

        Args:
            judged: a map to score in place of the answer's only map.
            prompts: texts that are the classes, if the request has prompts.
        """
        scores: list[Scores] = []
        for question in questions:
            mine = [
                explanation
                for explanation in answer.explanations
                if explanation.method == question.method
            ]
            if not mine:
                continue
            # The class is fixed here: at another precision, the model could predict another one.
            named = {explanation.turn: _same(question, explanation) for explanation in mine}
            question = replace(question, targets=tuple(named[turn] for turn in sorted(named)))
            candidates = candidates_of(mine)
            if judged is not None:
                candidates = [Candidate(judged, mine[0].turn)]
            told = progress
            if progress and len(questions) > 1:
                told = naming(question.method, progress)
            work = Evaluate(seen.pixels, question, candidates, metrics, options, prompts)
            outcome = await replicas.ask(work, progress=told)
            timings.note("evaluate", outcome.run_seconds)
            scores += outcome.value
        return tuple(scores)

    async def seen(
        self,
        model: ModelInfo,
        instance: Instance[PredictParameters],
        encoded: EncodedPhoto,
        pool: PhotoPool,
        timings: Timings,
    ) -> tuple[Image.Image, ModelInput]:
        """Return the decoded photo, and the model's input."""

        def work() -> tuple[Image.Image, ModelInput]:
            with timings.phase("decode", self.metrics):
                photo = encoded.decode()
            with timings.phase("preprocess", self.metrics):
                return photo, model.preprocessing.apply(photo, instance.parameters.fit)

        try:
            return await pool.run(work)
        except Problem as problem:
            raise problem.at(instance.pointer) from None

    async def placed(
        self,
        replicas: ModelBackend,
        question: Question,
        sent: TargetParameter | None,
        fit: WantedFit,
        photo: Image.Image,
        seen: ModelInput,
        priority: Priority = "interactive",
    ) -> tuple[Target, ...]:
        """Return the question's targets. Boxes and masks are converted to pixels of the model's
        input, and other photos to embeddings.

        Args:
            sent: the targets as the request names them.
            fit: how other photos are fitted to the model's input.

        Raises:
            Problem: if a target is not valid.
        """
        model = replicas.model
        every = sent if isinstance(sent, list) else [sent]
        if not any(isinstance(one, TargetObject) for one in every):  # which points at the photo
            return question.targets
        limit = self.max_pixels
        # The sizes of a mask and of another photo are not known yet, so both count as large.
        pool = self._budgets[priority].large
        place = partial(placed, model, question, sent, photo, seen, max_pixels=limit)
        question, others = await pool.run(place)
        targets = list(question.targets)

        def look(b64: str) -> ModelInput:
            return model.preprocessing.apply(
                picture_of(b64, "target's like", max_pixels=limit), fit
            )

        for turn, other in others.items():  # one by one, so that only one photo is in memory
            if isinstance(other, ReadText):
                targets[turn] = (await replicas.ask(other)).value
                continue
            like = await pool.run(partial(look, other.b64))
            outcome = await replicas.ask(Embed(like.pixels, other.layer))
            targets[turn] = SimilarityTarget(other.layer, outcome.value, other.against)
        return tuple(targets)


def asked_model_of(replicas: ModelBackend, instance: Instance[PredictParameters]) -> ModelInfo:
    """Return the model. If the instance has prompts, they are the model's classes.

    Raises:
        Problem: if the model does not take such prompts.
    """
    try:
        return asked_model(replicas.model, instance.parameters)
    except Problem as problem:
        raise problem.at(instance.origins.get("prompts", instance.pointer)) from None


def prompts_of(instance: Instance[PredictParameters]) -> tuple[str, ...]:
    """Return the prompts of an instance: see `Explain`."""
    return tuple(instance.parameters.prompts or ())


def _same(question: Question, explanation: Explanation) -> Target:
    """Return an explanation's target for scoring: its class, and the mask that the question has."""
    target, turn = explanation.target, explanation.turn
    asked = question.targets[turn] if turn < len(question.targets) else None
    if isinstance(target, ClassTarget) and isinstance(asked, ClassTarget) and target.box is None:
        return replace(asked, index=target.index)
    return target


def part_of(until: float | None, parts: int) -> float | None:
    """Divide the time that is left into equal parts, and return the end of the first one. A map has
    to be ready by then if work such as scoring follows."""
    now = monotonic()
    return None if until is None else now + (until - now) / parts


def _has_quick_header(image: object) -> bool:
    """Return whether an image is a JPEG of at most `SMALL_JPEG_BYTES`."""
    return (
        isinstance(image, bytes)
        and image.startswith(b"\xff\xd8")
        and len(image) <= SMALL_JPEG_BYTES
    )


def make_pipeline(
    settings: CoreSettings,
    metrics: Metrics,
    counts: ServiceCounts | None = None,
    asking: str | None = None,
) -> Pipeline:
    """Make a pipeline with the limits of the settings: see `Pipeline`."""
    return Pipeline(
        max_pixels=settings.max_pixels,
        pixel_budget=settings.pixel_budget,
        threads=os.cpu_count() or 1,
        metrics=metrics,
        counts=counts,
        fitting=partial(settings.fitting, "pixel_budget"),
        asking=asking,
    )
