"""The limit on requests in progress, by itself and in a simulated service."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from service.limits.adaptive_limit import (
    FIRST,
    LEAST,
    OVER_ALONE,
    QUICK_SECONDS,
    REST_SECONDS,
    WEIGHT,
    WINDOW_SECONDS,
    AdaptiveLimit,
    Allowed,
    allowed_by,
    tolerating,
    within,
    without_end,
)
from service.limits.counters import LocalCounts, ServiceCounts, SharedCounts, table
from service.settings import Settings
from tests.service.limits.simulated import Clock, Simulated

MOST = 4096
TARGET = 2.0
BATCHING: dict[str, tuple[Callable[[int], float], int]] = {
    "small": (lambda size: 0.004 + 0.005 * size, 8),  # 182 a second
    "large": (lambda size: 0.03 + 0.042 * size, 8),  # 22 a second
    "one by one": (lambda size: 0.5 * size, 1),  # 2 a second
    "all at once": (lambda size: 0.9, 4),  # 4.4 a second
    "an accelerator": (lambda size: 0.004 + 0.0005 * size, 32),  # 1,600 a second
}
"""Seconds of a batch by its size, and the largest size."""


def capacity(model: str) -> float:
    seconds, batch = BATCHING[model]
    return batch / seconds(batch)


def limits_of(
    clock: Clock,
    doors: Sequence[ServiceCounts],
    allowed: Allowed,
    most: int = MOST,
    warmed: float = 0.0,
) -> list[AdaptiveLimit]:
    return [
        AdaptiveLimit(
            "limit",
            lambda: most,
            allowed=allowed,
            counts=counts,
            warmed=lambda: warmed,
            clock=clock,
        )
        for counts in doors
    ]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def doors() -> Iterator[list[SharedCounts]]:
    """The counts of three processes."""
    with tempfile.TemporaryDirectory() as folder, table(Path(folder, "counts"), 3) as file:
        yield [SharedCounts(file, row) for row in range(3)]


@pytest.fixture
def simulated(clock: Clock, doors: list[SharedCounts]) -> Callable[..., Simulated]:
    def simulated(model: str, *, warmed: float = 1.0, allowed: Allowed | None = None) -> Simulated:
        """A service whose warm-up has measured `warmed` times what the model can do."""
        seconds, batch = BATCHING[model]
        allowed = allowed or within(TARGET)
        limits = limits_of(clock, doors, allowed, warmed=warmed * capacity(model))
        return Simulated(clock, limits, seconds, batch, before=0.005)

    return simulated


@pytest.mark.parametrize("model", ["small", "large", "one by one", "an accelerator"])
@pytest.mark.parametrize("callers", [2, 3, 4, 8, 16, 64, 256])
def test_so_many_callers_as_are_answered_in_time_are_never_refused(
    simulated: Callable[..., Simulated], model: str, callers: int
) -> None:
    if callers > TARGET * capacity(model):
        pytest.skip("they are more")
    service = simulated(model)
    service.callers(callers)
    service.run(20)
    assert service.refusals == []
    assert len(service.answers) > callers


@pytest.mark.parametrize("pause", [0.5, 2.0])
@pytest.mark.parametrize("warmed", [0, 0.3, 1, 3])
@pytest.mark.parametrize(
    ("model", "callers"),
    [("small", 600), ("large", 64), ("large", 256), ("one by one", 16), ("all at once", 32)],
)
def test_of_more_callers_as_many_are_admitted_as_are_answered_in_time(
    simulated: Callable[..., Simulated], model: str, callers: int, warmed: float, pause: float
) -> None:
    """Whatever the warm-up has measured, or whether there was one. The pause that a refusal asks
    for is two seconds."""
    service = simulated(model, warmed=warmed)
    service.callers(callers, pause)
    service.run(12 + 60 / capacity(model))
    begun = service.clock.now
    service.run(12)
    fitting = TARGET * capacity(model)
    most = max(count for when, count in service.places if when > begun)
    assert fitting * 0.85 < most <= max(fitting * 1.15, fitting + 1)
    answered = sum(when > begun for when, _ in service.answers)
    assert answered > 0.9 * 12 * capacity(model), "it is not idle"


@pytest.mark.parametrize("model", ["small", "large", "an accelerator"])
def test_without_a_warm_up_the_limit_grows_in_a_few_seconds(
    simulated: Callable[..., Simulated], model: str
) -> None:
    service = simulated(model, warmed=0)
    begun = service.clock.now
    service.callers(32)
    service.run(20)
    assert all(when < begun + 3 for when in service.refusals)


def test_a_model_that_answers_many_as_quickly_as_one_is_not_kept_at_small_batches(
    simulated: Callable[..., Simulated],
) -> None:
    """The warm-up has measured what it does with batches of one."""
    service = simulated("all at once", warmed=0.25)
    service.callers(16)
    service.run(60)
    begun = service.clock.now
    service.run(20)
    answered = sum(when > begun for when, _ in service.answers)
    assert answered > 0.9 * 20 * capacity("all at once")


@pytest.mark.parametrize(("model", "callers"), [("small", 3), ("small", 64), ("large", 8)])
def test_callers_are_not_refused_because_something_else_computes(
    simulated: Callable[..., Simulated], model: str, callers: int
) -> None:
    service = simulated(model)
    plain = service.seconds
    service.callers(callers)
    for _ in range(3):
        service.run(5)
        service.seconds = lambda size: 4 * plain(size)
        service.run(5)
        service.seconds = plain
    assert service.refusals == []


def test_the_limit_follows_what_the_model_can_do(simulated: Callable[..., Simulated]) -> None:
    service = simulated("large")
    plain, fitting = service.seconds, TARGET * capacity("large")
    service.callers(100, 1.0)
    for slower in (1, 3, 1):
        service.seconds = lambda size, slower=slower: slower * plain(size)  # type: ignore[misc]
        service.run(20)
        begun = service.clock.now
        service.run(10)
        most = max(count for when, count in service.places if when > begun)
        assert fitting / slower * 0.85 < most < fitting / slower * 1.15 + 1


@pytest.mark.parametrize("load", [1.2, 2.0, 5.0])
@pytest.mark.parametrize("warmed", [0, 1])
@pytest.mark.parametrize("model", ["small", "large", "one by one", "all at once"])
def test_under_overload_answers_come_in_time(
    simulated: Callable[..., Simulated], model: str, warmed: float, load: float
) -> None:
    service = simulated(model, warmed=warmed)
    service.arrivals(load * capacity(model))
    service.run(8)
    begun = service.clock.now
    service.run(16)
    lone = service.seconds(1) + service.before
    useful = service.useful(begun, max(5 * lone, TARGET) + 0.5)
    assert useful > 0.9 * 16 * capacity(model)


@pytest.mark.parametrize("load", [1.2, 2.0, 5.0])
@pytest.mark.parametrize("model", ["small", "large"])
def test_a_warm_up_that_knew_only_the_model_costs_few_answers(
    simulated: Callable[..., Simulated], model: str, load: float
) -> None:
    """Where photos take more of the processor than the model, the warm-up's rate is far too high.
    The limit falls before most of those that it let in come too late."""
    service = simulated(model, warmed=20)
    service.arrivals(load * capacity(model))
    begun = service.clock.now
    service.run(6)
    lone = service.seconds(1) + service.before
    useful = service.useful(begun, max(5 * lone, TARGET) + 0.5)
    assert useful > 0.75 * 6 * capacity(model)


def test_a_caller_who_allows_less_is_admitted_only_if_the_wait_is_as_short(clock: Clock) -> None:
    (limit,) = limits_of(clock, [LocalCounts()], within(TARGET, 30), warmed=20.0)
    assert limit.number() == 40
    assert limit.number(0.5) == 10
    assert limit.number(0.01) == LEAST
    assert limit.number(100) == 40


def test_a_model_that_is_slow_alone_is_allowed_half_as_long_again(clock: Clock) -> None:
    (limit,) = limits_of(clock, [LocalCounts()], within(TARGET, 30))
    limit.note(8.0, found=1, waiting=0, batch=1)
    assert limit.allowed() == OVER_ALONE * 8
    assert limit.number() == FIRST, "one alone does not show how many at once"
    limit.note(80.0, found=1, waiting=0, batch=1)
    assert limit.allowed() == 30, "the deadline"


def test_the_limit_is_never_above_the_most(clock: Clock) -> None:
    (limit,) = limits_of(clock, [LocalCounts()], within(TARGET), most=9, warmed=100.0)
    assert limit.number() == 9
    (limit,) = limits_of(clock, [LocalCounts()], within(TARGET), most=1)
    assert limit.number() == 1


def test_one_process_adapts_in_a_window_by_what_all_have_answered(
    clock: Clock, doors: list[SharedCounts]
) -> None:
    limits = limits_of(clock, doors, within(TARGET), warmed=5.0)
    for limit in limits:  # the first ends a window at once, and none of the others
        limit.note(0.1, found=2, waiting=99, batch=1)
    assert [limit.rate for limit in limits] == [5 + (20 - 5) * WEIGHT] * 3
    clock.now += WINDOW_SECONDS
    for limit in limits:
        limit.note(0.1, found=4, waiting=99, batch=1)
    # Two answers of the last window, and one of this: 2 + 2 + 4 places in 0.3 s.
    assert limits[2].rate == pytest.approx(12.5 + (8 / 0.3 - 12.5) * WEIGHT)


def test_while_another_process_adapts_none_does(clock: Clock, doors: list[SharedCounts]) -> None:
    limits = limits_of(clock, doors, within(TARGET), warmed=5.0)
    with doors[0].claim() as first, doors[1].claim() as second:
        assert (first, second) == (True, False)
        limits[2].note(0.1, found=2, waiting=9, batch=1)
    assert limits[2].rate == 5
    limits[2].note(0.1, found=2, waiting=9, batch=1)
    assert limits[0].rate > 5


def test_a_process_that_dies_changes_no_rate(clock: Clock, doors: list[SharedCounts]) -> None:
    limits = limits_of(clock, doors, within(TARGET), warmed=5.0)
    for _ in range(9):
        clock.now += WINDOW_SECONDS
        limits[0].note(0.1, found=2, waiting=99, batch=1)
    rate = limits[1].rate
    doors[0].clear()
    clock.now += WINDOW_SECONDS
    limits[1].note(0.1, found=2, waiting=99, batch=1)
    assert limits[1].rate == rate
    clock.now += WINDOW_SECONDS
    limits[1].note(0.1, found=4, waiting=99, batch=1)
    assert limits[1].rate > rate


def test_remembered_answers_count_where_there_are_no_others(clock: Clock) -> None:
    (limit,) = limits_of(clock, [LocalCounts()], within(TARGET), warmed=5.0)

    def remembered() -> float:
        clock.now += WINDOW_SECONDS
        limit.note(0.01, found=10, waiting=9, batch=0)
        return limit.rate

    limit.note(2.0, found=10, waiting=9, batch=1)
    assert remembered() == 5
    clock.now += REST_SECONDS
    assert remembered() == 5 + (1000 - 5) * WEIGHT


@pytest.mark.parametrize(
    ("alone", "allowed"), [(0.001, QUICK_SECONDS), (0.1, 0.4), (0.5, 1.5), (0.9, 1.5), (2.0, 3.0)]
)
def test_with_a_tolerance_a_request_may_take_so_many_times_as_long_as_alone(
    clock: Clock, alone: float, allowed: float
) -> None:
    (limit,) = limits_of(clock, [LocalCounts()], tolerating(4))
    limit.note(alone, found=1, waiting=0, batch=1)
    assert limit.allowed() == limit.allowed(0.001) == pytest.approx(allowed)


def test_without_a_rule_it_is_the_most(clock: Clock) -> None:
    (limit,) = limits_of(clock, [LocalCounts()], without_end)
    for _ in range(5):
        assert limit.number() == limit.number(0.1) == MOST
        clock.now += 1
        limit.note(9.0, found=9, waiting=99, batch=1)


def test_the_rule_is_that_of_the_settings() -> None:
    told = [allowed_by(Settings(delay_tolerance=each)) for each in (None, 3.0, 0.0)]
    assert [rule(0.1, math.inf) for rule in told] == [2.0, pytest.approx(0.3), math.inf]
    assert allowed_by(Settings(target_seconds=5, deadline_seconds=4))(0.1, math.inf) == 4


@pytest.mark.parametrize("load", [1.2, 2.0, 5.0])
@pytest.mark.parametrize("each", [0.02, 0.1, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("is_warm", [True, False])
def test_with_a_tolerance_answers_under_overload_come_within_five_times_one_alone(
    clock: Clock, doors: list[SharedCounts], load: float, each: float, is_warm: bool
) -> None:
    """Slow requests need a limit of two or three, with which random arrivals leave the model idle
    more often."""
    floor = 0.9 if load > 2 else {0.02: 0.85, 0.1: 0.84, 0.3: 0.79}.get(each, 0.67)
    limits = limits_of(clock, doors, tolerating(3.5), warmed=is_warm / each)
    service = Simulated(clock, limits, lambda size: each)
    service.arrivals(load / each)
    begun, seconds = clock.now, max(60.0, 150 * each)
    service.run(seconds)
    assert service.useful(begun, min(5 * each, 2)) > floor * seconds / each
