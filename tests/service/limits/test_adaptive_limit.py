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
    REST_SECONDS,
    SHRINK,
    WINDOW_REQUESTS,
    AdaptiveLimit,
)
from service.limits.counters import LocalCounts


class Clock:
    """A clock that stands still unless it is told."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def limit_of(most: int, tolerance: float, clock: Clock) -> AdaptiveLimit:
    cells = LocalCounts().cells("limit")
    return AdaptiveLimit(most, tolerance=tolerance, cells=cells, clock=clock)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limit(clock: Clock) -> AdaptiveLimit:
    """One whose requests take 0.1 s alone, so that three quarters may take 0.4 s."""
    limit = limit_of(256, 4, clock)
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
    limit = limit_of(9, 4, clock)
    for _ in range(ALONE):
        limit.note(0.1, alone=True)
    for _ in range(20):
        window(limit, clock, *[0.1] * 8, refused=True)
    assert limit.number == 9
    assert limit_of(3, 4, clock).number == 3


@pytest.mark.parametrize(
    ("alone", "target"), [(0.001, 0.05), (0.1, 0.4), (0.5, 1.5), (0.9, 1.5), (2.0, 3.0)]
)
def test_what_requests_may_take(clock: Clock, alone: float, target: float) -> None:
    limit = limit_of(256, 4, clock)
    for _ in range(ALONE):
        limit.note(alone, alone=True)
    assert limit.target == pytest.approx(target)


def test_without_a_tolerance_it_is_the_most(clock: Clock) -> None:
    limit = limit_of(256, 0, clock)
    for _ in range(5):
        window(limit, clock, *[9.0] * 8, refused=True)
    assert limit.number == 256


def test_an_unknown_reference_is_measured_when_somebody_is_refused(clock: Clock) -> None:
    limit = limit_of(256, 4, clock)
    limit.refuse()
    assert (limit.number, limit.reference) == (FIRST, 0), "nothing has been answered"
    limit.note(0.4, alone=False)
    assert limit.reference == 0.4, "the fastest stands for it"
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
    limit = limit_of(256, 4, clock)
    limit.note(0.1, alone=False)
    limit.refuse()
    clock.now += PROBE_SECONDS
    assert limit.number == FIRST
    limit.note(0.1, alone=False)
    limit.refuse()
    assert limit.number == FIRST
    clock.now += REFRESH_SECONDS
    limit.refuse()
    assert limit.number == 1


def test_a_probe_lasts_until_slow_requests_have_ended(clock: Clock) -> None:
    limit = limit_of(256, 4, clock)
    limit.note(1.0, alone=False)
    limit.refuse()
    clock.now += FIRST + 2 * ALONE - 0.1
    assert limit.number == 1
    clock.now += 0.2
    assert limit.number == FIRST


def test_requests_of_several_images_alone_begin_no_probe(clock: Clock) -> None:
    limit = limit_of(256, 4, clock)
    limit.note(0.8, alone=True, images=8)
    assert limit.reference == pytest.approx(0.1)
    limit.refuse()
    assert limit.number == FIRST


def test_requests_of_several_images_are_compared_by_their_share_of_the_time(
    limit: AdaptiveLimit, clock: Clock
) -> None:
    limit.refuse()
    for _ in range(WINDOW_REQUESTS):
        clock.now += 1 / WINDOW_REQUESTS
        limit.note(3.1, alone=False, images=8)  # each 0.39 s of the 0.4 s that it may take
    assert limit.delay == pytest.approx(3.1 / 8)
    assert limit.number == int(FIRST + math.sqrt(FIRST) / 4)


def test_remembered_answers_count_where_there_are_no_others(
    limit: AdaptiveLimit, clock: Clock
) -> None:
    limit.refuse()
    for _ in range(3 * WINDOW_REQUESTS):
        clock.now += 0.01
        limit.note(0.001, alone=False, computed=False)
        limit.refuse()
    assert limit.delay == 0.001
    assert limit.number > FIRST or limit._limit > FIRST
    window(limit, clock, *[2.0] * 4, *[2.0] * 4)
    for _ in range(4):
        for _ in range(WINDOW_REQUESTS - 1):
            limit.note(0.001, alone=False, computed=False)
        clock.now += 1
        limit.note(2.0, alone=False)
    assert limit.delay == 2.0
    assert limit.number == LEAST


def test_a_limit_that_has_shrunk_is_forgotten_after_a_rest(clock: Clock) -> None:
    limit = limit_of(256, 4, clock)
    for _ in range(ALONE + 1):
        clock.now += 1
        limit.note(0.005, alone=True)
    most = int(0.05 / 0.005)
    assert limit.number == most, "so many are answered in 0.05 s one after the other"
    window(limit, clock, *[5.0] * 8)
    window(limit, clock, *[5.0] * 8)
    small = limit.number
    assert small < most
    clock.now += REST_SECONDS
    limit.wake()
    assert limit.number == small
    clock.now += 0.1
    limit.wake()
    assert limit.number == most


def test_processes_share_one_limit(clock: Clock) -> None:
    cells = LocalCounts().cells("limit")
    one, other = (AdaptiveLimit(256, tolerance=4, cells=cells, clock=clock) for _ in range(2))
    for _ in range(ALONE):
        clock.now += 1
        one.note(0.1, alone=True)
    assert other.reference == 0.1
    window(other, clock, *[5.0] * 8)
    assert one.number == other.number == int(FIRST * SHRINK)
    other.note(0.1, alone=False)
    clock.now += REFRESH_SECONDS
    other.refuse()
    assert one.number == 1, "a probe of one process is a probe of all"


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


def test_requests_that_the_least_limit_explains_are_no_reason_to_doubt(clock: Clock) -> None:
    limit = limit_of(256, 4, clock)
    for _ in range(ALONE):
        clock.now += 1
        limit.note(1.0, alone=True)
    while limit.number > LEAST:
        window(limit, clock, *[4.0] * 8)
    window(limit, clock, *[1.9] * 8)  # behind one other request: more than may be, but explained
    clock.now += 2 * DOUBT_SECONDS
    limit.refuse()
    assert limit.number == LEAST


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
    """With a limit of four, random arrivals of 1.2 times the capacity leave the model idle for a
    tenth of the time."""
    assert useful(clock, load, workers, each, before) > (0.85 if load < 2 else 0.9)


@pytest.mark.parametrize("load", [1.2, 2.0, 5.0])
@pytest.mark.parametrize("each", [0.02, 0.1, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("doors", [1, 2, 4])
def test_a_start_under_overload_learns_what_a_request_takes(
    clock: Clock, load: float, each: float, doors: int
) -> None:
    """No request has ever been alone. Slow requests need a limit of two or three, with which random
    arrivals leave the model idle more often."""
    floor = {0.02: 0.85, 0.1: 0.84, 0.3: 0.79}.get(each, 0.7)
    assert useful(clock, load, 1, each, 0.0, is_known=False, doors=doors) > floor


def useful(
    clock: Clock,
    load: float,
    workers: int,
    each: float,
    before: float,
    *,
    is_known: bool = True,
    doors: int = 1,
) -> float:
    """Return the share of the answers in time among those that a simulated service could give:
    `before` seconds that nobody waits for, and then a queue."""
    alone, rng = before + each, random.Random(0)
    seconds = max(60.0, 150 * alone)
    cells = LocalCounts().cells("limit")
    limits = [AdaptiveLimit(256, tolerance=3.5, cells=cells, clock=clock) for _ in range(doors)]
    if is_known:
        for _ in range(ALONE):
            limits[0].note(alone, alone=True)
    entered = 0
    free, good, due = [clock.now] * workers, 0, clock.now
    running: list[tuple[float, float, int, bool]] = []
    while due < 1000 + seconds:
        due += rng.expovariate(load * workers / each)
        while running and running[0][0] <= due:
            clock.now, came, number, is_first = heapq.heappop(running)
            good += clock.now - came <= min(5 * alone, 2)
            alone_there = is_first and number == entered
            limits[number % doors].note(clock.now - came, alone=alone_there)
        clock.now = due
        limit = limits[rng.randrange(doors)]
        if len(running) < limit.number:
            ends = max(heapq.heappop(free), due + before) + each
            heapq.heappush(free, ends)
            entered += 1
            heapq.heappush(running, (ends, due, entered, not running))
        else:
            limit.refuse()
    return good / (seconds * workers / each)
