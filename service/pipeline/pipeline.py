"""The pipeline of one image: decode → preprocess → engine → draw. Routes, jobs, the folder command
and Ray all use it.

    async with pipeline.explain(replicas, instance) as result:
        explanations = await result.as_json()
"""

from __future__ import annotations

import asyncio
import math
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
    AnswerOptions,
    ClassTarget,
    Concept,
    Explanation,
    Observation,
    Question,
    SimilarityTarget,
    Target,
)
from cam.answers.answer import LEAST_SIDE, READ_OFF
from cam.drawing.heatmap import Box
from cam.drawing.overlay import Picture
from cam.evaluation.candidate import Candidate, candidates_of
from cam.evaluation.metrics import MetricOptions, Scores
from cam.reasons.cascade import Cascade, layer_of
from service.backend.answers import Outcome, ServedAnswer
from service.backend.interface import OBSERVED_AT_ONCE, Listener, ModelBackend, naming
from service.backend.timings import Timings
from service.backend.work import (
    AnswerQuestion,
    Embed,
    Evaluate,
    Explain,
    Factorise,
    Observe,
    ReadText,
)
from service.core import schemas
from service.core.errors import InvalidParameter, NotAcceptable, Problem, UnsuitedModel
from service.core.metrics import Metrics
from service.core.pool import PRIORITIES, Priority
from service.core.settings import Settings
from service.limits.counters import ServiceCounts
from service.limits.pixel_budget import PhotoPool, PixelBudget
from service.models.info import ModelInfo
from service.models.preprocessing import ModelInput
from service.pipeline.answer_parameters import AnswerParameters
from service.pipeline.answers import AnswerResult
from service.pipeline.evaluate_parameters import EvaluateParameters
from service.pipeline.evaluation import (
    Map,
    describe_scores,
    map_on_input,
    options_of,
    region_on_input,
    require_suited,
)
from service.pipeline.images import EncodedPhoto, picture_of
from service.pipeline.instances import Instance, P
from service.pipeline.json_records import describe_target, predict
from service.pipeline.observations import (
    NPZ,
    describe_activations,
    draw_concepts,
    draw_gallery,
    pack_arrays,
)
from service.pipeline.parameters import (
    ActivationParameters,
    Parameters,
    PredictParameters,
    points_at_photo,
)
from service.pipeline.resolve import (
    asked_model,
    cheapest,
    layers_of,
    method_of,
    placed,
    questions_of,
    target_of,
)
from service.pipeline.result import AnswerBudget, ImageResult

EXPLAINING_SHARE: Final = 0.875
"""Share of an answer's time that is left for methods with passes of their own: those with gradients
take five to ten times as long as the answer."""
ANSWERED_SIDE: Final = 1024
"""Longer side, in pixels, to which a photo is reduced before a question about it is answered."""
T = TypeVar("T")
SMALL_JPEG_BYTES: Final = 128 * 1024
"""Size of a JPEG whose header is read at once: that takes less than 0.1 ms, and at most 2 ms for a
malicious file, while a thread takes longer to start and to return. Malicious headers of the other
formats take up to 11 ms."""


class Pipeline:
    """Takes images through every step, and runs the heavy steps outside the event loop.

    Use it with `async with`: leaving the block ends the threads when their current work is done. A
    cancelled call keeps its thread until the thread's work ends, so the number of running threads
    is bounded.

    Args:
        max_pixels: maximum number of pixels of an image.
        pixel_budget: number of pixels of all images of interactive priority that are held at a
            time, from decoding to drawing. Images of background priority have a separate budget of
            half the size.
        threads: number of threads that decode and draw small images. Large images have threads of
            their own, one fewer.
        counts: the counts of the whole service; by default, this process is alone.
        fitting: returns the number of ordinary photos that fit although `pixel_budget` is smaller,
            by the number of images in the full batches of a model.
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
    ) -> None:
        self._max_pixels = max_pixels
        self._fitting = fitting
        self._metrics = metrics
        self._observing = asyncio.Semaphore(OBSERVED_AT_ONCE)
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
        """Explain one image. The photo holds its share of the pixel budget until the block is left.

        Args:
            instance: the image's bytes and its parameters.
            timings: the timings of the request, to which this image's phases are added.
            progress: is called with the progress of a method that makes many passes.
            priority: the priority of decoding, passes and drawing.
            budget: what the maps may take in the answer that the result is part of; None if they
                are not sent as numbers.
            until: time of `time.monotonic` at which a method of many passes stops and uses the
                passes that it has made, unless the parameters set a `budget`. Where maps are
                scored, it stops halfway.
            used: whether the explanations record what the model used (`cam.Explanation.used`).

        Raises:
            Problem: if this instance cannot be explained.
        """
        timings, model = timings or Timings(), _asked(replicas, instance)
        metrics = instance.parameters.evaluate or ()
        scores: tuple[Scores, ...] = ()
        if metrics:
            try:
                require_suited(metrics)
            except Problem as problem:
                raise instance.blame(problem) from None
            until = _part(until, 2)
        async with AsyncExitStack() as scope:
            opened = self._opened(model, instance, timings, priority)
            encoded, pool = await scope.enter_async_context(opened)
            if budget and instance.parameters.size == "image":
                budget.check(instance, encoded.pixels * instance.parameters.maps)
            photo, seen, questions, outcome = await self._explained(
                replicas,
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
                # Scores take seconds: the photo gives its room back meanwhile, and is decoded again
                # to be drawn.
                photo.close()
                await scope.aclose()
                scores = await self._scored(
                    replicas,
                    seen,
                    questions,
                    outcome.value,
                    metrics,
                    MetricOptions(),
                    timings,
                    progress,
                    prompts=_prompts_of(instance),
                )
                opened = self._opened(model, instance, timings, priority)
                encoded, pool = await scope.enter_async_context(opened)
                photo, seen = await self._seen(model, instance, encoded, pool, timings)
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
                self._metrics,
            )
            if budget:
                budget.take(instance, result.numbers)
            yield result

    async def evaluate(
        self,
        replicas: ModelBackend,
        instance: Instance[EvaluateParameters],
        timings: Timings,
        progress: Listener | None = None,
        until: float | None = None,
    ) -> list[schemas.Evaluation]:
        """Return the JSON schema objects of the scores of each map of one image, which the service
        makes or the caller has sent.

        Args:
            progress: is called with the number of forward passes that have been made.
            until: time of `time.monotonic` at which the scores should be there. A method of many
                passes takes half of the time until then, unless the parameters set a `budget`.

        Raises:
            Problem: if this instance cannot be evaluated.
        """
        model, metrics = _asked(replicas, instance), instance.parameters.metrics
        # The photo is gone by now: what follows takes many passes, and needs the input alone.
        seen, questions, answer, options, judged = await self._judged(
            replicas, instance, timings, progress, _part(until, 2)
        )
        scores = await self._scored(
            replicas,
            seen,
            questions,
            answer,
            metrics,
            options,
            timings,
            progress,
            judged,
            _prompts_of(instance),
        )
        return [
            schemas.Evaluation(
                instance=instance.index,
                id=instance.id,
                method=explanation.method if judged is None else None,
                layer=explanation.layer if judged is None else None,
                target=describe_target(explanation, model.labels, seen),
                scores=describe_scores(score, options, model.audited, seen.fit),
                warnings=list(explanation.warnings) if judged is None else [],
            )
            for explanation, score in zip(answer.explanations, scores, strict=True)
        ]

    async def predict(
        self, replicas: ModelBackend, instance: Instance[PredictParameters], timings: Timings
    ) -> schemas.Prediction:
        """Return the model's prediction for one image, from one forward pass.

        Raises:
            Problem: if there is no prediction for this instance.
        """
        model = _asked(replicas, instance)
        async with self._opened(model, instance, timings) as (encoded, pool):
            _, seen = await self._seen(model, instance, encoded, pool, timings)
            work = Explain(seen, watched=True, prompts=_prompts_of(instance))
            outcome = await replicas.ask(work)
        timings.note_outcome(outcome)
        return predict(outcome.value, model, seen, instance)

    async def observe(
        self, replicas: ModelBackend, instance: Instance[ActivationParameters], timings: Timings
    ) -> list[schemas.LayerActivation]:
        """Return the JSON schema objects of the layers that the parameters name, for one image.

        Raises:
            Problem: if this instance cannot be observed.
        """
        model, parameters = _asked(replicas, instance), instance.parameters
        async with self._opened(model, instance, timings) as (encoded, pool), self._observing:
            observed, seen = await self._observed(replicas, instance, encoded, pool, timings)
            concepts = {}
            if parameters.concepts is not None:
                concepts = await self._concepts(replicas, instance, seen, timings)
            describe = partial(describe_activations, observed, concepts, model.labels, instance)
            return await pool.run(describe)

    async def show(
        self,
        replicas: ModelBackend,
        instance: Instance[ActivationParameters],
        timings: Timings,
        media_type: str,
    ) -> bytes:
        """Return a picture of the only layer that the parameters name, for one image: its strongest
        feature maps or its concepts. With `NPZ`, return all layers' arrays as a NumPy file.

        Raises:
            NotAcceptable: if the media type cannot hold what the parameters ask for.
            Problem: if this instance cannot be observed.
        """
        model, parameters = _asked(replicas, instance), instance.parameters
        if parameters.concepts is not None and media_type == NPZ:
            raise NotAcceptable(f"concepts are numbers in JSON or a picture, not {NPZ}")
        async with self._opened(model, instance, timings) as (encoded, pool):
            if parameters.concepts is not None:
                photo, seen = await self._seen(model, instance, encoded, pool, timings)
                concepts = await self._concepts(replicas, instance, seen, timings)
                labels = model.labels
                return await pool.run(
                    lambda: draw_concepts(photo, seen, concepts, labels, media_type)
                )
            async with self._observing:
                observed, _ = await self._observed(replicas, instance, encoded, pool, timings)
                if media_type == NPZ:
                    return await pool.run(lambda: pack_arrays(observed))
                return await pool.run(lambda: draw_gallery(observed, parameters, media_type))

    async def input_of(
        self, model: ModelInfo, instance: Instance[PredictParameters], priority: Priority
    ) -> tuple[ModelInput, list[str]]:
        """Return what the model sees of one image, and the decoder's warnings.

        Raises:
            Problem: if the image cannot be decoded.
        """
        timings = Timings()
        async with self._opened(model, instance, timings, priority) as (encoded, pool):
            _, seen = await self._seen(model, instance, encoded, pool, timings)
            return seen, list(encoded.warnings)

    async def answer(
        self,
        replicas: ModelBackend,
        instance: Instance[AnswerParameters],
        timings: Timings,
        progress: Listener | None = None,
        until: float | None = None,
    ) -> AnswerResult:
        """Answer a question about one photo and explain each word.

        Args:
            progress: is called with each token as soon as it is said.
            until: time of `time.monotonic` at which the answer is cut off.

        Raises:
            Problem: if the question of this instance cannot be answered.
        """
        asked = instance.parameters
        if not asked.question.strip():
            problem = InvalidParameter(
                "question is empty; ask one, as in 'what is in the picture?'"
            )
            raise problem.at(instance.origins.get("question", "/parameters/question"))
        method = method_of(replicas.model, asked)
        for name, one_word in (("evaluate", asked.evaluate), ("method", method == "eagle")):
            if one_word and asked.word is None:
                what = "scores the map of" if name == "evaluate" else "'eagle' explains"
                problem = InvalidParameter(f"{name} {what} one word; name it by word")
                raise problem.at(instance.origins.get(name, f"/parameters/{name}"))
        if asked.region and not asked.evaluate:
            problem = InvalidParameter("region is for the scores of a word; set evaluate, too")
            raise problem.at(instance.origins.get("region", "/parameters/region"))
        async with self._opened(replicas.model, instance, timings) as (encoded, pool):

            def work() -> tuple[tuple[int, int], Picture, NDArray[np.bool_] | None]:
                with timings.phase("decode", self._metrics):
                    photo = encoded.decode()
                    small = photo.copy() if asked.region else photo
                    size = photo.size
                    long = max(ANSWERED_SIDE, math.ceil(LEAST_SIDE * max(size) / min(size)))
                    small.thumbnail((long, long), Image.Resampling.LANCZOS)
                    pixels = np.asarray(small)
                    if asked.region is None:
                        return size, pixels, None
                    seen = ModelInput.of(pixels, Box(0, 0, *size))
                    region = region_on_input(asked.region, photo, seen, max_pixels=self._max_pixels)
                    return size, pixels, region

            try:
                size, pixels, region = await pool.run(work)
            except Problem as problem:
                raise instance.blame(problem).at(instance.pointer) from None
        # What follows takes seconds, and holds the small photo alone.
        options = AnswerOptions(
            answer=asked.answer,
            max_tokens=asked.max_tokens,
            method=method,
            evidence=asked.evidence,
            alternatives=asked.alternatives,
            word=asked.word,
            evaluate=asked.evaluate,
            region=region,
        )
        if until is not None and method not in READ_OFF:
            until -= (until - monotonic()) * EXPLAINING_SHARE
        question = AnswerQuestion(pixels, asked.question, options, until)
        outcome = await replicas.ask(question, progress=progress)
        timings.note_outcome(outcome)
        return AnswerResult(instance, outcome.value, pixels, size, encoded.warnings)

    async def draw_answer(self, draw: Callable[[], T]) -> T:
        """Run the drawing of an answer in a thread for small images."""
        return await self._budgets["interactive"].small.run(draw)

    @asynccontextmanager
    async def _opened(
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
        _require_kind(model, instance)

        def open_photo() -> EncodedPhoto:
            if isinstance(instance.image, Problem):
                raise instance.image
            assert isinstance(instance.image, bytes)  # a remote image has been fetched by now
            return EncodedPhoto(instance.image, max_pixels=self._max_pixels)

        try:
            if _has_quick_header(instance.image):
                encoded = open_photo()
            else:
                encoded = await budget.small.run(open_photo)
        except Problem as problem:
            raise problem.at(instance.pointer) from None
        async with AsyncExitStack() as scope:
            with timings.phase("room", self._metrics):
                pool = await scope.enter_async_context(budget.hold(encoded.pixels, model.name))
            yield encoded, pool

    async def _explained(
        self,
        replicas: ModelBackend,
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
    ) -> tuple[Image.Image, ModelInput, tuple[Question, ...], Outcome[ServedAnswer]]:
        """Return the decoded photo, the model's input, the questions that the parameters ask, and
        their answer.

        Args:
            watched: see `Explain`.
            used: see `explain`.

        Raises:
            Problem: if this instance cannot be explained.
        """
        model = _asked(replicas, instance)
        try:
            questions = questions_of(model, instance.parameters)
            if isinstance(instance.parameters, EvaluateParameters) and instance.parameters.map:
                questions = cheapest(model, questions)
            photo, seen = await self._seen(model, instance, encoded, pool, timings)
            targets = await self._placed(replicas, instance, questions[0], photo, seen, priority)
        except Problem as problem:
            raise instance.blame(problem) from None
        questions = tuple(replace(each, targets=targets, used=used) for each in questions)
        first = _part(until, instance.parameters.reasons)
        work = Explain(seen, questions, priority, first, watched, _prompts_of(instance))
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
        """Return the answer's explanations, each followed by its further reasons, which are found
        in the photo with the mean colour in place of what is masked: see `cam.reasons`.

        Args:
            work: the work that has the answer.
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
                    until=_part(until, left - len(cascade.reasons)),
                )
                outcome = await replicas.ask(further, progress=progress)
                timings.note_outcome(outcome)
                (next_one,) = outcome.value.explanations
                cascade.add(replace(next_one, turn=explanation.turn))
            found += cascade.reasons
        return tuple(found)

    async def _judged(
        self,
        replicas: ModelBackend,
        instance: Instance[EvaluateParameters],
        timings: Timings,
        progress: Listener | None,
        until: float | None,
    ) -> tuple[ModelInput, tuple[Question, ...], ServedAnswer, MetricOptions, Map | None]:
        """Return what scoring an image's maps needs: the model's input, the questions, their answer
        with the maps, the metrics' options, and the map that was sent, on the input's pixels.

        Raises:
            Problem: if this instance cannot be evaluated.
        """
        parameters, limit = instance.parameters, self._max_pixels
        sent = parameters.map
        async with self._opened(replicas.model, instance, timings) as (encoded, pool):
            try:
                require_suited(parameters.metrics, parameters)
            except Problem as problem:
                raise instance.blame(problem) from None
            photo, seen, questions, outcome = await self._explained(
                replicas, instance, encoded, pool, timings, progress, until=until
            )

            def prepare() -> tuple[MetricOptions, Map | None]:
                options = options_of(parameters, photo, seen, max_pixels=limit)
                return options, None if sent is None else map_on_input(sent.b64, photo, seen)

            try:
                options, judged = await pool.run(prepare)
            except Problem as problem:
                raise instance.blame(problem) from None
        answer = outcome.value
        if judged is not None:
            answer = replace(answer, explanations=answer.explanations[:1])
        return seen, questions, answer, options, judged

    async def _scored(
        self,
        replicas: ModelBackend,
        seen: ModelInput,
        questions: Sequence[Question],
        answer: ServedAnswer,
        metrics: Sequence[str],
        options: MetricOptions,
        timings: Timings,
        progress: Listener | None,
        judged: Map | None = None,
        prompts: tuple[str, ...] = (),
    ) -> tuple[Scores, ...]:
        """Return the scores of each of the answer's maps, in their order.

        Args:
            judged: a map that takes the place of the answer's only one.
            prompts: texts that are the classes, if the request has some.
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
            # The class is not chosen again: another precision could choose another one.
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

    async def _seen(
        self,
        model: ModelInfo,
        instance: Instance[PredictParameters],
        encoded: EncodedPhoto,
        pool: PhotoPool,
        timings: Timings,
    ) -> tuple[Image.Image, ModelInput]:
        """Return the decoded photo, and the model's input."""

        def work() -> tuple[Image.Image, ModelInput]:
            with timings.phase("decode", self._metrics):
                photo = encoded.decode()
            with timings.phase("preprocess", self._metrics):
                return photo, model.preprocessing.apply(photo, instance.parameters.fit)

        try:
            return await pool.run(work)
        except Problem as problem:
            raise problem.at(instance.pointer) from None

    async def _placed(
        self,
        replicas: ModelBackend,
        instance: Instance[Parameters] | Instance[ActivationParameters],
        question: Question,
        photo: Image.Image,
        seen: ModelInput,
        priority: Priority = "interactive",
    ) -> tuple[Target, ...]:
        """Return the question's targets, with boxes and masks in the input's pixels, and with other
        photos as embeddings.

        Raises:
            Problem: if a target of this instance is not valid.
        """
        model, parameters = replicas.model, instance.parameters
        if not points_at_photo(parameters.target):
            return question.targets
        limit = self._max_pixels
        # The sizes of a mask and of another photo are not known yet, so they count as large.
        pool = self._budgets[priority].large
        place = partial(placed, model, question, parameters, photo, seen, max_pixels=limit)
        question, others = await pool.run(place)
        targets = list(question.targets)

        def look(b64: str) -> ModelInput:
            return model.preprocessing.apply(
                picture_of(b64, "target's like", max_pixels=limit), parameters.fit
            )

        for turn, other in others.items():  # one by one, so that only one photo is in memory
            if isinstance(other, ReadText):
                targets[turn] = (await replicas.ask(other)).value
                continue
            like = await pool.run(partial(look, other.b64))
            outcome = await replicas.ask(Embed(like.pixels, other.layer))
            targets[turn] = SimilarityTarget(other.layer, outcome.value, other.against)
        return tuple(targets)

    async def _observed(
        self,
        replicas: ModelBackend,
        instance: Instance[ActivationParameters],
        encoded: EncodedPhoto,
        pool: PhotoPool,
        timings: Timings,
    ) -> tuple[list[Observation], ModelInput]:
        """Observe the layers that the parameters name, and return the model's input as well.

        Raises:
            Problem: if this instance cannot be observed.
        """
        model, parameters = _asked(replicas, instance), instance.parameters
        try:
            layers = layers_of(model, parameters)
            target = target_of(model, parameters.target)
            photo, seen = await self._seen(model, instance, encoded, pool, timings)
            question = Question((target,), "gradcam", ())
            (target,) = await self._placed(replicas, instance, question, photo, seen)
        except Problem as problem:
            raise instance.blame(problem) from None
        work = Observe(seen.pixels, layers, target, _prompts_of(instance))
        outcome = await replicas.ask(work)
        timings.note_outcome(outcome)
        return outcome.value, seen

    async def _concepts(
        self,
        replicas: ModelBackend,
        instance: Instance[ActivationParameters],
        seen: ModelInput,
        timings: Timings,
    ) -> dict[str, list[Concept]]:
        """Return the concepts of each layer that the parameters name, keyed by layer.

        Raises:
            Problem: if a layer cannot be factorised for this instance.
        """
        parameters = instance.parameters
        try:
            layers = layers_of(replicas.model, parameters)
        except Problem as problem:
            raise instance.blame(problem) from None
        targets = {}
        for layer in layers:
            work = Factorise(seen.pixels, layer, parameters.concepts or 2)
            outcome = await replicas.ask(work)
            timings.note_outcome(outcome)
            targets[layer] = outcome.value
        return targets


def _require_kind(model: ModelInfo, instance: Instance[P]) -> None:
    """Check that a model that answers is asked a question, and that no other one is.

    Raises:
        UnsuitedModel: if it is not so.
    """
    if model.answers != isinstance(instance.parameters, AnswerParameters):
        raise UnsuitedModel(
            f"model {model.name!r} answers questions about photos; ask it at :answer"
            if model.answers
            else f"model {model.name!r} answers no questions, but predicts {model.kind}; :answer "
            "is for vision–language models"
        )


def _asked(replicas: ModelBackend, instance: Instance[PredictParameters]) -> ModelInfo:
    """Return the model, with the prompts of the instance as its classes if it has some.

    Raises:
        Problem: if the model takes no such prompts.
    """
    try:
        return asked_model(replicas.model, instance.parameters)
    except Problem as problem:
        raise problem.at(instance.origins.get("prompts", instance.pointer)) from None


def _prompts_of(instance: Instance[PredictParameters]) -> tuple[str, ...]:
    return tuple(instance.parameters.prompts or ())


def _same(question: Question, explanation: Explanation) -> Target:
    """Return the target of an explanation with its class, and with the mask that was asked."""
    target, turn = explanation.target, explanation.turn
    asked = question.targets[turn] if turn < len(question.targets) else None
    if isinstance(target, ClassTarget) and isinstance(asked, ClassTarget) and target.box is None:
        return replace(asked, index=target.index)
    return target


def _part(until: float | None, parts: int) -> float | None:
    """Return the end of the first of so many equal parts of the time that is left: what making a
    map may take where more is to be done, such as scoring it."""
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
    settings: Settings, metrics: Metrics, counts: ServiceCounts | None = None
) -> Pipeline:
    """Make a pipeline with the limits of the settings."""
    return Pipeline(
        max_pixels=settings.max_pixels,
        pixel_budget=settings.pixel_budget,
        threads=os.cpu_count() or 1,
        metrics=metrics,
        counts=counts,
        fitting=partial(settings.fitting, "pixel_budget"),
    )
