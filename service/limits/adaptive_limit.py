"""A limit on the requests in progress that adapts to how long they take.

The measure is the time of a request beside the time that one takes alone. While three quarters of
the requests take at most `tolerance` times as long, the limit grows by a quarter of its square
root; else it shrinks in proportion (Netflix's and Envoy's adaptive concurrency work alike). As in
Envoy, the time that a request takes alone is measured again from time to time: requests are refused
until a few have been in progress alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from statistics import median
from time import monotonic
from typing import Final

FIRST: Final = 8
"""The limit before anything has been measured."""
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
REFRESH_SECONDS: Final = 60.0
REFRESH_REQUESTS: Final = 100
"""The reference is measured again when it is as old as so many requests alone, and at least
`REFRESH_SECONDS`: so measuring takes a hundredth of the time at most."""
DOUBT_SECONDS: Final = 5.0
"""Age from which the reference is measured again if even the smallest limit does not keep it."""
PROBE_SECONDS: Final = 2.0
"""Longest time for which requests are refused in order to measure the reference."""
DRAIN_SECONDS: Final = 1.0
"""Time over which the rate is measured at which places become free."""
MOST_RETRY_SECONDS: Final = 60


class AdaptiveLimit:
    """The number of requests that may be in progress at a time.

    Args:
        most: the largest limit.
        tolerance: how many times as long as alone three quarters of the requests may take. 0: the
            limit is always `most`.
        clock: returns the time in seconds.
    """

    def __init__(
        self, most: int, *, tolerance: float, clock: Callable[[], float] = monotonic
    ) -> None:
        self._most = most
        self._tolerance = tolerance
        self._clock = clock
        self._limit = float(min(FIRST, most)) if tolerance else float(most)
        self._alone: deque[float] = deque(maxlen=REMEMBERED)
        self._reference = 0.0
        """Seconds of a request alone; 0 if unknown."""
        self._measured_at = -math.inf
        self._probe_until = -math.inf
        self._window: list[float] = []
        self._window_began = clock()
        self._noted_at = clock()
        self._was_full = False
        self._freed = self._freed_before = 0
        self._freed_since = clock()
        self._freed_seconds_before = 0.0
        self.delay = 0.0
        """The latest quantile of the requests' seconds, which is compared with `target`."""

    @property
    def number(self) -> int:
        """The limit now."""
        return 1 if self._probing else int(self._limit)

    @property
    def reference(self) -> float:
        """Seconds that a request takes alone; 0 if that is not known yet."""
        return self._reference

    @property
    def target(self) -> float:
        """Seconds that three quarters of the requests may take; 0 if that is not known yet."""
        if not self._reference:
            return 0.0
        wanted = max(self._tolerance * self._reference, QUICK_SECONDS)
        return min(wanted, max(LONG_SECONDS, OVER_ALONE * self._reference))

    @property
    def _probing(self) -> bool:
        return self._clock() < self._probe_until

    def refuse(self) -> None:
        """Record that a request has been refused. That is when the limit matters, so it is when the
        reference is measured if it is too old."""
        self._was_full = True
        now = self._clock()
        if not self._tolerance or now < self._probe_until:
            return
        age = now - self._measured_at
        old = age > max(REFRESH_SECONDS, REFRESH_REQUESTS * self._reference)
        wrong = int(self._limit) <= LEAST and self.delay > self.target and age > DOUBT_SECONDS
        if old or wrong:
            self._alone.clear()
            self._measured_at = now  # also if no request comes that can be measured
            self._probe_until = now + max(PROBE_SECONDS, 2 * ALONE * self._reference)

    def note(self, seconds: float, *, alone: bool) -> None:
        """Record a request that has been answered.

        Args:
            seconds: time from its arrival to its answer.
            alone: whether no other one was in progress in all that time.
        """
        if not self._tolerance:
            return
        now = self._clock()
        if alone:
            self._alone.append(seconds)
            if len(self._alone) >= ALONE:
                self._reference = median(self._alone)
                self._measured_at = now
                if now < self._probe_until:
                    self._probe_until = now
                    self._begin_window()  # what the probe has seen says nothing about the limit
                    return
        if now < self._probe_until:
            return
        if now - seconds > self._noted_at + LONGEST_WINDOW_SECONDS:  # there was no request
            self._begin_window()
        if not self._window:
            self._window_began = max(self._window_began, now - seconds)
        self._noted_at = now
        self._window.append(seconds)
        took = now - self._window_began
        enough = took >= WINDOW_SECONDS and len(self._window) >= WINDOW_REQUESTS
        if enough or took >= LONGEST_WINDOW_SECONDS:
            self._adapt()

    def wake(self) -> None:
        """Record that a request has come where none was in progress."""
        self._freed, self._freed_since = 0, self._clock()

    def free(self, places: int) -> None:
        """Record that places have become free."""
        self._freed += places
        took = self._clock() - self._freed_since
        if took >= DRAIN_SECONDS:
            self._freed_before, self._freed_seconds_before = self._freed, took
            self.wake()

    def retry_after(self, taken: int) -> int:
        """Return the seconds after which all places that are taken will be free, at the rate at
        which places become free; at least 1."""
        seconds = self._clock() - self._freed_since + self._freed_seconds_before
        freed = self._freed + self._freed_before
        drained = taken * seconds / freed if freed else seconds
        return min(max(math.ceil(drained), 1), MOST_RETRY_SECONDS)

    def _adapt(self) -> None:
        ordered = sorted(self._window)
        self.delay = ordered[math.ceil(QUANTILE * len(ordered)) - 1]
        target = self.target
        if target and self.delay > target:
            self._limit = max(self._limit * max(target / self.delay, SHRINK), LEAST)
        elif self._was_full and (target or self._limit < FIRST):
            self._limit += math.sqrt(self._limit) / 4
        self._limit = min(self._limit, float(self._most))
        self._begin_window()

    def _begin_window(self) -> None:
        self._window.clear()
        self._window_began = self._clock()
        self._was_full = False
