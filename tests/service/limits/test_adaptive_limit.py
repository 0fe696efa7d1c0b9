"""The limit that adapts to how long requests take. The numbers are worked by hand."""

from __future__ import annotations

import heapq
import math
import random

import pytest

from service.limits.adaptive_limit import (
    ALONE,
    DOUBT_SECONDS,
    FIRST,
    LEAST,
    PROBE_SECONDS,
    REFRESH_SECONDS,
    SHRINK,
    WINDOW_REQUESTS,
    AdaptiveLimit,
)


class Clock:
    """A clock that stands still unless it is told."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limit(clock: Clock) -> AdaptiveLimit:
    """One whose requests take 0.1 s alone, so that three quarters may take 0.4 s."""
    limit = AdaptiveLimit(256, tolerance=4, clock=clock)
    for _ in range(ALONE + 1):  # so that no window is open
        clock.now += 1
        limit.note(0.1, alone=True)
    assert (limit.number, limit.reference) == (FIRST, 0.1)
    assert limit.target == pytest.approx(0.4)
    return limit


def window(limit: AdaptiveLimit, clock: Clock, *seconds: float, refused: bool = False) -> None:
    """Note as many requests as make a window, in a second."""
    assert len(seconds) == WINDOW_REQUESTS
    if refused:
        limit.refuse()
    for each in seconds:
        clock.now += 1 / WINDOW_REQUESTS
        limit.note(each, alone=False)


def test_it_shrinks_in_proportion_to_what_three_quarters_take(
    limit: AdaptiveLimit, clock: Clock
) -> None:
    window(limit, clock, *[0.1] * 5, 0.5, 0.5, 0.9)
    assert limit.delay == 0.5
    assert limit.number == int(FIRST * 0.4 / 0.5)
    window(limit, clock, *[5.0] * 8)
    assert limit.number == int(FIRST * 0.8 * SHRINK)
    for _ in range(9):
        window(limit, clock, *[5.0] * 8)
    assert limit.number == LEAST


def test_it_grows_by_a_quarter_of_its_root_if_it_has_refused_and_nothing_waits_long(
    limit: AdaptiveLimit, clock: Clock
) -> None:
    window(limit, clock, *[0.4] * 8)
    assert limit.number == FIRST, "nobody was refused"
    wanted = float(FIRST)
    for _ in range(20):
        window(limit, clock, *[0.4] * 6, 9.0, 9.0, refused=True)
        wanted += math.sqrt(wanted) / 4
    assert limit.number == int(wanted)


def test_it_never_grows_above_the_most(clock: Clock) -> None:
    limit = AdaptiveLimit(9, tolerance=4, clock=clock)
    for _ in range(ALONE):
        limit.note(0.1, alone=True)
    for _ in range(20):
        window(limit, clock, *[0.1] * 8, refused=True)
    assert limit.number == 9
    assert AdaptiveLimit(3, tolerance=4, clock=clock).number == 3


@pytest.mark.parametrize(
    ("alone", "target"), [(0.001, 0.05), (0.1, 0.4), (0.5, 1.5), (0.9, 1.5), (2.0, 3.0)]
)
def test_what_requests_may_take(clock: Clock, alone: float, target: float) -> None:
    limit = AdaptiveLimit(256, tolerance=4, clock=clock)
    for _ in range(ALONE):
        limit.note(alone, alone=True)
    assert limit.target == pytest.approx(target)


def test_without_a_tolerance_it_is_the_most(clock: Clock) -> None:
    limit = AdaptiveLimit(256, tolerance=0, clock=clock)
    for _ in range(5):
        window(limit, clock, *[9.0] * 8, refused=True)
    assert limit.number == 256


def test_an_unknown_reference_is_measured_when_somebody_is_refused(clock: Clock) -> None:
    limit = AdaptiveLimit(256, tolerance=4, clock=clock)
    window(limit, clock, *[9.0] * 8)
    assert (limit.number, limit.reference) == (FIRST, 0)
    limit.refuse()
    assert limit.number == 1
    for seconds in (0.3, 0.1):
        limit.note(5.0, alone=False)  # it had come before
        limit.note(seconds, alone=True)
    assert limit.number == 1
    limit.note(0.2, alone=True)
    assert (limit.number, limit.reference) == (FIRST, 0.2)


def test_where_no_request_is_alone_the_probe_ends_and_is_not_repeated_at_once(
    clock: Clock,
) -> None:
    limit = AdaptiveLimit(256, tolerance=4, clock=clock)
    limit.refuse()
    clock.now += PROBE_SECONDS
    assert limit.number == FIRST
    limit.refuse()
    assert limit.number == FIRST
    clock.now += REFRESH_SECONDS
    limit.refuse()
    assert limit.number == 1


def test_an_old_reference_is_measured_again(limit: AdaptiveLimit, clock: Clock) -> None:
    clock.now += REFRESH_SECONDS
    limit.refuse()
    assert limit.number == FIRST
    clock.now += 0.1
    limit.refuse()
    assert limit.number == 1
    for _ in range(ALONE):
        limit.note(0.2, alone=True)
    assert (limit.number, limit.reference) == (FIRST, 0.2)


def test_a_reference_that_even_the_least_limit_does_not_keep_is_doubted(
    limit: AdaptiveLimit, clock: Clock
) -> None:
    while limit.number > LEAST:
        window(limit, clock, *[2.0] * 8)
    clock.now += DOUBT_SECONDS
    limit.refuse()
    assert limit.number == 1
    for _ in range(ALONE):
        limit.note(1.0, alone=True)
    assert (limit.number, limit.reference, limit.target) == (LEAST, 1.0, 1.5)


def test_retry_after_is_how_long_it_takes_until_the_places_are_free(
    limit: AdaptiveLimit, clock: Clock
) -> None:
    limit.wake()
    assert limit.retry_after(8) == 1, "nothing is known"
    clock.now += 3
    assert limit.retry_after(8) == 3, "nothing was answered so far"
    limit.wake()
    for _ in range(8):
        clock.now += 1 / 8
        limit.free(1)
    assert [limit.retry_after(taken) for taken in (0, 1, 8, 9, 32)] == [1, 1, 1, 2, 4]
    clock.now += 10  # nothing is answered any more: 8 in 11 seconds
    assert limit.retry_after(8) == 11
    clock.now += 990
    assert limit.retry_after(8) == 60
    limit.wake()  # all have left, and after a while there are new ones
    assert limit.retry_after(8) == 1


@pytest.mark.parametrize("load", [1.2, 2.0, 5.0])
@pytest.mark.parametrize(
    ("workers", "each", "before"), [(1, 0.1, 0.0), (1, 0.01, 0.015), (16, 0.1, 0)]
)
def test_under_overload_nine_in_ten_of_what_could_be_answered_is_answered_in_time(
    clock: Clock, load: float, workers: int, each: float, before: float
) -> None:
    """A simulated service: `before` seconds that nobody waits for, and then a queue."""
    alone, seconds, rng = before + each, 60.0, random.Random(0)
    limit = AdaptiveLimit(256, tolerance=3.5, clock=clock)
    for _ in range(ALONE):
        limit.note(alone, alone=True)
    free, good, due = [clock.now] * workers, 0, clock.now
    running: list[tuple[float, float]] = []
    while due < 1000 + seconds:
        due += rng.expovariate(load * workers / each)
        while running and running[0][0] <= due:
            clock.now, came = heapq.heappop(running)
            good += clock.now - came <= 5 * alone
            limit.note(clock.now - came, alone=False)
        clock.now = due
        if len(running) < limit.number:
            ends = max(heapq.heappop(free), due + before) + each
            heapq.heappush(free, ends)
            heapq.heappush(running, (ends, due))
        else:
            limit.refuse()
    assert good / (seconds * workers / each) > 0.9
