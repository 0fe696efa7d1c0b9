"""explain_many: bounded, lazy, in order or as they are ready, and gone when nobody listens."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import aclosing, closing, contextmanager
from errno import EINVAL
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from service.client import (
    AsyncClient,
    Client,
    Explanation,
    Failure,
    ServiceError,
    UnexpectedAnswer,
    _async,
    _sync,
    tasks,
    threads,
)
from tests.service.client.scripted import Asked, Reply, Script, in_json, problem, scripted
from tests.waiting import stays, until

ONE_PIXEL = "AACAPw=="  # 1.0 as a little-endian float32


def explained(asked: Asked, size: int = 1) -> Reply:
    """An answer whose score is what was sent for a photo."""
    explanation = {
        "instance": 0,
        "target": {"index": 1, "score": float(asked.body or 0)},
        "method": "gradcam",
        "layer": "l",
        "region": {"left": 0, "top": 0, "width": 1, "height": 1},
        "heatmap": {"shape": [1, 1], "encoding": "float32", "data": ONE_PIXEL},
        "warnings": ["x" * size],
    }
    return in_json({"predictions": [], "explanations": [explanation]})


def numbers(read: list[int], end: int | None = None) -> Iterator[bytes]:
    """Photos without an end, and which of them were read."""
    for number in count() if end is None else range(end):
        read.append(number)
        yield b"%d" % number


def scores(results: list[tuple[bytes, Explanation | Failure]]) -> list[float]:
    found = []
    for photo, result in results:
        assert isinstance(result, Explanation), result
        assert result.target.score == float(photo)
        found.append(result.target.score)
    return found


Take = Callable[..., list[tuple[bytes, Explanation | Failure]]]


def taken_waiting(
    script: Script, photos: Any, limit: int, into: list[Any] | None = None, **options: Any
) -> Any:
    results = [] if into is None else into
    with (
        Client(script.address, model="m", timeout=20) as client,
        closing(client.explain_many(photos, **options)) as found,
    ):
        for _, each in zip(range(limit), found, strict=False):  # in this order: no more
            results.append(each)
    return results


def taken_awaiting(
    script: Script, photos: Any, limit: int, into: list[Any] | None = None, **options: Any
) -> Any:
    async def take() -> list[Any]:
        results = [] if into is None else into
        async with (
            AsyncClient(script.address, model="m", timeout=20) as client,
            aclosing(client.explain_many(photos, **options)) as found,
        ):
            async for each in found:
                results.append(each)
                if len(results) == limit:
                    break
        return results

    return asyncio.run(take())


both = pytest.mark.parametrize("take", [taken_waiting, taken_awaiting])


@both
@pytest.mark.parametrize("ordered", [True, False])
def test_no_more_are_in_flight_than_were_allowed(take: Take, ordered: bool) -> None:
    together = threading.Barrier(3)

    def answer(asked: Asked) -> Reply:
        together.wait(10)  # it goes on only if there are three at once
        if int(asked.body) < 3:
            stays(lambda: script.busiest == 3, 0.1)  # in which a fourth would come
        return explained(asked)

    with scripted(answer) as script:
        results = take(script, numbers([], 30), 30, in_flight=3, ordered=ordered)
        script.until_unconnected()
    assert sorted(scores(results)) == list(range(30))
    assert script.busiest == 3
    assert {asked.path for asked in script.asked} == {"/v1/models/m:explain"}


@both
def test_results_are_in_the_order_of_the_photos(take: Take) -> None:
    def answer(asked: Asked) -> Reply:
        number = int(asked.body)
        if number % 4 == 0:  # the last one of the four that are in flight
            until(lambda: script.replied == number + 3, 10)
        return explained(asked)

    with scripted(answer) as script:
        results = take(script, numbers([], 12), 12, in_flight=4)
    assert scores(results) == list(range(12))


@both
def test_unordered_results_come_as_each_is_ready(take: Take) -> None:
    others = threading.Event()

    def answer(asked: Asked) -> Reply:
        if asked.body == b"0":
            assert others.wait(10)
        if asked.body == b"7":
            others.set()
        return explained(asked)

    with scripted(answer) as script:
        results = take(script, numbers([], 8), 8, in_flight=2, ordered=False)
    order = scores(results)
    assert sorted(order) == list(range(8))
    assert order.index(0) >= 6  # the first waited for the last one, and held nobody up


@both
def test_photos_without_an_end_are_read_as_far_as_needed(take: Take) -> None:
    read: list[int] = []
    with scripted(explained) as script:
        results = take(script, numbers(read), 10, in_flight=4)
        script.until_unconnected()
    assert scores(results) == list(range(10))
    assert len(read) <= 10 + 4
    assert len(script.asked) <= 10 + 4


def test_nothing_begins_before_the_first_is_wanted() -> None:
    read: list[int] = []
    with scripted(explained) as script, Client(script.address, model="m") as client:
        client.explain_many(numbers(read))
        assert not read
        assert not script.asked
        with pytest.raises(ValueError, match="in_flight is 0; it should be 1 or more"):
            client.explain_many(numbers(read), in_flight=0)


def test_a_model_that_must_be_asked_for_is_asked_for_as_early_as_can_be() -> None:
    gone = "the service has no models"
    with scripted(lambda asked: in_json({"models": []})) as script:
        with Client(script.address) as client, pytest.raises(UnexpectedAnswer, match=gone):
            client.explain_many([b"1"])

        async def begin() -> None:
            async with AsyncClient(script.address) as client:
                found = client.explain_many([b"1"])
                assert len(script.asked) == 1
                with pytest.raises(UnexpectedAnswer, match=gone):
                    await anext(found)

        asyncio.run(begin())
    assert [asked.path for asked in script.asked] == ["/v1/models"] * 2


@pytest.mark.slow
@both
def test_failures_are_values_and_the_others_stand(take: Take) -> None:
    def answer(asked: Asked) -> Reply:
        if asked.body == b"5":
            return problem(422, "five is not a photo")
        return Reply(reset=True) if asked.body == b"9" else explained(asked)

    photos: list[Any] = [*numbers([], 12), "no/such/file.png", "a\0.png", Path("\ud800.png")]
    with scripted(answer) as script:
        results = take(script, photos, 15, in_flight=4)
    assert [photo for photo, _ in results] == photos
    assert isinstance(results[5][1], ServiceError)
    assert str(results[5][1]) == "five is not a photo"
    assert type(results[9][1]).__name__ == "Unreachable"
    assert isinstance(results[12][1], FileNotFoundError)
    for turn, name in ((13, r"'a\x00.png'"), (14, r"'\ud800.png'")):
        error = results[turn][1]
        assert isinstance(error, OSError)
        assert error.errno == EINVAL
        assert name in str(error)
    assert scores([each for turn, each in enumerate(results) if turn not in (5, 9, 12, 13, 14)])


@both
def test_a_photo_that_is_none_is_raised(take: Take) -> None:
    with scripted(explained) as script, pytest.raises(TypeError, match="a photo is a object"):
        take(script, [b"1", object(), b"3"], 3)


@both
def test_parameters_that_no_address_has_room_for_are_raised(take: Take) -> None:
    with scripted(explained) as script:
        with pytest.raises(ValueError, match="do not fit into an address: URL component 'query'"):
            take(script, [b"1"], 1, target="x" * 100_000)
        assert not script.asked


def waits_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How each pause of a client has ended, or that it lasts."""
    ends: list[str] = []

    @contextmanager
    def noted() -> Iterator[None]:
        turn = len(ends)
        ends.append("lasts")
        try:
            yield
        except (CancelledError, asyncio.CancelledError):
            ends[turn] = "dropped"
            raise
        ends[turn] = "over"

    def sleep(seconds: float) -> None:
        with noted():
            threads.sleep(seconds)

    async def sleep_in_task(seconds: float) -> None:
        with noted():
            await tasks.sleep(seconds)

    monkeypatch.setattr(_sync.transport, "sleep", sleep)
    monkeypatch.setattr(_async.transport, "sleep", sleep_in_task)
    return ends


@both
@pytest.mark.parametrize("ordered", [True, False])
def test_an_error_of_the_photos_iterator_is_raised_after_the_results(
    take: Take, ordered: bool
) -> None:
    def broken() -> Iterator[bytes]:
        yield from numbers([], 3)
        broken_off.set()
        raise LookupError("no more")

    def answer(asked: Asked) -> Reply:
        assert broken_off.wait(10)  # none is there when it breaks
        return explained(asked)

    broken_off = threading.Event()

    taken: list[tuple[bytes, Explanation | Failure]] = []
    with scripted(answer) as script:
        with pytest.raises(LookupError, match="no more"):
            take(script, broken(), 9, taken, ordered=ordered)
        script.until_unconnected()
    assert sorted(scores(taken)) == [0, 1, 2]


@both
def test_those_who_wait_for_room_are_dropped_with_the_iterator(
    take: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = waits_of(monkeypatch)

    def answer(asked: Asked) -> Reply:
        if asked.body != b"0":
            return problem(429, "full", Retry_After="15")
        until(lambda: len(ends) == 3)
        return explained(asked)

    strangers = set(threading.enumerate())
    with scripted(answer) as script:
        assert scores(take(script, numbers([]), 1, in_flight=4)) == [0]
    assert ends == ["dropped"] * 3
    # Those of the script's connections end when they hear of it.
    until(lambda: not set(threading.enumerate()) - strangers, 10)


@both
def test_several_maps_of_a_photo_follow_each_other(take: Take) -> None:
    def answer(asked: Asked) -> Reply:
        one = explained(Asked("", "", "", {}, {}, b"7")).body.decode()
        first = one[one.index("[{") + 1 : one.rindex("]}")]
        return Reply(body=f'{{"predictions": [], "explanations": [{first}, {first}]}}'.encode())

    with scripted(answer) as script:
        results = take(script, [b"a", b"b"], 4, target=[1, 2])
    assert [photo for photo, _ in results] == [b"a", b"a", b"b", b"b"]


@pytest.mark.slow
def test_memory_stays_flat() -> None:
    def answer(asked: Asked) -> Reply:
        return explained(asked, size=200_000)

    with (
        scripted(answer) as script,
        Client(script.address, model="m") as client,
        closing(client.explain_many(numbers([]), in_flight=2)) as found,
    ):
        held = []
        tracemalloc.start()
        try:
            for turn, _ in enumerate(found):
                script.asked.clear()
                if turn in (40, 200):
                    gc.collect()
                    held.append(tracemalloc.get_traced_memory()[0])
                if turn == 200:
                    break
        finally:
            tracemalloc.stop()
    # 160 answers of 0.2 MB went by; a few may be in flight when it is measured.
    assert held[1] - held[0] < 3_000_000


def test_what_is_ready_is_given_before_the_next_photo_is_read() -> None:
    others = threading.Event()

    def answer(asked: Asked) -> Reply:
        if asked.body == b"0":
            assert others.wait(10)
        if asked.body == b"20":
            others.set()
        return explained(asked)

    def dripping() -> Iterator[bytes]:
        for photo in numbers(read, 100):
            # All of the earlier ones have been answered, but for the first at first.
            until(lambda: script.replied >= len(read) - 1 - (len(read) <= 21), 10)
            yield photo

    read: list[int] = []
    taken = []
    with (
        scripted(answer) as script,
        Client(script.address, model="m") as client,
        closing(client.explain_many(dripping(), in_flight=100)) as found,
    ):
        for _ in zip(range(21), found, strict=False):
            taken.append(len(read))
    assert taken[0] < 100
    # The first held up all of the others, which were given with it.
    assert taken[-1] - taken[0] < 10


def test_of_a_list_the_next_photo_is_read_after_each_result() -> None:
    class Listed(list[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            return numbers(read, len(self))

    second = threading.Event()

    def answer(asked: Asked) -> Reply:
        if asked.body == b"0":
            assert second.wait(10)
            until(lambda: script.replied, 10)  # so that both are ready
        if asked.body == b"1":
            second.set()
        return explained(asked)

    read: list[int] = []
    taken = []
    with (
        scripted(answer) as script,
        Client(script.address, model="m") as client,
        closing(client.explain_many(Listed([b""] * 9), in_flight=2)) as found,
    ):
        for _ in found:
            taken.append(len(read))
    assert taken == [2, 3, 4, 5, 6, 7, 8, 9, 9]


def test_photos_that_are_long_in_coming_hold_up_no_result() -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b"1"
        yield b"2"
        await asyncio.Event().wait()
        yield b"3"

    async def take(script: Script) -> list[float]:
        found = []
        async with (
            asyncio.timeout(20),
            AsyncClient(script.address, model="m") as client,
            aclosing(client.explain_many(slow())) as results,
        ):
            async for _, result in results:
                assert isinstance(result, Explanation)
                found.append(result.target.score)
                if len(found) == 2:
                    return found
        return found

    with scripted(explained) as script:
        assert asyncio.run(take(script)) == [1, 2]
        script.until_unconnected()
