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

from cam.counts import counted
from service.core.errors import RETRY_AFTER_SECONDS, QueueFull
from service.core.metrics import Metrics
from service.limits.adaptive_limit import LEAST, AdaptiveLimit, Allowed, without_end
from service.limits.counters import LocalCounts, ServiceCounts

IMAGES: Final = "image"
COSTLY: Final = "costly image"
BODY_SECONDS: Final = 0.25
"""Time after which a request whose body has not arrived loses its place until it has."""
ACTIVE_SECONDS: Final = 1.0
"""Time after its last request in which a key counts among those that share the places."""
MOST_RETRY_SECONDS: Final = 60


class AdmittedRequest:
    """One request's place among those in progress. `Admission.enter` makes it."""

    def __init__(self, model: _Model, key: str, seconds: float, now: float) -> None:
        self.model = model
        self.key = key
        self.seconds = seconds
        """Seconds that its caller allows it."""
        self.since = now
        """When the request arrived: its head, and then its body."""
        self.weight = 0
        """Number of places that it takes; 0 also while it has lost its place."""
        self.found = 0
        """Number of places that were taken when it took its own, that one included."""
        self.is_costly = False
        self.images = 0
        """Number of its images, once it has been admitted."""
        self.was_answered = False
        self.batch = 0
        """Number of images that the model has computed together with its own; 0 if the answer was
        a remembered one."""

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
        allowed: the seconds that a request may take, see `AdaptiveLimit`; by default, nothing but
            `room` limits the images.
        counts: the counts of the whole service; by default, this process is alone.
        fitting: returns the number of images of a model that fit although `room` is smaller.
        warmed: returns the images a second of a model, as its warm-up has measured them; 0 if that
            is not known.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        room: int,
        *,
        metrics: Metrics,
        allowed: Allowed = without_end,
        counts: ServiceCounts | None = None,
        fitting: Callable[[str], int] = lambda model: 0,
        warmed: Callable[[str], float] = lambda model: 0.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._room = room
        self._allowed = allowed
        self._metrics = metrics
        self._counts = counts or LocalCounts()
        self._fitting = fitting
        self._warmed = warmed
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

    def enter(self, name: str, key: str = "", *, seconds: float = math.inf) -> AdmittedRequest:
        """Take a place for a request for work on a model.

        Args:
            name: name of the model, which may be invented.
            key: name of the API key of the request.
            seconds: seconds that its caller allows it.

        Raises:
            QueueFull: if there is no place, or no room for an image.
        """
        room = self._room_of(name)
        self._check(name, 1, 0, room)
        model = self._models.get(name)
        if model is None:
            model = _Model(name, self, self._counts, self._clock)
        model.room = room
        place = model.enter(key, seconds)
        self._models[name] = model
        return place

    def check(self, model: str, count: int = 1, *, costly: int = 0) -> None:
        """Check that there is room for `count` more images, `costly` of which are costly.

        Raises:
            QueueFull: if there is no room for them.
        """
        self._check(model, count, costly, self._room_of(model))

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
        with self._counted(model, count, costly) as held:
            room = place.model.room if place else self._room_of(model)
            self._check(model, count, costly, room, held)
            self.admitted += count
            yield

    @contextmanager
    def hold(self, model: str, count: int, *, costly: int) -> Iterator[None]:
        """Count images that were admitted before, until the block is left, without a check."""
        self.admitted += count
        with self._counted(model, count, costly):
            yield

    def limit_of(self, model: str, most: Callable[[], int]) -> AdaptiveLimit:
        """Return the limit of a model, which is never above `most`."""
        return AdaptiveLimit(
            f"limit of {model}",
            most,
            allowed=self._allowed,
            counts=self._counts,
            warmed=lambda: self._warmed(model),
            clock=self._clock,
        )

    def drop(self, model: str) -> None:
        """Forget a model without an admitted request, because its name may be invented."""
        del self._models[model]

    def refuse(self, detail: str, retry_after: int, *, reason: str) -> QueueFull:
        """Count a refusal, and return it."""
        self._metrics.rejected.labels(reason=reason).inc()
        return QueueFull(f"{detail}; try again", retry_after=retry_after)

    def show(self, model: str, limit: int, delay: float) -> None:
        """Show a model's limit and delay in the metrics."""
        self._metrics.admission_limit.labels(model=model).set(limit)
        self._metrics.admission_delay.labels(model=model).set(delay)

    @contextmanager
    def _counted(self, model: str, count: int, costly: int) -> Iterator[dict[str, int]]:
        """Count images until the block is left; yield how many others are counted."""
        more = {IMAGES: count, f"{IMAGES} of {model}": count}
        if costly:
            more[f"{COSTLY} of {model}"] = costly
        held = {name: self._counts.add(name, number) - number for name, number in more.items()}
        try:
            yield held
        finally:
            for name, number in more.items():
                self._counts.add(name, -number)
            self._counts.touch()

    def _room_of(self, model: str) -> int:
        return max(self._room, self._fitting(model))

    def _check(
        self, model: str, count: int, costly: int, whole: int, others: dict[str, int] | None = None
    ) -> None:
        """Check that there is room for images.

        Args:
            whole: maximum number of images of the model.
            others: the numbers of images without them, if they are counted already.
        """
        for kind, number, room in ((IMAGES, count, whole), (COSTLY, costly, -(-whole // 2))):
            if not number:
                continue
            name = f"{kind} of {model}"
            held = self._counts.total(name) if others is None else others[name]
            # A request that is larger than the room is admitted if the room is empty.
            if held and held + number > room:
                raise self.refuse(
                    f"{counted(held, f'{kind} is', f'{kind}s are')} in progress for model "
                    f"{model!r}; at most {counted(room, 'is', 'are')} allowed",
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
        self._places = f"places of {name}"
        self.room = 0
        """Maximum number of its images, as the latest request found it: to find it, the backend is
        asked about the model."""
        self._limit = admission.limit_of(name, lambda: self.room)
        self._shown = 0, 0.0
        """The limit and the delay that the metrics show."""
        self._taken: Counter[str] = Counter()
        """Places that each key has taken in this process, without those of costly images."""
        self._costly = 0
        """Places of costly images, which are counted apart: they take so long that they would
        leave none to the others."""
        self._costly_seconds = 0.0
        """Time that the latest request for costly images took."""
        self._here = 0
        """Number of requests that have entered this process and not left."""
        self._stirred = 0.0
        """When the latest of them left, or the first one entered."""
        self._reading: dict[AdmittedRequest, None] = {}
        """Requests whose bodies have not arrived, the oldest first."""
        self._asked: dict[str, float] = {}
        """When each key asked last."""
        self._is_known = False
        """Whether a request was ever admitted, so that there is such a model."""

    def enter(self, key: str, seconds: float) -> AdmittedRequest:
        now = self._clock()
        self._asked[key] = now
        place = AdmittedRequest(self, key, seconds, now)
        if not self._has_place(place, now):
            raise self._refused(place)
        if not self._here:
            self._stirred = now
        self._here += 1
        self._take(place, 1)
        self._reading[place] = None
        return place

    def _take(self, place: AdmittedRequest, weight: int) -> None:
        """Change the number of places that a request takes."""
        more = weight - place.weight
        if more:
            self._taken[place.key] += more
            place.weight, place.found = weight, self._counts.add(self._places, more)

    def arrive(self, place: AdmittedRequest) -> None:
        if place in self._reading:
            del self._reading[place]
            place.since = self._clock()

    def admit(self, place: AdmittedRequest, count: int, *, is_costly: bool) -> None:
        """Let a request begin, whose images are known now."""
        self._is_known = True
        self.arrive(place)
        limit = self._limit.number(place.seconds)
        if not place.weight and not self._has_place(place, self._clock()):
            raise self._refused(place)
        half = max(math.ceil(limit / 2), LEAST)
        weight = min(count, half)
        if is_costly:
            if self._costly and self._costly + weight > half:
                raise self._admission.refuse(
                    f"{counted(self._costly, 'costly image is', 'costly images are')} in progress "
                    f"for model {self._name!r}; at most {counted(half, 'is', 'are')} allowed",
                    self._retry_after(self._costly_seconds),
                    reason="limit",
                )
            self._take(place, 0)
            self._costly += weight
            place.weight, place.is_costly = weight, True
        elif count > 1 and self._counts.total(self._places) - place.weight >= limit:
            raise self._refused(place)
        else:
            self._take(place, weight)
        place.images = count

    def leave(self, place: AdmittedRequest) -> None:
        self._reading.pop(place, None)
        self._here -= 1
        self._stirred = self._clock()
        took = self._stirred - place.since
        if place.is_costly:
            self._costly -= place.weight
            self._costly_seconds = took
        else:
            found = place.found - place.weight + place.images
            self._take(place, 0)
            if place.was_answered:
                self._limit.note(took, found=found, waiting=place.found, batch=place.batch)
                self._show()
        if not self._here:
            self._taken.clear()
            if not self._is_known:
                self._admission.drop(self._name)
                for name in (self._places, *self._limit.names):
                    self._counts.publish(name, 0)

    def _show(self) -> None:
        now = self._limit.number(), self._limit.delay
        if now != self._shown:
            self._shown = now
            self._admission.show(self._name, *now)

    def _has_place(self, place: AdmittedRequest, now: float) -> bool:
        """Return whether a request may take a place: one is free, or the key has less than its
        share of them."""
        limit, taken = self._limit.number(place.seconds), self._counts.total(self._places)
        if taken < limit:
            return True
        for slow in list(self._reading):
            if now - slow.since < BODY_SECONDS:
                break
            del self._reading[slow]
            self._take(slow, 0)
        taken = self._counts.total(self._places)
        if taken < limit or taken >= 2 * limit:
            return taken < limit
        self._asked = {
            key: asked for key, asked in self._asked.items() if now - asked < ACTIVE_SECONDS
        }
        # Of a request whose body came late, no key may count any more.
        return len(self._asked) > 1 and self._taken[place.key] < limit / len(self._asked)

    def _refused(self, place: AdmittedRequest) -> QueueFull:
        taken, rate = self._counts.total(self._places), self._limit.rate
        why = f"at most {counted(self._limit.number(place.seconds), 'is', 'are')} allowed"
        if rate:
            why = (
                f"it answers {rate:.3g} a second, and a request may take "
                f"{self._limit.allowed(place.seconds):.3g} s"
            )
        return self._admission.refuse(
            f"{counted(taken, 'request is', 'requests are')} in progress for model "
            f"{self._name!r}; {why}",
            self._retry_after(taken / rate if rate else 0),
            reason="limit",
        )

    def _retry_after(self, seconds: float) -> int:
        """Return the whole seconds after which to come again, where those in progress are expected
        to take `seconds`; at least as many as have passed without an answer."""
        still = self._clock() - self._stirred if self._here else 0.0
        return min(max(math.ceil(seconds), math.ceil(still), 1), MOST_RETRY_SECONDS)
