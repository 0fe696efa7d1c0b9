"""Watching a live model: statistics of the maps that it serves, and their comparison with a
reference of good photos."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Final

from cam import ClassTarget, Question
from cam.drift.comparison import compare
from cam.drift.map_statistics import STATISTICS, MapStatistics, row_of, statistics_of
from cam.drift.origin import Origin
from cam.drift.reference import Reference
from cam.drift.shift import FLAT, Comparison
from cam.drift.window import Window
from service.backend.outcome import ServedAnswer
from service.backend.work import NOTHING, Pixels
from service.core.errors import Problem
from service.core.metrics import Metrics
from service.features.drift.metrics import DriftMetrics
from service.features.drift.of_entry import reference_of
from service.features.drift.work import Drift
from service.models.catalog import ModelEntry
from service.models.info import ModelInfo
from service.models.preprocessing import ModelInput

CLASSES: Final = 20
"""Largest number of classes that have a series of their own."""
FREQUENT: Final = 50
"""Number of maps after which a class has a label of its own in the metrics."""
OTHER: Final = "other"
"""Label of all other classes in the metrics."""
ALL: Final = "all"
"""Label of all classes together in the metrics."""
PAUSE_SECONDS: Final = 10.0
"""Least time between two comparisons for the metrics, which take some 20 ms each. A caller who asks
for the drift may have one at any time."""
SHARE: Final = 0.05
"""Largest share of its time that the thread which answers spends on recording, in the long run: of
a photo of 224 × 224 pixels it takes about 1 ms, and an accelerator explains thousands a second."""
BURST_SECONDS: Final = 0.5
"""Seconds of recording that may be made up for: so many of the first maps after a pause are all
recorded."""
SAMPLED_AT_ONCE: Final = 2
"""Largest number of predictions that are explained for the watch at a time."""


class DriftWatch:
    """Records the maps of one model in a window and in metrics, and compares the window with the
    model's reference.

    Only maps of ordinary explanations that ask for the predicted class, by one method at one layer,
    of photos that were fitted to the input in one way, are recorded: others are about something
    else and cannot be compared. An answer from the cache is not recorded, because the photo would
    count twice. Where recording would take more than `SHARE` of the time, only some are recorded,
    whichever come when there is time.

    Args:
        reference: what the maps are compared with; without one, they are only counted.
        sample: share of predictions that are explained for the watch.
    """

    def __init__(
        self,
        model: ModelInfo,
        metrics: Metrics,
        reference: Reference | None = None,
        *,
        sample: float = 0.0,
    ) -> None:
        if reference is None:
            # Without a default layer, only maps that are asked for at a layer can be explained, and
            # none of them is recorded.
            able = model.has_layer("gradcam") and "gradcam" not in model.unsuited
            (layer,) = model.layers_of("gradcam") if able else ("",)
            sample = sample if layer else 0.0
            fit = model.preprocessing.default_fit
            origin = Origin(model.name, model.weights, "gradcam", layer, fit)
        else:
            origin = replace(reference.origin, model=model.name)
        self.question: Final = Question(
            (ClassTarget(background=model.background),), origin.method, (origin.layer,)
        )
        """The question whose answers are recorded."""
        self.reference: Final[Reference | None] = reference
        self._origin = origin
        self._metrics = metrics.own(DriftMetrics)
        self._sample = sample
        self._window = Window(classes=CLASSES)
        self._counts: Counter[int] = Counter()
        self._labels: dict[int, str] = {}
        self._names = model.labels
        often = Counter(model.labels.names)
        self._ambiguous = {ALL, OTHER} | {name for name, count in often.items() if count > 1}
        self._metrics.clear(model.name)  # what another model of this name has left
        self._seconds = BURST_SECONDS
        """Seconds that recording may take now."""
        self._asked = monotonic()
        """Time of `monotonic` at which these were counted."""
        self._compared = 0
        """Number of maps recorded when the latest comparison began."""
        self._next = 0.0
        """Time of `monotonic` after which there may be another one for the metrics."""
        self._sampling: set[asyncio.Task[None]] = set()
        self._comparing: asyncio.Task[Drift] | None = None
        """The comparison that is being made, whose result all who ask meanwhile are given."""
        self._later: asyncio.TimerHandle | None = None
        """The next comparison for the metrics."""
        self._closed = False

    async def close(self) -> None:
        """End all work of the watch."""
        self._closed = True
        if self._later is not None:
            self._later.cancel()
        for task in self._sampling:
            task.cancel()
        # A comparison takes milliseconds in a thread that cannot be stopped, and callers may wait
        # for it.
        working = [*self._sampling, *([self._comparing] if self._comparing else [])]
        if working:
            await asyncio.wait(working)
        self._metrics.clear(self._origin.model)

    def answered(
        self,
        seen: ModelInput,
        questions: Sequence[Question],
        answer: ServedAnswer,
        explain: Callable[[Question], Awaitable[ServedAnswer]],
    ) -> None:
        """Record an answer if its maps can be compared: if the photo was fitted to the model's
        input as those of the reference were, or in the usual way without a reference."""
        if seen.fit == self._origin.fit:
            self.note(questions, answer, seen.pixels)
            self.sample(questions, explain, seen.pixels)

    def note(
        self, questions: Sequence[Question], answer: ServedAnswer, pixels: Pixels | None = None
    ) -> None:
        """Record the maps of an answer that was computed for live traffic, if there is time.

        Args:
            questions: the questions as they were asked.
            pixels: what the model saw of the photo, uint8 (H, W, 3).
        """
        for question in questions:
            if self._asks(question) and self._has_time():
                begun = monotonic()
                for explanation in answer.explanations:
                    if (
                        explanation.method == question.method
                        and explanation.layer == question.layers[0]
                    ):
                        index = explanation.target.index
                        statistics = statistics_of(explanation.map, explanation.probability, pixels)
                        self._record(index, statistics)
                self._seconds -= monotonic() - begun

    def _has_time(self) -> bool:
        """Return whether there is time to record a map."""
        now = monotonic()
        self._seconds = min(self._seconds + (now - self._asked) * SHARE, BURST_SECONDS)
        self._asked = now
        return self._seconds > 0

    def sample(
        self,
        questions: Sequence[Question],
        explain: Callable[[Question], Awaitable[ServedAnswer]],
        pixels: Pixels | None = None,
    ) -> None:
        """Explain a prediction in the background, with the probability that the model's entry
        sets.

        Args:
            questions: the questions that were answered; only a prediction asks for no map.
            explain: answers a question about the same image, at background priority.
            pixels: what the model saw of the photo, uint8 (H, W, 3).
        """
        if tuple(questions) != (NOTHING,) or not self._sample:
            return
        full = len(self._sampling) >= SAMPLED_AT_ONCE
        if random.random() >= self._sample or full or self._closed:  # noqa: S311
            return

        async def work() -> None:
            with suppress(Problem):  # nobody waits for it
                self.note([self.question], await explain(self.question), pixels)

        task = asyncio.create_task(work(), name="explain a sample")
        self._sampling.add(task)
        task.add_done_callback(self._sampling.discard)

    async def drift(self) -> Drift:
        """Return what has moved since the reference was made. Callers who ask while a comparison is
        being made are given its result."""
        comparing = self._compare()
        # Unlike awaiting the task, waiting for it does not cancel it if this caller is cancelled.
        await asyncio.wait([comparing])
        return comparing.result()

    def _compare(self) -> asyncio.Task[Drift]:
        """Begin a comparison unless one is being made."""
        if self._comparing is None or self._comparing.done():
            self._comparing = asyncio.create_task(
                self._compared_now(), name="compare with the reference"
            )
        return self._comparing

    async def _compared_now(self) -> Drift:
        recorded, comparison = self._window.recorded, None
        if self.reference is not None:
            self._compared, self._next = recorded, monotonic() + PAUSE_SECONDS
            snapshot = self._window.snapshot()
            comparison = await asyncio.to_thread(compare, self.reference, snapshot)
            if not self._closed:
                self._tell(comparison)
            if self._window.recorded > recorded:
                self._plan()
        return Drift(
            origin=self._origin,
            recorded=recorded,
            size=self._window.size,
            made=None if self.reference is None else self.reference.made.isoformat(),
            photos=0 if self.reference is None else len(self.reference.rows),
            comparison=comparison,
        )

    def _asks(self, question: Question) -> bool:
        """Return whether the maps of a question can be compared with the recorded ones."""
        masked = any(
            isinstance(target, ClassTarget) and target.mask is not None
            for target in question.targets
        )  # masks are not compared by `==`
        return question == self.question and not masked

    def _record(self, index: int | None, statistics: MapStatistics | None) -> None:
        self._window.record(index, statistics)
        values = dict(zip(STATISTICS, row_of(statistics), strict=True))
        values[FLAT] = float(statistics is None)
        model, label = self._origin.model, self._label(index)
        for name, value in values.items():
            if not math.isnan(value):
                self._metrics.statistics.labels(model=model, label=label, statistic=name).observe(
                    value
                )
        self._plan()

    def _plan(self) -> None:
        """Have the metrics brought up to date: now, or when the pause since the latest comparison
        is over. A map that comes in a pause may be the last one for a long time."""
        if self.reference is None or self._closed or self._later is not None:
            return
        wait = max(self._next - monotonic(), 0.0)
        self._later = asyncio.get_running_loop().call_later(wait, self._catch_up)

    def _catch_up(self) -> None:
        self._later = None
        if self._window.recorded > self._compared:
            self._compare()

    def _label(self, index: int | None) -> str:
        """Return the label of a class in the metrics. At most `CLASSES` classes have their own: the
        first ones with `FREQUENT` maps. A model that takes the name of another one has the labels
        that are left."""
        if index is None:
            return OTHER
        if index not in self._labels:
            name, known = self._called(index), self._metrics.labels[self._origin.model]
            if name not in known:
                if len(known) >= CLASSES:
                    return OTHER
                self._counts[index] += 1
                if self._counts[index] < FREQUENT:
                    return OTHER
                known.add(name)
            self._labels[index] = name
            self._counts.pop(index, None)
        return self._labels[index]

    def _called(self, index: int) -> str:
        """Return the name of a class, with its index if the name alone means something else too."""
        name = self._names.name(index)
        if name is None:
            return str(index)
        return f"{name} ({index})" if name in self._ambiguous else name

    def _tell(self, comparison: Comparison) -> None:
        """Show a comparison in the metrics: of the classes that have a label of their own, and of
        all together."""
        samples = {
            (
                self._labels[shift.index] if shift.index is not None else ALL,
                shift.statistic,
            ): shift.psi
            for shift in comparison.shifts
            if shift.index is None or shift.index in self._labels
        }
        self._metrics.tell(
            self._origin.model,
            samples,
            moved=None if comparison.has_moved is None else len(comparison.moved),
            unknown=comparison.unknown,
        )


def watch_of(entry: ModelEntry, model: ModelInfo, metrics: Metrics) -> DriftWatch:
    """Return the watch of a model: see `MakeWatch`."""
    return DriftWatch(model, metrics, reference_of(entry, model), sample=entry.explain_sample)
