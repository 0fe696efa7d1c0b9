"""The places of requests in progress: who gets one, by what the others take."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from fastapi import APIRouter

from service.core.errors import QueueFull
from service.core.metrics import Metrics
from service.http.access import AccessTable, needs
from service.http.guard import Guard
from service.limits.adaptive_limit import FIRST, LEAST, within
from service.limits.admission import ACTIVE_SECONDS, BODY_SECONDS, Admission, AdmittedRequest
from service.limits.counters import LocalCounts
from tests.service.limits.simulated import Clock

CAT = "cat"
Enter = Callable[..., AdmittedRequest]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


TARGET = 2.0


@pytest.fixture
def admission(clock: Clock, metrics: Metrics) -> Admission:
    """One that knows no rate, so that its limit is the first one."""
    return Admission(256, metrics=metrics, allowed=within(TARGET), clock=clock)


def entered(admission: Admission, key: str = "", seconds: float = math.inf) -> AdmittedRequest:
    place = admission.enter(CAT, key, seconds=seconds)
    place.arrive()
    return place


def answer(admission: Admission, clock: Clock, seconds: float, *places: AdmittedRequest) -> None:
    """Answer requests together, or a new one."""
    places = places or (entered(admission),)
    for place in places:
        admission.admit("cat", 1, costly=0, place=place).__enter__()
        place.was_answered, place.batch = True, len(places)
    clock.now += seconds
    for place in places:
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


def test_the_limit_is_what_is_answered_in_time_and_metrics_show_it(
    admission: Admission, clock: Clock, metrics: Metrics
) -> None:
    answer(admission, clock, 0.1)
    assert shown(metrics, 'gradcam_admission_delay_seconds{model="cat"}') == pytest.approx(0.1)
    answer(admission, clock, 4.0, *[entered(admission) for _ in range(FIRST)])
    limit = shown(metrics, 'gradcam_admission_limit{model="cat"}')
    assert LEAST < limit < FIRST
    for _ in range(int(limit)):
        entered(admission)
    with pytest.raises(
        QueueFull,
        match=rf"{limit:.0f} requests are in progress for model 'cat'; it answers [\d.]+ a second, "
        r"and a request may take 2 s; try again",
    ):
        entered(admission)


def test_a_caller_who_allows_less_time_is_refused_before_others(
    clock: Clock, metrics: Metrics
) -> None:
    warmed = {"cat": 10.0}
    admission = Admission(
        256, metrics=metrics, allowed=within(TARGET), warmed=lambda name: warmed[name], clock=clock
    )
    for _ in range(5):
        entered(admission, seconds=0.5)
    with pytest.raises(QueueFull, match=r"answers 10 a second, and a request may take 0\.5 s"):
        entered(admission, seconds=0.5)
    for _ in range(15):
        entered(admission)
    with pytest.raises(QueueFull, match="a request may take 2 s") as refusal:
        entered(admission)
    assert refusal.value.headers()["Retry-After"] == "2", "20 requests at 10 a second"
    clock.now += 7
    with pytest.raises(QueueFull) as refusal:
        entered(admission)
    assert refusal.value.headers()["Retry-After"] == "7", "nothing was answered for so long"
    clock.now += 99
    with pytest.raises(QueueFull) as refusal:
        entered(admission)
    assert refusal.value.headers()["Retry-After"] == "60"


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


def test_a_body_that_comes_when_no_key_has_asked_for_a_while(
    admission: Admission, clock: Clock
) -> None:
    late = admission.enter(CAT)
    clock.now += BODY_SECONDS
    places = [entered(admission) for _ in range(FIRST)]
    clock.now += ACTIVE_SECONDS
    with pytest.raises(QueueFull), admission.admit("cat", 1, costly=0, place=late):
        pytest.fail("there is no place")
    places.pop().leave()
    with admission.admit("cat", 1, costly=0, place=late):
        late.leave()


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


def test_processes_share_the_places(clock: Clock, metrics: Metrics) -> None:
    counts = LocalCounts()
    one, other = (
        Admission(256, metrics=metrics, allowed=within(TARGET), counts=counts, clock=clock)
        for _ in range(2)
    )
    places = [entered(one) for _ in range(FIRST)]
    with pytest.raises(QueueFull, match="requests are in progress"):
        entered(other)
    for place in places:
        place.leave()
    assert len([entered(other) for _ in range(FIRST)]) == FIRST


def test_invented_names_of_models_are_forgotten(admission: Admission) -> None:
    for number in range(1000):
        admission.enter(str(number)).leave()
    assert not admission._models


@needs("explain", work=True)
async def explain(model: str) -> None:
    """A handler."""


@pytest.mark.parametrize(
    ("sent", "admitted"), [("0.5", 5), ("9", 20), ("inf", 20), ("nan", 20), ("-1", 20), ("x", 20)]
)
def test_the_head_of_a_request_says_how_long_its_caller_waits(
    clock: Clock, metrics: Metrics, sent: str, admitted: int
) -> None:
    admission = Admission(
        256, metrics=metrics, allowed=within(TARGET), warmed=lambda name: 10.0, clock=clock
    )
    router = APIRouter()
    router.post("/v1/models/{model}:explain")(explain)
    guard = Guard(table=AccessTable(router.routes), identify=None, admission=admission)
    head = [(b"x-request-timeout", sent.encode())]
    for _ in range(admitted):
        assert guard.let_in_early(b"/v1/models/cat:explain", head)
    with pytest.raises(QueueFull):
        guard.let_in_early(b"/v1/models/cat:explain", head)
