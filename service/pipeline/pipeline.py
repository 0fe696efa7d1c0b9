"""The pipeline of one image: decode → preprocess → engine → draw. Routes, jobs, the folder command
and Ray all use it.

    async with pipeline.explain(replicas, instance) as result:
        explanations = await result.as_json()
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from typing import Final, TypeVar

from cam.evaluation.metrics import Scores
from service.backend.interface import OBSERVED_AT_ONCE, Listener, ModelBackend
from service.backend.timings import Timings
from service.backend.work import Explain
from service.core import schemas
from service.core.errors import Problem, UnsuitedModel
from service.core.metrics import Metrics
from service.core.pool import PRIORITIES, Priority
from service.core.settings import CoreSettings
from service.limits.counters import ServiceCounts
from service.limits.pixel_budget import PixelBudget
from service.models.info import ModelInfo
from service.models.preprocessing import ModelInput
from service.pipeline.evaluation import require_suited, scored
from service.pipeline.images import EncodedPhoto
from service.pipeline.instances import Instance, P
from service.pipeline.json_records import predict
from service.pipeline.opened_photo import OpenedPhoto, part_of
from service.pipeline.parameters import Parameters, PredictParameters
from service.pipeline.resolve import asked_model
from service.pipeline.result import AnswerBudget, ImageResult

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
        timings = timings or Timings()
        metrics = instance.parameters.evaluate or ()
        scores: tuple[Scores, ...] = ()
        if metrics:
            try:
                require_suited(metrics)
            except Problem as problem:
                raise instance.blame(problem) from None
            until = part_of(until, 2)
        async with AsyncExitStack() as scope:
            room = self.opened(replicas, instance, timings, priority)
            opened = await scope.enter_async_context(room)
            if budget and instance.parameters.size == "image":
                budget.check(instance, opened.encoded.pixels * instance.parameters.maps)
            photo, seen, questions, answer = await opened.explained(
                progress=progress, until=until, watched=priority == "interactive", used=used
            )
            if metrics:
                # Scores take seconds. Meanwhile the photo's memory is freed for other requests, and
                # the photo is decoded again for drawing.
                photo.close()
                await scope.aclose()
                scores = await scored(
                    replicas,
                    seen,
                    questions,
                    answer,
                    metrics,
                    timings,
                    progress=progress,
                    prompts=opened.prompts,
                )
                room = self.opened(replicas, instance, timings, priority)
                opened = await scope.enter_async_context(room)
                photo, seen = await opened.seen()
            result = ImageResult(
                instance,
                opened.model,
                photo,
                seen,
                answer,
                scores,
                opened.encoded.warnings,
                opened.pool,
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
        async with self.opened(replicas, instance, timings) as opened:
            _, seen = await opened.seen()
            outcome = await replicas.ask(Explain(seen, watched=True, prompts=opened.prompts))
        timings.note_outcome(outcome)
        return predict(outcome.value, opened.model, seen, instance)

    async def input_of(
        self, replicas: ModelBackend, instance: Instance[PredictParameters], priority: Priority
    ) -> tuple[ModelInput, list[str]]:
        """Return what the model sees of one image, and the decoder's warnings.

        Raises:
            Problem: if the image cannot be decoded.
        """
        async with self.opened(replicas, instance, Timings(), priority) as opened:
            _, seen = await opened.seen()
            return seen, list(opened.encoded.warnings)

    async def run(self, work: Callable[[], T]) -> T:
        """Run work on a small image in a thread, after its block of `opened` has ended."""
        return await self._budgets["interactive"].small.run(work)

    @asynccontextmanager
    async def opened(
        self,
        replicas: ModelBackend,
        instance: Instance[P],
        timings: Timings,
        priority: Priority = "interactive",
    ) -> AsyncIterator[OpenedPhoto[P]]:
        """Read the header of the instance's photo, wait for room for its pixels, and hold that room
        until the block is left.

        Raises:
            Problem: if the bytes are not an image, the image is too large, or the model does not
                take such a request.
        """
        try:
            model = asked_model(replicas.model, instance.parameters)
        except Problem as problem:
            raise problem.at(instance.origins.get("prompts", instance.pointer)) from None
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
            yield OpenedPhoto(
                instance=instance,
                replicas=replicas,
                model=model,
                encoded=encoded,
                pool=pool,
                large=budget.large,
                timings=timings,
                metrics=self.metrics,
                max_pixels=self.max_pixels,
                priority=priority,
            )

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
