"""The engine of one model on one device: a batcher whose worker thread calls `cam`.

A forward hook on a shared module fires for the forward passes of every thread, so correct maps
require that one thread at a time runs the model. An accelerator is only given its work there: a
second thread waits for it and makes the answers, while the next batch is given.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from time import monotonic, perf_counter
from typing import Any, Final, cast

import numpy as np
import torch
from cachetools import LRUCache
from numpy.typing import NDArray
from torch import Tensor

from cam import (
    AnswerOptions,
    CamError,
    ClassTarget,
    Question,
    TextTarget,
    answer_in_steps,
    explain_batch,
    explain_in_steps,
)
from cam.agreement import Fidelity
from cam.drawing.samples import samples
from cam.errors import InvalidPrompt
from cam.explanation import ExplainedImage, join
from cam.hooks.inference import alone
from cam.outputs.output import Output
from cam.passes.batch_answer import BatchAnswer
from cam.passes.compiled_path import CompiledPath
from cam.passes.onepass import advise, begin_batch
from cam.progress import Progress
from cam.prompts import checked_prompts
from service.backend.interface import Listener
from service.backend.outcome import Boxes, Outcome, Prediction, ServedAnswer
from service.backend.work import (
    NOTHING,
    Explain,
    Pixels,
    ReadText,
    Steps,
    StepWork,
    Value,
    Work,
)
from service.core.choices import RuntimeName
from service.core.errors import (
    RETRY_AFTER_SECONDS,
    InvalidParameter,
    OutOfMemory,
    QueueFull,
    Unavailable,
    Unexplainable,
    typed_line,
)
from service.core.metrics import Metrics
from service.core.pool import Priority, in_own_thread
from service.engine.batcher import Batcher, BatcherClosed, BatcherFull, Later
from service.engine.fast_path import PrepareFastPath, WarmPath
from service.loading.devices import bind, is_of_memory
from service.loading.served_model import ServedModel

BACKGROUND_GROUP = 4
"""Number of background images in one forward pass on a CPU. Larger passes are no faster per image
there, and a small one ends soon."""

TRIALS = 2
"""Number of batches of each size by which the size of batches is chosen; the faster one counts."""
LONG_TRIAL_SECONDS = 1.0
"""Seconds for one batch of each size after which these are not tried once more."""
SLOWER = 1.1
"""An image may take this many times as long as in the most efficient batch, so that fewer images
wait for each other."""
LONG_SECONDS = 0.25
"""A batch that takes longer is enlarged only if that makes an image cheaper."""

log = logging.getLogger(__name__)
NO_PIXELS: Final = np.zeros((0, 0, 3), np.uint8)
"""The pixels of an item whose work needs no image."""
TEXTS: Final = 1024
"""Number of texts whose embeddings are kept."""


@dataclass(frozen=True, eq=False)
class _Item:
    pixels: Pixels
    questions: tuple[Question, ...]
    """At least one question; all of them have the same targets."""
    steps: Steps[object] | None = None
    """Generator of the item's own work. The worker runs one step of it each time that the item is
    submitted. None for an item that is answered as part of a batch."""
    priority: Priority = "interactive"
    repeatable: bool = False
    """Whether the last bits of the answer must not depend on what else is in the batch."""
    prompts: tuple[str, ...] = ()
    """Texts that are the classes for this item; () for the model's own."""
    weight: NDArray[np.float32] | None = None
    """What the model's `weight` is for these prompts, (P, D)."""
    warms: bool = False
    """Whether it is the warm-up's, and nobody's question."""


class Engine:
    """Answers questions about preprocessed images, many in one forward pass.

    Use with `async with`: leaving it finishes the queued items and ends the thread.

    Args:
        patience: seconds that an image may wait before the newest ones are taken first.
        cores: numbers of the CPU cores to which the worker thread, and the threads that torch
            starts from it, are bound; None for all cores.
        images: number of images that will be explained; None if that is not known.
        fast_path: prepares the fast path; None if there is none.
        changed: called when the fast path was prepared while requests were answered.
    """

    def __init__(
        self,
        model: ServedModel,
        *,
        max_queue: int,
        metrics: Metrics,
        patience: float = 0.0,
        cores: Sequence[int] | None = None,
        images: int | None = None,
        fast_path: PrepareFastPath | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.model = model
        self._changed = changed
        self._images = math.inf if images is None else images
        self._fullest = min(model.max_batch, max_queue)
        group = BACKGROUND_GROUP if model.device.type == "cpu" else model.max_batch
        self.group = min(group, model.max_batch)
        """Number of images in a forward pass of background work."""
        self._metrics = metrics
        self._waits = metrics.phase_seconds.labels(phase="queue")
        """The seconds that questions have waited."""
        self._runs = metrics.phase_seconds.labels(phase="forward_backward")
        """The seconds that batches have taken."""
        self._limits: dict[type[Work[Any]], asyncio.Semaphore] = {}
        self.limited: Counter[type[Work[Any]]] = Counter()
        """Number of works that run or wait, of each kind of which only a few run at a time."""
        self._prepare = fast_path
        self._fast: CompiledPath | None = None
        self._settling: asyncio.Task[None] | None = None
        self._texts: LRUCache[ReadText, TextTarget] = LRUCache(TEXTS)
        self._asked = False
        """Whether the worker thread runs the model with prompts of a request as its classes."""
        self.fidelities: dict[str, Fidelity] = {}
        """Method name → fidelity of its fast maps to the exact maps; empty without a fast path."""
        self.images_a_second = 0.0
        """Number of images that the warm-up explained in a second; 0 if it has not."""
        self.batcher: Batcher[_Item, object] = Batcher(
            self._run,
            # Each target costs the whole batch a backward pass, so only items with the same number
            # of targets share a batch.
            key=lambda item: (
                item.pixels.shape,
                len(item.questions),
                len(item.questions[0].targets),
                item.steps,
                # Each is a step of its own, so that interactive items wait for one of them alone.
                None if self._of_usual_size(item.pixels) else item,
                # The layers that targets look at are recorded for the whole batch.
                item.questions[0].looks_at,
                item.prompts,
                self._is_fast(item),
            ),
            cost=lambda item: (
                item.steps is not None,
                len(item.questions) * len(item.questions[0].targets) > 1,
            ),
            priority=lambda item: item.priority,
            max_batch=model.max_batch,
            max_queue=max_queue,
            patience=patience,
            name=f"engine {model.name}",
            prepare=partial(bind, cores),
            failed=self._failed,
        )
        """Queue and worker thread. If the thread is abandoned, because it may never end, so is the
        model, and all waiting requests are answered with 503."""

    async def __aenter__(self) -> Engine:
        await self.batcher.__aenter__()
        return self

    async def __aexit__(self, *raised: object) -> None:
        if self._settling:
            self._settling.cancel()
        await self.batcher.__aexit__(*raised)

    async def warm(self) -> None:
        """Run one image, prepare the fast path, run the largest batch, so that no request pays the
        cost of a first run, and choose the size of batches."""
        if self.model.answering:
            photo, few = self._sample(), AnswerOptions(max_tokens=2)
            steps = answer_in_steps(self.model.answering, photo, "a", few)
            await self._finished(_Item(photo, (NOTHING,), steps, warms=True), None)
            return
        await self._batch(1)
        if self._prepare:
            prepare = partial(self._prepare, self._images * await self._batch(1))
            if self.model.device.type == "cpu":
                await self.batcher.submit(
                    _Item(self._sample(), (NOTHING,), self._settle_fast(prepare), warms=True)
                )
            else:
                settling = self._settle_beside(prepare)
                self._settling = asyncio.create_task(settling, name="prepare the fast path")
        log.info("model %s: warming batches of up to %d images", self.model.name, self._fullest)
        await self._batch(self._fullest)
        await self._choose_batch()

    async def _choose_batch(self) -> None:
        """Choose how many interactive images a batch may hold: the smallest number that costs an
        image at most `SLOWER` times as long as the best one. A larger batch would only let images
        wait for each other. Once a batch takes longer than `LONG_SECONDS`, larger ones are tried
        only as long as they pay."""
        sizes = sorted({*(2**power for power in range(self._fullest.bit_length())), self._fullest})
        seconds: dict[int, float] = {}
        for _ in range(TRIALS):
            best = math.inf
            for count in sizes:
                took = await self._batch(count)
                seconds[count] = min(seconds.get(count, took), took)
                if took > LONG_SECONDS and SLOWER * took / count > best:
                    sizes = [size for size in sizes if size <= count]
                    break
                best = min(best, took / count)
            if sum(seconds.values()) > LONG_TRIAL_SECONDS:
                break
        self.batcher.interactive_batch = chosen = smallest_that_pays(seconds)
        self.images_a_second = chosen / seconds[chosen]
        log.info(
            "model %s: milliseconds an image in batches: %s; at most %d images wait for each other",
            self.model.name,
            ", ".join(f"{took / count * 1000:.1f} of {count}" for count, took in seconds.items()),
            chosen,
        )

    def _sample(self) -> Pixels:
        """Return an image that is not blank: for a blank one, a score may have no gradient, and the
        warning about it takes more passes."""
        size = self.model.preprocessing
        picture: Pixels = samples(1, size.height, size.width)[0]
        return picture

    async def _batch(self, count: int) -> float:
        """Run a batch of `count` images; return its seconds."""
        layer = self.model.default_layer
        question = Question((), "gradcam", ())  # the prediction alone
        if layer is not None and "gradcam" not in self.model.unsuited:
            question = Question((ClassTarget(),), "gradcam", (layer,))
        items = [_Item(self._sample(), (question,), warms=True)] * count
        futures = [self.batcher.submit(item) for item in items]
        return max([(await future).run_seconds for future in futures])

    def _settle_fast(self, prepare: Callable[[], WarmPath | None]) -> Steps[object]:
        self._take(prepare())
        yield from ()
        return []

    async def _settle_beside(self, prepare: Callable[[], WarmPath | None]) -> None:
        """Prepare the fast path in a thread of its own, while the exact one answers: a compiler
        takes minutes."""
        name = f"prepare {self.model.name}"
        try:
            warm = await in_own_thread(name, prepare)
        except Exception:
            log.exception("model %s has no fast path", self.model.name)
            warm = None
        self._take(warm)
        self._changed()

    def _take(self, warm: WarmPath | None) -> None:
        if warm:
            self.fidelities, self._fast = warm.fidelities, warm.path
        self._prepare = None  # frees the paths that are not used

    @property
    def runtime(self) -> RuntimeName:
        """What runs the model for the methods that `is_fast` names."""
        return self._fast.runtime if self._fast else self.model.runtime

    def is_fast(self, method: str) -> bool:
        """Return whether the method's maps at the default layer come from the fast path."""
        return method in self.fidelities and self.fidelities[method].enough

    def _is_fast(self, item: _Item) -> bool:
        return (
            self._fast is not None
            and item.steps is None
            and not item.prompts
            and self._of_usual_size(item.pixels)
            and all(self.is_fast(question.method) for question in item.questions)
            and all(map(self._fast.takes, item.questions))
        )

    def _of_usual_size(self, pixels: Pixels) -> bool:
        """Return whether an image has the size of the model's input. The grids of audits are
        larger: the fast path was not made for them, and a batch of them takes seconds."""
        size = self.model.preprocessing
        return pixels.shape[:2] == (size.height, size.width)

    async def ask(self, work: Work[Value], *, progress: Listener | None = None) -> Outcome[Value]:
        """Do a piece of work about one image: see `ModelBackend.ask`. The questions are one, or
        several of one-pass methods, which share the forward pass."""
        return await self.begin(work, progress=progress)

    def begin(
        self, work: Work[Value], *, progress: Listener | None = None
    ) -> Awaitable[Outcome[Value]]:
        """Begin a piece of work: see `ask`. What takes one step is in the queue when this returns,
        and needs no task of its own."""
        item = self._item(work)
        if item.steps or work.prompts or work.at_once or (item.repeatable and self._settling):
            return self._in_turn(work, item, progress)
        future = self.batcher.submit(item)
        if isinstance(work, Explain):
            future.add_done_callback(self._note_wait)
        return cast(Awaitable[Outcome[Value]], future)

    def _note_wait(self, answered: asyncio.Future[Outcome[object]]) -> None:
        """Record how long a question has waited."""
        if not answered.cancelled() and not answered.exception():
            self._waits.observe(answered.result().queued_seconds)

    async def _in_turn(
        self, work: Work[Value], item: _Item, progress: Listener | None
    ) -> Outcome[Value]:
        """Do a piece of work of several steps, or one that waits for others."""
        if item.repeatable and self._settling:
            await asyncio.wait([self._settling])  # a job has all its maps by one path
        doubts: tuple[str, ...] = ()
        if work.prompts:
            encoding = replace(item, pixels=NO_PIXELS, steps=self._encoded(work.prompts))
            encoded: Any = (await self._finished(encoding, None)).value
            weight, doubts = encoded
            item = replace(item, prompts=work.prompts, weight=weight)
        async with self._limit(type(work)):
            outcome = await self._finished(item, progress)
        if isinstance(outcome.value, ServedAnswer) and doubts:
            outcome = replace(outcome, value=outcome.value.doubted(doubts))
        if isinstance(work, Explain):
            self._waits.observe(outcome.queued_seconds)
        return cast(Outcome[Value], outcome)

    @asynccontextmanager
    async def _limit(self, kind: type[Work[Any]]) -> AsyncIterator[None]:
        """Wait until another work of this kind may run, and count it while the block is open."""
        if kind.at_once is None:
            yield
            return
        limit = self._limits.setdefault(kind, asyncio.Semaphore(kind.at_once))
        self.limited[kind] += 1
        try:
            async with limit:
                yield
        finally:
            self.limited[kind] -= 1

    def _item(self, work: Work[Any]) -> _Item:
        if isinstance(work, Explain):
            (first, *_) = work.questions
            return _Item(
                work.seen.pixels,
                tuple(work.questions),
                self._explain_in_steps(work) if first.in_steps else None,
                work.priority,
                # A job that continues after a crash answers again. Statistics of live traffic
                # need no repeatable last bits, which cost the passes of a whole group.
                repeatable=work.priority == "background" and not work.watched,
            )
        if isinstance(work, StepWork):
            return _Item(
                getattr(work, "pixels", NO_PIXELS), (NOTHING,), work.steps(self), work.priority
            )
        raise TypeError(f"{type(work).__name__} is not about one image")

    def _encoded(self, prompts: Sequence[str]) -> Steps[object]:
        """Return the rows of the model's `weight` for prompts, (P, D), and what is doubtful about
        them. Each one that is not known is encoded in a step of its own, so that other items do not
        wait for all of them."""
        targets = []
        for turn, prompt in enumerate(checked_prompts(prompts)):
            work = ReadText(prompt)
            if work not in self._texts:
                yield Progress(turn, len(prompts))
            targets.append(self.text(work))
        doubts = tuple(doubt for target in targets for doubt in target.doubts)
        return np.concatenate([target.weights for target in targets]), doubts

    def text(self, work: ReadText) -> TextTarget:
        """Return the target of a text, which is kept for the next time."""
        known = self._texts.get(work)
        if known is None:
            module: Any = self.model.module
            known = module.text_target(
                work.text, work.minus, against=work.against, words=work.words
            )
            self._texts[work] = known
        return known

    def _explain_in_steps(self, work: Explain) -> Steps[ServedAnswer]:
        """Answer the question of a method of many passes in the worker thread."""
        model, only, until = self.model, work.questions[0], work.until

        def stop() -> bool:
            return until is not None and only.budget is None and monotonic() > until

        answer = yield from explain_in_steps(
            model.module,
            self.input([work.seen.pixels])[0],
            only,
            chunk=model.max_batch,
            reading=model.reading,
            stop=stop,
        )
        return _plain(answer)

    def answered(
        self, images: Tensor, questions: Sequence[Question]
    ) -> Sequence[ExplainedImage | CamError]:
        """Answer one question for each image in the worker thread, by the fast path if it computes
        in float32. In a lower precision, probabilities would be wrong in their third digit."""
        fast, model = None if self._asked else self._fast, self.model
        if fast and fast.dtype == torch.float32 and all(map(self._may_be_fast, questions)):
            return fast.explain(images.contiguous(), questions)
        if model.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return explain_batch(
            model.module, images, questions, head=model.head, reading=model.reading
        )

    def _may_be_fast(self, question: Question) -> bool:
        """Return whether the fast path can answer the question, or only gives the output."""
        if not question.targets:
            return True
        return self.is_fast(question.method) and bool(self._fast and self._fast.takes(question))

    async def _finished(self, item: _Item, progress: Listener | None) -> Outcome[object]:
        """Run all steps of an item, and return the last outcome with the times of all steps."""
        queued, ran, begun = 0.0, 0.0, None
        while True:
            # Other items run between two steps, and cancelling the caller ends the work.
            now = perf_counter()
            outcome = await self.batcher.submit(item, begun=begun)
            begun = now if begun is None else begun
            queued, ran = queued + outcome.queued_seconds, ran + outcome.run_seconds
            if not isinstance(outcome.value, Progress):
                return replace(outcome, queued_seconds=queued, run_seconds=ran)
            if progress:
                progress(outcome.value)

    def _failed(self, item: _Item, error: Exception) -> Exception:
        """Return what the caller gets for an item that failed."""
        if item.warms:
            return error
        name, here = self.model.name, item.pixels.shape
        if isinstance(error, BatcherFull):
            self._metrics.rejected.labels(reason="queue full").inc()
            full = f"{error} for model {name!r}, which is the maximum; try again"
            return QueueFull(full, retry_after=RETRY_AFTER_SECONDS)
        if isinstance(error, BatcherClosed):
            return Unavailable(
                f"model {name!r} takes no more requests; try again",
                blamed="batch" if error.blamed else None,
            )
        if isinstance(error, InvalidPrompt):
            return InvalidParameter(str(error))
        if isinstance(error, CamError):
            return Unexplainable(f"model {name!r} cannot explain it: {error}")
        if is_of_memory(error):
            self._metrics.rejected.labels(reason="out of memory").inc()
            return OutOfMemory(
                f"model {name!r} has no memory left for this image, even alone; try again later, "
                "or with fewer targets or a smaller budget",
                retry_after=RETRY_AFTER_SECONDS,
            )
        if self._of_usual_size(item.pixels):
            return error
        size = f"{here[1]} × {here[0]} pixels"
        return Unexplainable(f"model {name!r} takes no image of {size}: {typed_line(error)}")

    def _run(self, items: list[_Item]) -> list[object] | Later[object]:
        try:
            with alone(self.model.module), self._asking(items[0].weight):
                return self._work(items)
        except (MemoryError, RuntimeError) as error:
            if is_of_memory(error) and self.model.device.type != "cpu":
                torch.accelerator.memory.empty_cache()
            raise  # the batcher then halves the batch and tries again

    @contextmanager
    def _asking(self, weight: NDArray[np.float32] | None) -> Iterator[None]:
        """Make prompts the model's classes within the block; None leaves it its own."""
        if weight is None:
            yield
            return
        module: Any = self.model.module
        own, self._asked = module.weight, True
        module.weight = own.new_tensor(weight)
        try:
            yield
        finally:
            module.weight, self._asked = own, False

    def _work(self, items: list[_Item]) -> list[object] | Later[object]:
        self._metrics.batch_size.labels(model=self.model.name).observe(len(items))
        if items[0].steps:
            with self._runs.time():
                try:
                    return [next(items[0].steps)]
                except StopIteration as stop:
                    return [stop.value]
        begun = perf_counter()
        groups = [items]
        if self._of_usual_size(items[0].pixels) and any(item.repeatable for item in items):
            # The last bits of a map depend on the number of images in the batch, not on which
            # images they are. Batches of a fixed size give a job the same maps if it continues
            # after a crash and its images are batched differently. Grids of audits, which have
            # another size, would be several times as expensive so.
            some = [items[start : start + self.group] for start in range(0, len(items), self.group)]
            groups = [each + each[:1] * (self.group - len(each)) for each in some]
        parts = [self._explained(group) for group in groups]
        finish = partial(self._finish, parts, len(items), begun)
        computes = any(part.answers.waits for part in parts)
        # Without a device that computes yet, another thread would only be in the way.
        return finish if computes and not self._asked else finish()

    def _explained(self, items: list[_Item]) -> _Part:
        model, pixels = self.model, [item.pixels for item in items]
        rounds = len(items[0].questions)
        questions = [item.questions[turn] for turn in range(rounds) for item in items]
        fast = all(map(self._is_fast, items))
        if self._fast and fast:
            images = model.normalise(np.stack(pixels)).contiguous()
            answers = self._fast.explain(images, questions)
        else:
            images = self.input(pixels, channels_last=model.channels_last)
            answers = begin_batch(
                model.module, images, questions, head=model.head, reading=model.reading
            )
        return _Part(images, answers, fast)

    def _finish(self, parts: Sequence[_Part], count: int, begun: float) -> list[object]:
        """Return the answers about all parts. Of a part that was filled up, the first count."""
        answers = list(islice(chain.from_iterable(map(self._answers, parts)), count))
        self._runs.observe(perf_counter() - begun)
        return answers

    def _answers(self, part: _Part) -> Iterator[object]:
        """Complete the answers about a part, for which the model may run again; yield them."""
        model, answers, count = self.model, part.answers, len(part.images)
        if answers.unreached:
            advise(model.module, part.images.to(model.dtype), answers, model.reading)
        for turn in range(count):
            yield _plain(join(answers[turn::count]), fast=part.fast)

    def input(self, pixels: Sequence[Pixels], *, channels_last: bool = False) -> Tensor:
        """Return images of one size, normalised and in the model's dtype, as (N, 3, H, W)."""
        layout = torch.channels_last if channels_last else torch.contiguous_format
        images = self.model.normalise(np.stack(pixels)).to(self.model.dtype)
        return images.contiguous(memory_format=layout)


@dataclass(frozen=True, eq=False)
class _Part:
    """Images of a batch, and the answers about them, which may be computed yet."""

    images: Tensor
    answers: BatchAnswer
    """First the first question's of each image."""
    fast: bool
    """Whether the fast path computes them."""


def smallest_that_pays(seconds: Mapping[int, float]) -> int:
    """Return the smallest number of images that in one batch cost an image at most `SLOWER` times
    what it costs in the best batch.

    Args:
        seconds: the seconds that a batch of each number of images takes.
    """
    shares = {count: took / count for count, took in seconds.items()}
    best = min(shares.values())
    return min(count for count, share in shares.items() if share <= SLOWER * best)


def _plain(answer: ExplainedImage | CamError, *, fast: bool = False) -> ServedAnswer | CamError:
    """Return an answer as plain data. Targets lose their masks, which no caller reads.

    Args:
        fast: whether the fast path has computed it.
    """
    if isinstance(answer, CamError):
        return answer
    explanations = tuple(
        replace(explanation, target=replace(explanation.target, mask=None))
        if isinstance(explanation.target, ClassTarget) and explanation.target.mask is not None
        else explanation
        for explanation in answer.explanations
    )
    methods = frozenset(each.method for each in explanations) if fast else frozenset()
    return ServedAnswer(_prediction(answer.output), explanations, methods)


def _prediction(said: Output) -> Prediction:
    if said.logits is not None:
        # Copies, because views would keep the numbers of the whole batch in memory.
        likely = said.probabilities
        return Prediction(
            said.logits.numpy().copy(), None if likely is None else likely.numpy().copy()
        )
    if said.segments is not None:
        counts = np.bincount(said.wins.ravel(), minlength=len(said.segments))
        return Prediction(shares=counts / counts.sum())
    assert said.detections is not None
    boxes = said.detections
    return Prediction(boxes=Boxes(boxes.boxes.numpy(), boxes.labels.numpy(), boxes.scores.numpy()))
