"""A limit on the requests in progress, from the rate at which they are answered.

Who finds n requests in progress, itself included, and is answered after s seconds, has seen n/s
answers a second (Little's law). All processes add both numbers up in their rows of the shared
counts. Every `WINDOW_SECONDS`, one process takes the rate from the sums, and the limit is the rate
times the seconds that a request may take. A model that answers large batches more quickly shows a
larger rate as soon as more requests are in progress, so the limit grows until the rate no longer
does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic
from typing import Final

from service.core.settings import CoreSettings
from service.limits.counters import ServiceCounts

FIRST: Final = 8
"""The least limit before a rate is known."""
LEAST: Final = 2
"""One request that is computed, and one that waits for it."""
QUICK_SECONDS: Final = 0.05
"""With a tolerance, a request may always take so long: what disturbs it is as likely another
process."""
LONG_SECONDS: Final = 1.5
"""With a tolerance, a request should not take longer, unless it does so alone."""
OVER_ALONE: Final = 1.5
"""A request may always take so many times as long as alone."""
MOST_OVER: Final = 1.5
"""The rate is at most so many times what the answers of a window show, if they took too long."""
BUSY: Final = 4
"""A request that takes so many times as long as alone has waited for others."""
STARTED: Final = 0.1
"""Smallest part of a place that counts as one. Without this, a model that answers two requests as
quickly as one would be kept at so few that it never has two."""
WINDOW_SECONDS: Final = 0.25
WEIGHT: Final = 0.5
"""Weight of the latest window in the rate."""
REST_SECONDS: Final = 5.0
"""Remembered answers count if the model has computed none for so long."""
MICRO: Final = 1e6
RATE, DELAY, ALONE, ADAPTED, FOUND, SPENT = range(6)
"""Places in the cells. `FOUND` and `SPENT` are the sums at the last adaptation, `ADAPTED`."""
Allowed = Callable[[float, float], float]
"""The seconds that a request may take, by the seconds that one takes alone (0 if that is not known)
and the seconds that its caller allows."""


def without_end(alone: float, seconds: float) -> float:
    """Allow any time, so that the limit is always the largest one."""
    return math.inf


def within(target: float, deadline: float = math.inf) -> Allowed:
    """Allow `target` seconds, or half as long again as alone, but no more than `deadline` and no
    more than the caller."""
    return lambda alone, seconds: min(max(target, OVER_ALONE * alone), deadline, seconds)


def tolerating(tolerance: float) -> Allowed:
    """Allow so many times as long as alone."""
    return lambda alone, seconds: min(
        max(tolerance * alone, QUICK_SECONDS), max(LONG_SECONDS, OVER_ALONE * alone)
    )


def allowed_by(settings: CoreSettings) -> Allowed:
    """Return what the settings allow."""
    if settings.delay_tolerance is None:
        return within(settings.target_seconds, settings.deadline_seconds)
    return tolerating(settings.delay_tolerance) if settings.delay_tolerance else without_end


class AdaptiveLimit:
    """The number of requests that may be in progress at a time. All processes share it.

    Args:
        name: name of the sums and cells in `counts`.
        most: returns the largest limit.
        allowed: the seconds that a request may take.
        warmed: returns the answers a second that the model gave before any request came; 0 if that
            is not known.
        clock: returns the time in seconds, the same in all processes.
    """

    def __init__(
        self,
        name: str,
        most: Callable[[], int],
        *,
        allowed: Allowed,
        counts: ServiceCounts,
        warmed: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.names = self._found, self._spent, cells = f"found {name}", f"spent {name}", name
        """Names of what it shares, for `ServiceCounts.publish`."""
        counts.publish(cells, 1)
        self._cells = counts.cells(cells)
        self._most = most
        self._allowed = allowed
        self._counts = counts
        self._warmed = warmed
        self._clock = clock
        self._computed_at = -math.inf

    @property
    def rate(self) -> float:
        """Answers a second while many requests wait; 0 if that is not known yet."""
        if not self._cells[RATE]:
            self._cells[RATE] = self._warmed()
        return self._cells[RATE]

    @property
    def delay(self) -> float:
        """Seconds that the latest requests took."""
        return self._cells[DELAY]

    def allowed(self, seconds: float = math.inf) -> float:
        """Return the seconds that a request may take whose caller allows `seconds`."""
        return self._allowed(self._cells[ALONE], seconds)

    def number(self, seconds: float = math.inf) -> int:
        """Return the limit for a request whose caller allows `seconds`."""
        rate, alone, allowed = self.rate, self._cells[ALONE], self.allowed(seconds)
        if math.isinf(allowed):
            return self._most()
        if rate:
            # A caller who allows no more time would not get the answer of a part of a place.
            wanted = rate * allowed + (1 - STARTED if allowed < seconds else 0)
        else:  # as many as are answered in time one after the other
            wanted = max(FIRST, allowed / alone if alone else 0)
        return int(min(max(wanted, LEAST), self._most()))

    def note(self, seconds: float, *, found: int, waiting: int, batch: int) -> None:
        """Record a request that has been answered.

        Args:
            seconds: time from its arrival to its answer.
            found: number of requests that were in progress when it came, itself included.
            waiting: number of requests in progress now.
            batch: number of requests that the model computed together with it, itself included; 0
                if the answer was remembered, which shows nothing while others are computed.
        """
        now = self._clock()
        if batch:
            self._computed_at = now
        elif now - self._computed_at < REST_SECONDS:
            return
        if found == batch == 1:
            alone = self._cells[ALONE] or seconds
            self._cells[ALONE] = alone + (seconds - alone) * WEIGHT
        # Those that leave together come together, and on average find half of each other missing.
        all_found = self._counts.add(self._found, 2 * found + max(batch - 1, 0))
        all_spent = self._counts.add(self._spent, round(2 * seconds * MICRO))
        if now - self._cells[ADAPTED] < WINDOW_SECONDS:
            return
        with self._counts.claim() as is_claimed:
            if is_claimed and now - self._cells[ADAPTED] >= WINDOW_SECONDS:
                self._cells[ADAPTED] = now
                self._adapt(waiting + 1, seconds, (all_found, all_spent))

    def _adapt(self, taken: int, seconds: float, sums: tuple[int, int]) -> None:
        found, spent = sums[0] - self._cells[FOUND], sums[1] - self._cells[SPENT]
        self._cells[FOUND], self._cells[SPENT] = sums
        if found <= 0 or spent <= 0:  # the row of a process that died was cleared
            return
        measured = found / spent * MICRO
        self._cells[DELAY] = taken / measured
        rate, allowed = self.rate, self.allowed()
        # Few requests do not show how many a second it could answer, unless they take too long; nor
        # do the first of many, which found it idle and took not much longer than one alone.
        busy = min(max(allowed / 4, BUSY * self._cells[ALONE]), allowed / 2)
        is_too_slow = taken >= measured * allowed and seconds >= busy
        if is_too_slow or (measured > rate and taken > self.number() / 2):
            # A warm-up's rate knows nothing of decoding and drawing, and may be far too high.
            rate = min(rate, MOST_OVER * measured)
            self._cells[RATE] = rate + (measured - rate) * (WEIGHT if rate else 1)
