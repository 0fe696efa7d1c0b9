"""A service on a clock that only its events move: callers, doors that share a limit, and a model
that computes batches."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from service.limits.adaptive_limit import AdaptiveLimit


class Clock:
    """A clock that stands still unless it is told."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Simulated:
    """A service whose model computes up to `batch` requests at once, the oldest first.

    Args:
        limits: the limit of each door.
        seconds: returns the seconds of a batch, by its size.
        workers: number of batches at a time.
        before: seconds of each request that nobody else waits for.
    """

    clock: Clock
    limits: Sequence[AdaptiveLimit]
    seconds: Callable[[int], float]
    batch: int = 1
    workers: int = 1
    before: float = 0.0
    answers: list[tuple[float, float]] = field(default_factory=list)
    """When each answer came, and after how many seconds."""
    refusals: list[float] = field(default_factory=list)
    places: list[tuple[float, int]] = field(default_factory=list)
    """When a request came, and how many were in progress then, with it if it was admitted."""

    def __post_init__(self) -> None:
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._turns = itertools.count()
        self._random = random.Random(0)
        self._queue: deque[Callable[[int], None]] = deque()
        self._idle = self.workers
        self._in_progress = 0

    def at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._turns), event))

    def run(self, seconds: float) -> None:
        """Let so many seconds pass."""
        until = self.clock.now + seconds
        while self._events and self._events[0][0] <= until:
            self.clock.now, _, event = heapq.heappop(self._events)
            event()
        self.clock.now = until

    def ask(
        self,
        answered: Callable[[], None] = lambda: None,
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        now, limit = self.clock.now, self._random.choice(self.limits)
        if self._in_progress >= limit.number():
            self.refusals.append(now)
            self.places.append((now, self._in_progress))
            refused()
            return
        self._in_progress += 1
        self.places.append((now, self._in_progress))
        found = self._in_progress

        def answer(batch: int) -> None:
            self._in_progress -= 1
            took = self.clock.now - now
            self.answers.append((self.clock.now, took))
            limit.note(took, found=found, waiting=self._in_progress, batch=batch)
            answered()

        def queue() -> None:
            self._queue.append(answer)
            self._compute()

        self.at(now + self.before, queue)

    def _compute(self) -> None:
        while self._idle and self._queue:
            self._idle -= 1
            size = min(len(self._queue), self.batch)
            taken = [self._queue.popleft() for _ in range(size)]

            def end(taken: list[Callable[[int], None]] = taken) -> None:
                self._idle += 1
                for answer in taken:
                    answer(len(taken))
                self._compute()

            self.at(self.clock.now + self.seconds(size), end)

    def callers(self, count: int, pause: float = 0.1, until: float = float("inf")) -> None:
        """Add callers who ask again when they are answered, and `pause` after a refusal."""

        def ask() -> None:
            if self.clock.now < until:
                self.ask(
                    lambda: self.at(self.clock.now, ask),
                    lambda: self.at(self.clock.now + pause, ask),
                )

        for _ in range(count):
            self.at(self.clock.now, ask)

    def arrivals(self, rate: float) -> None:
        """Add requests that arrive at random."""

        def arrive() -> None:
            self.at(self.clock.now + self._random.expovariate(rate), arrive)
            self.ask()

        self.at(self.clock.now, arrive)

    def useful(self, since: float, patience: float) -> int:
        """Return the number of answers since a time that took at most `patience` seconds."""
        return sum(when >= since and took <= patience for when, took in self.answers)
