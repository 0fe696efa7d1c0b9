"""Who is let in, by what is in work already."""

from __future__ import annotations

import pytest

from service.core.errors import QueueFull
from service.core.metrics import Metrics
from service.limits.admission import Admission


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def refused(metrics: Metrics) -> float:
    lines = metrics.render([]).decode().splitlines()
    start = 'gradcam_rejected_total{reason="queue full"} '
    return sum(float(line.removeprefix(start)) for line in lines if line.startswith(start))


def test_so_many_images_of_a_model_are_let_in_and_not_one_more(metrics: Metrics) -> None:
    admission = Admission(4, metrics=metrics)
    with admission.admit("cat", 3, costly=0):
        admission.check("cat", 1)
        with pytest.raises(QueueFull) as refusal:
            admission.check("cat", 2)
        assert (
            "3 images are in progress for model 'cat'; at most 4 are allowed"
            in refusal.value.detail
        )
        assert refusal.value.headers() == {"Retry-After": "1"}
        assert refused(metrics) == 1
        with admission.admit("cat", 1, costly=0):
            with pytest.raises(QueueFull):
                admission.check("cat")
            admission.check("cat", 0)
    assert refused(metrics) == 2
    admission.check("cat", 4)


def test_the_full_batches_of_a_model_fit(metrics: Metrics) -> None:
    admission = Admission(4, metrics=metrics, fitting={"large": 12, "small": 2}.__getitem__)
    admission.check("large", 12)
    for name, most in (("large", 12), ("small", 4)):
        places = [admission.enter(name) for _ in range(most)]
        with pytest.raises(QueueFull, match=f"at most {most} are allowed"):
            admission.enter(name)
        for place in places:
            place.leave()
    with admission.admit("large", 6, costly=6):
        with pytest.raises(QueueFull, match="at most 12 are allowed"):
            admission.check("large", 7)
        with pytest.raises(QueueFull, match=r"6 costly images .* at most 6 are allowed"):
            admission.check("large", 1, costly=1)
    with admission.admit("small", 4, costly=0), pytest.raises(QueueFull, match="at most 4 are"):
        admission.check("small", 1)


@pytest.mark.parametrize(
    ("room", "half", "said"),
    [
        (1, 1, "1 image is in progress for model 'cat'; at most 1 is allowed"),
        (2, 1, "1 costly image is in progress for model 'cat'; at most 1 is allowed"),
        (4, 2, "2 costly images are in progress for model 'cat'; at most 2 are allowed"),
        (5, 3, "3 costly images are in progress for model 'cat'; at most 3 are allowed"),
    ],
)
def test_half_of_the_room_is_open_to_costly_ones(
    metrics: Metrics, room: int, half: int, said: str
) -> None:
    admission = Admission(room, metrics=metrics)
    with admission.admit("cat", half, costly=half):
        with pytest.raises(QueueFull, match=said):
            admission.check("cat", 1, costly=1)
        assert refused(metrics) == 1
        if room > half:
            admission.check("cat", room - half)
    admission.check("cat", half, costly=half)


def test_cheap_ones_that_fill_the_room_keep_costly_ones_out_too(metrics: Metrics) -> None:
    admission = Admission(4, metrics=metrics)
    with admission.admit("cat", 4, costly=0), pytest.raises(QueueFull, match="4 images are in"):
        admission.check("cat", 1, costly=1)


def test_room_is_given_back_after_success_and_after_an_exception(metrics: Metrics) -> None:
    admission = Admission(4, metrics=metrics)
    for way_in in (admission.admit, admission.hold):
        with way_in("cat", 4, costly=2):
            assert not admission.at_rest
        with pytest.raises(ZeroDivisionError), way_in("cat", 4, costly=2):
            raise ZeroDivisionError
        assert admission.at_rest
    with admission.admit("cat", 1, costly=1):
        admission.check("cat", 3, costly=1)


def test_who_is_refused_takes_no_room(metrics: Metrics) -> None:
    admission = Admission(4, metrics=metrics)
    with admission.admit("cat", 2, costly=2):
        for count, costly in ((3, 0), (2, 1)):
            with pytest.raises(QueueFull), admission.admit("cat", count, costly=costly):
                pytest.fail("it was let in")
        with admission.admit("cat", 2, costly=0):
            assert admission.admitted == 4
    assert admission.at_rest
    assert (admission.admitted, refused(metrics)) == (4, 2)


def test_what_was_let_in_before_is_held_without_being_asked_again(metrics: Metrics) -> None:
    admission = Admission(2, metrics=metrics)
    with admission.hold("cat", 2, costly=0):
        with admission.hold("cat", 1, costly=1), pytest.raises(QueueFull, match="3 images"):
            admission.check("cat")
        assert refused(metrics) == 1


def test_one_models_images_keep_out_no_other_models(metrics: Metrics) -> None:
    admission = Admission(2, metrics=metrics)
    with admission.admit("cat", 2, costly=1):
        admission.check("dog", 2, costly=1)
        with admission.admit("dog", 2, costly=1), pytest.raises(QueueFull, match="'dog'"):
            admission.check("dog")
        with pytest.raises(QueueFull, match="'cat'"):
            admission.check("cat")


def test_a_request_that_is_larger_than_the_room_comes_in_when_it_is_empty(
    metrics: Metrics,
) -> None:
    admission = Admission(4, metrics=metrics)
    with admission.admit("cat", 1, costly=0), pytest.raises(QueueFull):
        admission.check("cat", 9)
    with admission.admit("cat", 9, costly=9), pytest.raises(QueueFull):
        admission.check("cat")


def test_a_request_for_work_on_a_full_model_is_refused(metrics: Metrics) -> None:
    admission = Admission(2, metrics=metrics)
    with admission.admit("cat", 2, costly=0):
        with pytest.raises(QueueFull) as refusal:
            admission.enter("cat")
        assert refusal.value.headers() == {"Retry-After": "1"}
        admission.enter("dog").leave()
    admission.enter("cat").leave()
    assert refused(metrics) == 1
