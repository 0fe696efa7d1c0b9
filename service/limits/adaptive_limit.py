"""A limit on the requests in progress that adapts to how long they take.

The measure is the time of a request beside the time that one takes alone. While three quarters of
the requests take at most `tolerance` times as long, the limit grows by a quarter of its square
root; else it shrinks in proportion (Netflix's and Envoy's adaptive concurrency work alike). As in
Envoy, the time that a request takes alone is measured again from time to time: requests are refused
until a few have been in progress alone. Until it is known, the fastest request stands for it: under
load, it is the one that found nobody before it.

Processes that receive requests for the same model share one limit, as they share what it protects:
limits of their own would drift apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import median
from time import monotonic
from typing import Final

from service.limits.counters import Cells

FIRST: Final = 8
"""The limit before anything has been measured, and the least one after a rest."""
LEAST: Final = 2
"""One request that is computed, and one that waits for it."""
ALONE: Final = 3
"""Number of requests alone that make a reference."""
REMEMBERED: Final = 9
"""Number of requests alone of which the reference is the median."""
QUICK_SECONDS: Final = 0.05
"""A request may always take so long, because what disturbs it is as likely another process."""
LONG_SECONDS: Final = 1.5
"""A request should not take longer, unless it does so alone."""
OVER_ALONE: Final = 1.5
"""How many times as long as alone a request may take where `LONG_SECONDS` is too short."""
QUANTILE: Final = 0.75
WINDOW_SECONDS: Final = 0.1
WINDOW_REQUESTS: Final = 8
LONGEST_WINDOW_SECONDS: Final = 1.0
SHRINK: Final = 0.6
"""The limit shrinks to this share in one window at most."""
REST_SECONDS: Final = 5.0
"""Time without requests after which what they have shown of the limit no longer counts."""
REFRESH_SECONDS: Final = 60.0
REFRESH_REQUESTS: Final = 300
"""The reference is measured again when it is as old as so many requests alone, and at least
`REFRESH_SECONDS`. Measuring takes a few times as long as the requests in progress."""
DOUBTFUL: Final = 1.25
"""Requests that take so many times as long as the smallest limit explains show that the reference
is wrong."""
DOUBT_SECONDS: Final = 5.0
"""Age from which the reference is measured again if even the smallest limit does not keep it."""
PROBE_SECONDS: Final = 2.0
"""Least time for which requests are refused, if need be, in order to measure the reference."""
DRAIN_SECONDS: Final = 1.0
"""Time over which the rate is measured at which places become free."""
MOST_RETRY_SECONDS: Final = 60
LIMIT, REFERENCE, FASTEST, MEASURED_AT, PROBE_UNTIL, COUNT, SAMPLES = range(7)
"""Places in the cells. `COUNT` is the number of requests alone that have been measured, and the
latest of them are at `SAMPLES` and behind it."""


class AdaptiveLimit:
    """The number of requests that may be in progress at a time.

    Args:
        most: the largest limit.
        tolerance: how many times as long as alone three quarters of the requests may take. 0: the
            limit is always `most`.
        cells: numbers, 0 at first, that the processes share which have this limit.
        clock: returns the time in seconds, the same in all processes.
    """

    def __init__(
        self, most: int, *, tolerance: float, cells: Cells, clock: Callable[[], float] = monotonic
    ) -> None:
        self._most = most
        self._tolerance = tolerance
        self._cells = cells
        self._clock = clock
        self._window: list[float] = []
        self._remembered: list[float] = []
        """Seconds of the remembered answers in the window. They count if there are no others."""
        self._window_began = clock()
        self._noted_at = clock()
        self._was_full = False
        self._has_plain = False
        """Whether there has been a request of one image since the reference was measured."""
        self._freed = self._freed_before = 0
        self._freed_since = clock()
        self._freed_seconds_before = 0.0
        self.delay = 0.0
        """The latest quantile of the requests' seconds, which is compared with `target`."""

    @property
    def number(self) -> int:
        """The limit now."""
        return 1 if self._clock() < self._cells[PROBE_UNTIL] else int(self._limit)

    @property
    def reference(self) -> float:
        """Seconds that a request takes alone; 0 if that is not known yet."""
        return self._cells[REFERENCE] or self._cells[FASTEST]

    @property
    def target(self) -> float:
        """Seconds that three quarters of the requests may take; 0 if that is not known yet."""
        reference = self.reference
        if not reference:
            return 0.0
        wanted = max(self._tolerance * reference, QUICK_SECONDS)
        return min(wanted, max(LONG_SECONDS, OVER_ALONE * reference))

    @property
    def _limit(self) -> float:
        if not self._tolerance:
            return float(self._most)
        if self._cells[LIMIT]:
            return self._cells[LIMIT]
        # As many as are answered in time one after the other: together they take no longer.
        in_time = self.target / self.reference if self.reference else 0.0
        return min(max(float(FIRST), in_time), float(self._most))

    def refuse(self) -> None:
        """Record that a request has been refused. That is when the limit matters, so it is when the
        reference is measured if it is too old."""
        self._was_full = True
        now = self._clock()
        if not self._tolerance or not self.reference or now < self._cells[PROBE_UNTIL]:
            return
        if not self._has_plain:  # a probe would measure nothing
            return
        reference, age = self.reference, now - self._cells[MEASURED_AT]
        old = age > max(REFRESH_SECONDS, REFRESH_REQUESTS * reference)
        slow = max(self.target, DOUBTFUL * LEAST * reference)
        wrong = int(self._limit) <= LEAST and self.delay > slow and age > DOUBT_SECONDS
        if old or wrong or not self._cells[MEASURED_AT]:
            self._cells[COUNT] = 0
            self._has_plain = False
            self._cells[MEASURED_AT] = now  # also if no request comes that can be measured
            # Those that are in progress end first, and callers may leave too late a pause between
            # those that are alone.
            needed = (self._limit + 2 * ALONE) * reference
            self._cells[PROBE_UNTIL] = now + max(PROBE_SECONDS, needed)

    def note(self, seconds: float, *, alone: bool, images: int = 1, computed: bool = True) -> None:
        """Record a request that has been answered.

        Args:
            seconds: time from its arrival to its answer. Of several images, each is taken to
                have needed its share of it.
            alone: whether no other one was in progress in all that time.
            computed: whether the model computed the answer; else it was remembered.
        """
        if not self._tolerance:
            return
        now = self._clock()
        idle_until, self._noted_at = self._noted_at + LONGEST_WINDOW_SECONDS, now
        began = now - seconds
        seconds /= images
        if computed:
            self._cells[FASTEST] = min(self._cells[FASTEST] or seconds, seconds)
            self._has_plain |= images == 1
        # Of several images, each takes less than one alone.
        if alone and computed and images == 1 and self._measure(seconds):
            self._cells[MEASURED_AT] = now
            if now < self._cells[PROBE_UNTIL]:
                self._cells[PROBE_UNTIL] = now
                self._begin_window()  # what the probe has seen says nothing about the limit
                return
        if now < self._cells[PROBE_UNTIL]:
            return
        if began > idle_until:  # there was no request
            self._window.clear()
            self._remembered.clear()
            self._window_began = began
        window = self._window if computed else self._remembered
        if not self._window and not self._remembered:
            self._window_began = max(self._window_began, began)
        window.append(seconds)
        took = now - self._window_began
        enough = took >= WINDOW_SECONDS and len(window) >= WINDOW_REQUESTS
        if enough or took >= LONGEST_WINDOW_SECONDS:
            self._adapt()

    def _measure(self, seconds: float) -> bool:
        """Record a request alone. Return whether there are enough of them for a reference."""
        count = int(self._cells[COUNT])
        self._cells[SAMPLES + count % REMEMBERED] = seconds
        self._cells[COUNT] = count + 1
        if count + 1 < ALONE:
            return False
        latest = range(SAMPLES, SAMPLES + min(count + 1, REMEMBERED))
        self._cells[REFERENCE] = median(self._cells[cell] for cell in latest)
        return True

    def wake(self) -> None:
        """Record that a request has come where none was in progress."""
        now = self._clock()
        self._freed, self._freed_since = 0, now
        if self._tolerance and now - self._noted_at > REST_SECONDS:
            self._cells[LIMIT] = 0.0

    def free(self, places: int) -> None:
        """Record that places have become free."""
        self._freed += places
        took = self._clock() - self._freed_since
        if took >= DRAIN_SECONDS:
            self._freed_before, self._freed_seconds_before = self._freed, took
            self._freed, self._freed_since = 0, self._clock()

    def retry_after(self, taken: int) -> int:
        """Return the seconds after which all places that are taken will be free, at the rate at
        which places become free; at least 1."""
        seconds = self._clock() - self._freed_since + self._freed_seconds_before
        freed = self._freed + self._freed_before
        drained = taken * seconds / freed if freed else seconds
        return min(max(math.ceil(drained), 1), MOST_RETRY_SECONDS)

    def _adapt(self) -> None:
        ordered = sorted(self._window or self._remembered)
        self.delay = ordered[math.ceil(QUANTILE * len(ordered)) - 1]
        target = max(self.target, QUICK_SECONDS) if not self._window else self.target
        limit = self._limit
        if self.delay > target:
            limit = max(limit * max(target / self.delay, SHRINK), LEAST)
        elif self._was_full:
            limit += math.sqrt(limit) / 4
        self._cells[LIMIT] = min(limit, float(self._most))
        self._begin_window()

    def _begin_window(self) -> None:
        self._window.clear()
        self._remembered.clear()
        self._window_began = self._clock()
        self._was_full = False
