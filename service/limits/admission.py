"""Limits on the images in progress for each model, checked before any work on them.

A request for work on a model takes a place when its head has arrived, before its body is read. The
number of places adapts to how long requests take (`AdaptiveLimit`). Keys share the places: a key
with fewer than its share gets one although all are taken.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

from service.core.errors import RETRY_AFTER_SECONDS, QueueFull
from service.core.metrics import Metrics
from service.limits.adaptive_limit import LEAST, AdaptiveLimit
from service.limits.counters import Cells, LocalCounts, ServiceCounts

IMAGES: Final = "images"
COSTLY: Final = "costly images"
BODY_SECONDS: Final = 0.25
"""Time after which a request whose body has not arrived loses its place until it has."""
ACTIVE_SECONDS: Final = 1.0
"""Time after its last request in which a key counts among those that share the places."""


class AdmittedRequest:
    """One request's place among those in progress. `Admission.enter` makes it."""

    def __init__(
        self, model: _Model, key: str, now: float, *, number: int, began_alone: bool
    ) -> None:
        self.model = model
        self.key = key
        self.number = number
        """Number of the model's requests that have got a place, in all processes, and it is the
        latest of."""
        self.began_alone = began_alone
        """Whether no other request of the model was in progress when it came."""
        self.since = now
        """When the request arrived: its head, and then its body."""
        self.weight = 1
        """Number of places that it takes; 0 while it has lost its place."""
        self.is_costly = False
        self.images = 0
        """Number of its images, once it has been admitted."""
        self.was_answered = False
        self.was_computed = False
        """Whether the model has computed its answer, so that it was not a remembered one."""

    def arrive(self) -> None:
        """Record that the body has arrived."""
        self.model.arrive(self)

    def leave(self) -> None:
        """Free the place, once, when the request is answered or its caller has left."""
        self.model.leave(self)


class Admission:
    """Counts the images of each model in progress: being decoded, waiting, explained or drawn.

    Args:
        room: maximum number of images of one model. Costly images, which need many forward passes
            or many maps, may use half of it, so that they never exclude the others.
        tolerance: see `AdaptiveLimit`; 0: nothing but `room` limits the images.
        counts: the counts of the whole service; by default, this process is alone.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        room: int,
        *,
        metrics: Metrics,
        tolerance: float = 0.0,
        counts: ServiceCounts | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._room = room
        self._tolerance = tolerance
        self._metrics = metrics
        self._counts = counts or LocalCounts()
        self._clock = clock
        self._models: dict[str, _Model] = {}
        self.admitted = 0
        """Number of images that this process has admitted since its start."""

    def in_work(self, model: str) -> int:
        """Return the number of images of a model in progress."""
        return self._counts.total(f"{IMAGES} of {model}")

    @property
    def at_rest(self) -> bool:
        """Whether no image is in progress."""
        return not self._counts.total(IMAGES)

    def lately(self, seconds: float) -> bool:
        """Return whether work on images ended within the last `seconds`."""
        return monotonic() - self._counts.touched() < seconds

    def enter(self, name: str, key: str = "") -> AdmittedRequest:
        """Take a place for a request for work on a model.

        Args:
            name: name of the model, which may be invented.
            key: name of the API key of the request.

        Raises:
            QueueFull: if there is no place, or no room for an image.
        """
        self.check(name)
        model = self._models.get(name)
        if model is None:
            model = _Model(name, self, self._counts, self._clock)
        place = model.enter(key)
        self._models[name] = model
        return place

    def check(self, model: str, count: int = 1, *, costly: int = 0) -> None:
        """Check that there is room for `count` more images, `costly` of which are costly.

        Raises:
            QueueFull: if there is no room for them.
        """
        self._check(model, count, costly, already=False)

    @contextmanager
    def admit(
        self, model: str, count: int, *, costly: int, place: AdmittedRequest | None = None
    ) -> Iterator[None]:
        """Check that there is room for images, and count them until the block is left.

        Args:
            place: the place of their request, which they then take, several if they are many.

        Raises:
            QueueFull: if there is no room for them.
        """
        if place:
            place.model.admit(place, count, is_costly=costly > 0)
        # The images are counted before the check: otherwise two processes that check at the same
        # moment would both find room for the last image.
        with self._counted(model, count, costly):
            self._check(model, count, costly, already=True)
            self.admitted += count
            yield

    @contextmanager
    def hold(self, model: str, count: int, *, costly: int) -> Iterator[None]:
        """Count images that were admitted before, until the block is left, without a check."""
        self.admitted += count
        with self._counted(model, count, costly):
            yield

    def limit_of(self, cells: Cells) -> AdaptiveLimit:
        """Return a limit whose state is in `cells`."""
        return AdaptiveLimit(self._room, tolerance=self._tolerance, cells=cells, clock=self._clock)

    def drop(self, model: str) -> None:
        """Forget a model of which no request was admitted, as its name may be invented."""
        del self._models[model]

    def refuse(self, detail: str, retry_after: int, *, reason: str) -> QueueFull:
        """Count a refusal, and return it."""
        self._metrics.rejected.labels(reason=reason).inc()
        return QueueFull(f"{detail}; try again", retry_after=retry_after)

    def show(self, model: str, limit: AdaptiveLimit) -> None:
        """Show the state of a model's limit in the metrics."""
        self._metrics.admission_limit.labels(model=model).set(limit.number)
        self._metrics.admission_delay.labels(model=model).set(limit.delay)

    @contextmanager
    def _counted(self, model: str, count: int, costly: int) -> Iterator[None]:
        names = (IMAGES, count), (f"{IMAGES} of {model}", count), (f"{COSTLY} of {model}", costly)
        for name, number in names:
            self._counts.add(name, number)
        try:
            yield
        finally:
            for name, number in names:
                self._counts.add(name, -number)
            self._counts.touch()

    def _check(self, model: str, count: int, costly: int, *, already: bool) -> None:
        """Check that there is room for images.

        Args:
            already: whether they are counted already.
        """
        half = -(-self._room // 2)
        for kind, number, room in ((IMAGES, count, self._room), (COSTLY, costly, half)):
            held = self._counts.total(f"{kind} of {model}") - (number if already else 0)
            # A request that is larger than the room is admitted if the room is empty.
            if number and held and held + number > room:
                raise self.refuse(
                    f"{held} {kind} are in progress for model {model!r}; at most {room} are "
                    "allowed",
                    RETRY_AFTER_SECONDS,
                    reason="queue full",
                )


class _Model:
    """The places of one model. All processes count against one limit."""

    def __init__(
        self, name: str, admission: Admission, counts: ServiceCounts, clock: Callable[[], float]
    ) -> None:
        self._name = name
        self._admission = admission
        self._counts = counts
        self._clock = clock
        self._places, self._present, self._entered, shared = (
            f"{what} of {name}" for what in ("places", "requests", "entries", "limit")
        )
        counts.publish(shared, 1)
        self._names = self._places, self._present, self._entered, shared
        self._limit = admission.limit_of(counts.cells(shared))
        self._shown = 0
        """The limit that the metrics show."""
        self._taken: Counter[str] = Counter()
        """Places that each key has taken in this process, without those of costly images."""
        self._costly = 0
        """Places of costly images, which are counted apart: they take so long that they would
        leave none to the others."""
        self._here = 0
        """Number of requests that have entered this process and not left."""
        self._reading: dict[AdmittedRequest, None] = {}
        """Requests whose bodies have not arrived, the oldest first."""
        self._asked: dict[str, float] = {}
        """When each key asked last."""
        self._is_known = False
        """Whether a request was ever admitted, so that there is such a model."""

    def enter(self, key: str) -> AdmittedRequest:
        now = self._clock()
        self._asked[key] = now
        if not self._has_place(key, now):
            raise self._refused()
        alone = self._counts.add(self._present, 1) == 1
        if alone:
            self._limit.wake()
        number = self._counts.add(self._entered, 1)
        place = AdmittedRequest(self, key, now, number=number, began_alone=alone)
        self._here += 1
        self._take(key, 1)
        self._reading[place] = None
        return place

    def _take(self, key: str, places: int) -> None:
        self._taken[key] += places
        self._counts.add(self._places, places)

    def arrive(self, place: AdmittedRequest) -> None:
        if place in self._reading:
            del self._reading[place]
            place.since = self._clock()

    def admit(self, place: AdmittedRequest, count: int, *, is_costly: bool) -> None:
        """Let a request begin, whose images are known now."""
        self._is_known = True
        self.arrive(place)
        limit = self._limit.number
        if not place.weight and not self._has_place(place.key, self._clock()):
            raise self._refused()
        self._take(place.key, -place.weight)
        place.weight = 0
        half = max(math.ceil(limit / 2), LEAST)
        weight = min(count, half)
        if is_costly:
            if self._costly and self._costly + weight > half:
                raise self._refused(kind="costly images")
            self._costly += weight
        elif count > 1 and self._counts.total(self._places) >= limit:
            raise self._refused()
        else:
            self._take(place.key, weight)
        place.weight, place.is_costly, place.images = weight, is_costly, count

    def leave(self, place: AdmittedRequest) -> None:
        self._reading.pop(place, None)
        self._limit.free(place.weight)
        if place.is_costly:
            self._costly -= place.weight
        else:
            self._take(place.key, -place.weight)
        self._counts.add(self._present, -1)
        self._here -= 1
        if place.images and not place.is_costly and place.was_answered:
            alone = place.began_alone and self._counts.total(self._entered) == place.number
            self._limit.note(
                self._clock() - place.since,
                alone=alone,
                images=place.images,
                computed=place.was_computed,
            )
            self._show()
        if not self._here:
            self._taken.clear()
            if not self._is_known:
                self._admission.drop(self._name)
                for name in self._names:
                    self._counts.publish(name, 0)

    def _show(self) -> None:
        if self._limit.number != self._shown:
            self._shown = self._limit.number
            self._admission.show(self._name, self._limit)

    def _has_place(self, key: str, now: float) -> bool:
        """Return whether a request may take a place: one is free, or the key has less than its
        share of them."""
        limit, taken = self._limit.number, self._counts.total(self._places)
        if taken < limit:
            return True
        for place in list(self._reading):
            if now - place.since < BODY_SECONDS:
                break
            del self._reading[place]
            self._take(place.key, -place.weight)
            taken -= place.weight
            place.weight = 0
        if taken < limit:
            return True
        if limit < LEAST or taken >= 2 * limit:
            return False
        self._asked = {
            key: asked for key, asked in self._asked.items() if now - asked < ACTIVE_SECONDS
        }
        return self._taken[key] < limit / len(self._asked) and len(self._asked) > 1

    def _refused(self, kind: str = "requests") -> QueueFull:
        self._limit.refuse()
        self._show()
        taken = self._costly if kind != "requests" else self._counts.total(self._places)
        return self._admission.refuse(
            f"{taken} {kind} are in progress for model {self._name!r}; it cannot answer more in "
            "time",
            self._limit.retry_after(self._taken.total() + self._costly),
            reason="limit",
        )
