"""The places of requests in progress: who gets one, by what the others take."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from service.core.errors import QueueFull
from service.core.metrics import Metrics
from service.limits.adaptive_limit import ALONE, FIRST
from service.limits.admission import ACTIVE_SECONDS, BODY_SECONDS, Admission, AdmittedRequest
from service.limits.counters import LocalCounts
from tests.service.limits.test_adaptive_limit import Clock

CAT = "cat"
Enter = Callable[..., AdmittedRequest]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def admission(clock: Clock, metrics: Metrics) -> Admission:
    """One that knows how long a request takes alone, 0.1 s, so that it does not measure it."""
    admission = Admission(256, metrics=metrics, tolerance=4, clock=clock)
    for _ in range(ALONE):
        answer(admission, clock, 0.1)
    clock.now += ACTIVE_SECONDS  # these requests had a key of another name
    return admission


def entered(admission: Admission, key: str = "") -> AdmittedRequest:
    place = admission.enter(CAT, key)
    place.arrive()
    return place


def answer(admission: Admission, clock: Clock, seconds: float) -> None:
    place = entered(admission)
    with admission.admit("cat", 1, costly=0, place=place):
        clock.now += seconds
        place.was_answered = place.was_computed = True
    place.leave()


def shown(metrics: Metrics, series: str) -> float:
    lines = metrics.render(["cat"]).decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(series))


def test_as_many_are_in_progress_as_the_limit_says(admission: Admission, metrics: Metrics) -> None:
    places = [entered(admission) for _ in range(FIRST)]
    with pytest.raises(
        QueueFull, match=f"{FIRST} requests are in progress for model 'cat'"
    ) as refusal:
        admission.enter(CAT)
    assert int(refusal.value.headers()["Retry-After"]) >= 1
    assert shown(metrics, 'gradcam_rejected_total{reason="limit"}') == 1
    assert admission.enter("dog"), "each model has a limit of its own"
    places.pop().leave()
    entered(admission)
    with pytest.raises(QueueFull):
        admission.enter(CAT)


def test_slow_answers_make_the_limit_smaller_and_metrics_show_it(
    admission: Admission, clock: Clock, metrics: Metrics
) -> None:
    for _ in range(3):
        answer(admission, clock, 2.0)
    assert shown(metrics, 'gradcam_admission_limit{model="cat"}') < FIRST
    assert shown(metrics, 'gradcam_admission_delay_seconds{model="cat"}') == 2
    for _ in range(2):
        entered(admission)
    with pytest.raises(QueueFull):
        [entered(admission) for _ in range(FIRST - 2)]


def test_a_busy_key_leaves_another_its_share(admission: Admission, clock: Clock) -> None:
    busy = [entered(admission, "busy") for _ in range(FIRST)]
    with pytest.raises(QueueFull):
        admission.enter(CAT, "busy")
    # The other key gets half of the places, although none is free, and not one more.
    calm = [entered(admission, "calm") for _ in range(FIRST // 2)]
    for key in ("busy", "calm"):
        with pytest.raises(QueueFull):
            admission.enter(CAT, key)
    for place in busy[: FIRST // 2]:
        place.leave()
        with pytest.raises(QueueFull):
            admission.enter(CAT, "busy")
    busy.pop().leave()
    entered(admission, "busy")
    for place in calm:
        place.leave()
    # A key that has not asked for a while shares nothing.
    clock.now += ACTIVE_SECONDS
    for _ in range(FIRST // 2):
        entered(admission, "busy")
    with pytest.raises(QueueFull):
        admission.enter(CAT, "busy")


def test_a_body_that_does_not_come_holds_no_place(admission: Admission, clock: Clock) -> None:
    dripping = [admission.enter(CAT) for _ in range(FIRST)]
    clock.now += BODY_SECONDS / 2
    with pytest.raises(QueueFull):
        admission.enter(CAT)
    clock.now += BODY_SECONDS / 2
    places = [entered(admission) for _ in range(FIRST)]
    late = dripping.pop()
    assert late
    with pytest.raises(QueueFull), admission.admit("cat", 1, costly=0, place=late):
        pytest.fail("there is no place any more when its body has come")
    late.leave()
    for place in places:
        place.leave()
    late = dripping.pop()
    assert late
    with admission.admit("cat", 1, costly=0, place=late):
        late.leave()
    for each in dripping:
        assert each
        each.leave()
    assert len([entered(admission) for _ in range(FIRST)]) == FIRST


def test_many_images_take_half_of_the_places_at_most(admission: Admission) -> None:
    many = entered(admission)
    with admission.admit("cat", 32, costly=0, place=many):
        others = [entered(admission) for _ in range(FIRST // 2)]
        with pytest.raises(QueueFull):
            admission.enter(CAT)
        others.pop().leave()
        more = entered(admission)
        with admission.admit("cat", 1, costly=0, place=more):
            pass
    many.leave()
    assert len([entered(admission) for _ in range(FIRST // 2)]) == FIRST // 2


def test_costly_images_take_no_places_of_others(admission: Admission) -> None:
    costly = [entered(admission) for _ in range(FIRST // 2)]
    for place in costly:
        admission.admit("cat", 1, costly=1, place=place).__enter__()
    places = [entered(admission) for _ in range(FIRST - 1)]
    last = entered(admission)
    with (
        pytest.raises(QueueFull, match=f"{FIRST // 2} costly images are in progress"),
        admission.admit("cat", 1, costly=1, place=last),
    ):
        pytest.fail("half of the limit are costly already")
    for place in (*costly, *places, last):
        place.leave()


@pytest.mark.parametrize("how", ["many", "costly", "remembered", "together"])
def test_only_plain_requests_alone_tell_how_long_one_takes(
    clock: Clock, metrics: Metrics, how: str
) -> None:
    admission = Admission(256, metrics=metrics, tolerance=4, clock=clock)
    for _ in range(ALONE):
        place = entered(admission)
        other = entered(admission) if how == "together" else None
        count, costly = 2 if how == "many" else 1, int(how == "costly")
        with admission.admit("cat", count, costly=costly, place=place):
            clock.now += 0.1
            place.was_answered, place.was_computed = True, how != "remembered"
        place.leave()
        if other:
            other.leave()
    places = [entered(admission) for _ in range(FIRST)]
    with pytest.raises(QueueFull):
        admission.enter(CAT)
    for place in places:
        place.leave()
    entered(admission)
    if how == "together":
        with pytest.raises(QueueFull):  # the probe lets in one at a time
            admission.enter(CAT)
    else:
        assert admission.enter(CAT), "there is nothing that a probe could measure"


def test_a_request_beside_another_process_is_not_alone(clock: Clock, metrics: Metrics) -> None:
    counts = LocalCounts()
    one, other = (
        Admission(256, metrics=metrics, tolerance=4, counts=counts, clock=clock) for _ in range(2)
    )
    there = entered(other)
    for _ in range(ALONE):
        answer(one, clock, 0.8)
    there.leave()
    for _ in range(ALONE):
        answer(one, clock, 0.1)
    clock.now += 10  # a rest, after which the limit is the first again
    places = [entered(one) for _ in range(FIRST)]
    with pytest.raises(QueueFull, match="requests are in progress"):
        entered(other)
    for place in places:
        place.leave()
    assert len([entered(other) for _ in range(FIRST)]) == FIRST
    assert one._models["cat"]._limit.reference == pytest.approx(0.1)


def test_invented_names_of_models_are_forgotten(admission: Admission) -> None:
    for number in range(1000):
        admission.enter(str(number)).leave()
    assert len(admission._models) == 1
