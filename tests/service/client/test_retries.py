"""What a client does about a service that has no room, is not there, or breaks off."""

from __future__ import annotations

import asyncio
import base64
import gc
import math
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from email.utils import format_datetime
from typing import Any

import httpx2
import pytest

from service.client import (
    AsyncClient,
    Client,
    ClientError,
    NotFound,
    Overloaded,
    Refused,
    ServiceError,
    UnexpectedAnswer,
    Unreachable,
    failures,
)
from service.client.failures import failure_of, seconds_until
from service.client.retries import Retries, Tries
from tests.service.client.conftest import Clock
from tests.service.client.scripted import Asked, Reply, in_json, problem, scripted
from tests.service.live import free_port

MODELS = in_json({"models": ["a", "b"]})


def models(kind: str, address: str, **options: Any) -> list[str]:
    """What either client says the models are."""
    if kind == "waiting":
        with Client(address, **options) as client:
            return client.models()

    async def ask() -> list[str]:
        async with AsyncClient(address, **options) as client:
            return await client.models()

    return asyncio.run(ask())


def in_turn(*replies: Reply) -> Callable[[Asked], Reply]:
    left = iter(replies)
    return lambda asked: next(left)


both = pytest.mark.parametrize("kind", ["waiting", "awaiting"])


@both
@pytest.mark.parametrize("status", [429, 503])
def test_it_comes_back_when_the_service_says(kind: str, status: int, clock: Clock) -> None:
    with scripted(in_turn(problem(status, "full", Retry_After="1"), MODELS)) as script:
        assert models(kind, script.address) == ["a", "b"]
    (pause,) = clock.pauses
    assert 1 <= pause <= 1.25  # up to a quarter more, so that not all come back at once


@pytest.fixture
def noon(monkeypatch: pytest.MonkeyPatch) -> datetime:
    """It is, for all dates that a client reads."""

    class Noon(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Noon:
            return cls(2026, 1, 31, 12, tzinfo=tz)

    monkeypatch.setattr(failures, "datetime", Noon)
    return Noon.now(UTC)


@both
def test_it_comes_back_at_the_date_that_the_service_says(
    kind: str, clock: Clock, noon: datetime
) -> None:
    date = format_datetime(noon + timedelta(seconds=2), usegmt=True)
    with scripted(in_turn(problem(503, "later", Retry_After=date), MODELS)) as script:
        assert models(kind, script.address) == ["a", "b"]
    (pause,) = clock.pauses
    assert 2 <= pause <= 2.5


@both
def test_without_a_word_the_pauses_grow(kind: str, clock: Clock) -> None:
    full = problem(429, "full")
    with scripted(in_turn(full, full, full, MODELS)) as script:
        assert models(kind, script.address) == ["a", "b"]
    first, second, third = clock.pauses
    assert 0.125 <= first <= 0.25 <= second <= 0.5 <= third <= 1


@both
def test_a_reset_connection_is_tried_again(kind: str) -> None:
    with scripted(in_turn(Reply(reset=True), Reply(reset=True), MODELS)) as script:
        assert models(kind, script.address) == ["a", "b"]
    assert len(script.asked) == 3


@both
def test_an_answer_that_breaks_off_is_tried_again(kind: str) -> None:
    cut = Reply(MODELS.status, MODELS.headers, MODELS.body, cut=5)
    with scripted(in_turn(cut, MODELS)) as script:
        assert models(kind, script.address) == ["a", "b"]


@both
@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 413, 415, 422, 500, 502, 504])
def test_another_error_is_not_tried_again(kind: str, status: int) -> None:
    with (
        scripted(lambda asked: problem(status, "no", Retry_After="0")) as script,
        pytest.raises(ServiceError, match=r"^no$") as caught,
    ):
        models(kind, script.address)
    assert len(script.asked) == 1
    assert caught.value.status == status
    kinds = {401: Refused, 403: Refused, 404: NotFound}
    assert isinstance(caught.value, kinds.get(status, ServiceError))


@both
def test_after_the_last_try_the_service_is_overloaded(kind: str) -> None:
    with (
        scripted(lambda asked: problem(429, "256 images wait", Retry_After="0")) as script,
        pytest.raises(Overloaded, match="256 images wait") as caught,
    ):
        models(kind, script.address, retries=2)
    assert len(script.asked) == 3
    assert caught.value.retry_after == 0


@both
def test_what_would_come_too_late_is_not_waited_for(kind: str, clock: Clock) -> None:
    with (
        scripted(lambda asked: problem(503, "loading", Retry_After="30")) as script,
        pytest.raises(Overloaded) as caught,
    ):
        models(kind, script.address, timeout=20)
    assert len(script.asked) == 1
    assert clock.pauses == []
    assert caught.value.retry_after == 30


@both
def test_nobody_there_is_said_plainly(kind: str) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(Unreachable, match=rf"from GET {address}/v1/models after 2 tries: .") as got:
        models(kind, address, retries=1)
    assert isinstance(got.value.__cause__, httpx2.ConnectError)
    assert not isinstance(got.value, ServiceError)


@both
def test_the_time_is_for_all_tries_together(kind: str) -> None:
    given_up = threading.Event()

    def late(asked: Asked) -> Reply:
        given_up.wait(10)
        return MODELS

    with scripted(late) as script:
        with pytest.raises(Unreachable):
            models(kind, script.address, timeout=0.5)
        given_up.set()
    assert len(script.asked) == 1


@both
def test_a_day_is_not_too_long(kind: str) -> None:
    full = problem(429, "full", Retry_After="1")
    with scripted(in_turn(full, MODELS)) as script:
        assert models(kind, script.address, timeout=86_400) == ["a", "b"]


@both
def test_an_answer_that_drips_ends_with_the_time(kind: str) -> None:
    dropped_all = False

    def drops() -> Iterator[bytes]:
        nonlocal dropped_all
        with suppress(OSError):
            for _ in range(100):
                time.sleep(0.1)
                yield b" "
            dropped_all = True

    with (
        scripted(lambda asked: Reply(chunks=drops())) as script,
        pytest.raises(Unreachable, match="too slowly"),
    ):
        models(kind, script.address, timeout=0.5)
    assert not dropped_all


@both
@pytest.mark.parametrize("body", [b"<html>hello</html>", b"", b'{"models": 3}'])
def test_an_answer_of_something_else_is_told_as_that(kind: str, body: bytes) -> None:
    with (
        scripted(lambda asked: Reply(body=body)) as script,
        pytest.raises(UnexpectedAnswer, match="is it the address of a gradcam-service"),
    ):
        models(kind, script.address)


@both
def test_a_redirect_is_not_followed_with_the_key(kind: str) -> None:
    with scripted(lambda asked: MODELS) as elsewhere:
        there = Reply(307, {"Location": f"{elsewhere.address}/v1/models"})
        with (
            scripted(lambda asked: there) as script,
            pytest.raises(ServiceError, match="the answer is 307 Temporary Redirect"),
        ):
            models(kind, script.address, key="secret")
    assert script.asked[0].headers["authorization"] == "Bearer secret"
    assert not elsewhere.asked


def test_the_key_is_in_no_text() -> None:
    with Client(key="secret") as client:
        assert "secret" not in repr(client)
        assert "127.0.0.1:8000" in repr(client)


@both
def test_a_key_may_be_what_a_file_has(kind: str) -> None:
    with scripted(lambda asked: MODELS) as script:
        assert models(kind, script.address, key=" secret\r\n") == ["a", "b"]
    assert script.asked[0].headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("Zq9\nZq9", "characters other than printable ASCII"),
        ("Zq9\0Zq9", "characters other than printable ASCII"),
        ("Zq9é", "characters other than printable ASCII"),
    ],
)
def test_a_key_that_is_none_is_refused_and_not_told(key: str, said: str) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(ValueError, match=said) as caught:
            kind(key=key)
        assert "Zq9" not in str(caught.value)


@both
def test_a_password_in_the_address_is_sent_and_in_no_text(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    replies = in_turn(MODELS, Reply(reset=True))
    with scripted(replies) as script:
        address = script.address.replace("//", "//ann:Zq9%40@")
        assert models(kind, address) == ["a", "b"]
        with pytest.raises(Unreachable, match=f"from GET {script.address}/v1/models") as caught:
            models(kind, address, retries=0)
    basic = base64.b64encode(b"ann:Zq9@").decode()
    assert [asked.headers["authorization"] for asked in script.asked] == [f"Basic {basic}"] * 2
    assert script.address in caplog.text
    for told in (str(caught.value), caplog.text, repr(Client(address)), repr(AsyncClient(address))):
        assert "Zq9" not in told


@pytest.mark.parametrize(
    "address",
    ["ann:Zq9@host", "ftp://ann:Zq9@host", "http://ann:Zq9/Zq9@host", "http://ann:Zq9@host:bad"],
)
def test_a_password_is_not_told_of_an_address_that_is_none(address: str) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(ValueError, match="the address is") as caught:
            kind(address)
        assert "Zq9" not in str(caught.value)


@both
def test_an_address_may_have_a_path(kind: str) -> None:
    with scripted(lambda asked: MODELS) as script:
        models(kind, f"{script.address}/heat/")
    assert script.asked[0].path == "/heat/v1/models"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"address": "127.0.0.1:8000"}, "'127.0.0.1:8000'; it should start with http:// or https"),
        ({"address": ""}, "the address is ''; it should start with http:// or https"),
        (
            {"address": "http://h/?x=1"},
            r"'http://h/\?x=1'; it should have no query and no fragment",
        ),
        ({"address": "http://h?"}, r"'http://h\?'; it should have no query"),
        ({"address": "http://h/#x"}, "'http://h/#x'; it should have no query"),
        ({"address": "http://"}, "'http://'; it should name a host"),
        ({"address": "https:///v1"}, "'https:///v1'; it should name a host"),
        ({"address": "http://:8000"}, "'http://:8000'; it should name a host"),
        ({"address": "http://a..b"}, "'http://a..b'; it should name a host"),
        (
            {"address": "http://h:65536"},
            "'http://h:65536'; it should name a host, and a port up to",
        ),
        ({"address": "http://h:0"}, "a port up to 65535"),
        ({"retries": -1}, "retries is -1; it should be 0 or more"),
        (
            {"timeout": 0},
            "timeout is 0; it should be a number of seconds above 0, up to 86400, a day",
        ),
        ({"timeout": math.nan}, "timeout is nan; it should be"),
        ({"timeout": math.inf}, "timeout is inf; it should be"),
        ({"timeout": 1e12}, "timeout is 1000000000000.0; it should be"),
    ],
)
def test_arguments_that_are_none_are_refused(options: dict[str, Any], said: str) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(ValueError, match=said):
            kind(**options)


def ready(kind: str, address: str) -> bool:
    """Whether either client says that the service is ready."""
    if kind == "waiting":
        with Client(address) as client:
            return client.ready()

    async def ask() -> bool:
        async with AsyncClient(address) as client:
            return await client.ready()

    return asyncio.run(ask())


@both
def test_ready_is_one_try(kind: str) -> None:
    loading = problem(503, "loading", Retry_After="5")
    with scripted(in_turn(loading, in_json({"status": "ok"}))) as script:
        assert ready(kind, script.address) is False
        assert ready(kind, script.address) is True
    assert ready(kind, script.address) is False  # it is gone


@both
@pytest.mark.parametrize("status", [429, 500, 502, 504, 520])
def test_not_ready_is_also_what_a_proxy_says_meanwhile(kind: str, status: int) -> None:
    with scripted(lambda asked: Reply(status, body=b"<h1>no</h1>")) as script:
        assert ready(kind, script.address) is False
    assert len(script.asked) == 1


@both
@pytest.mark.parametrize("status", [307, 401, 403, 404])
def test_who_is_not_told_whether_it_is_ready_hears_why(kind: str, status: int) -> None:
    with (
        scripted(lambda asked: problem(status, "not you")) as script,
        pytest.raises(ServiceError, match="not you") as caught,
    ):
        ready(kind, script.address)
    assert caught.value.status == status


@both
def test_connections_are_closed_after_success_and_after_an_error(kind: str) -> None:
    with scripted(in_turn(MODELS, problem(422, "no"))) as script:
        models(kind, script.address)
        assert len(script.asked) == 1
        script.until_unconnected()
        with pytest.raises(ServiceError):
            models(kind, script.address)
        script.until_unconnected()


class Stuck(httpx2.BaseTransport):
    """A transport that cannot be entered."""

    closed = False

    def __enter__(self) -> Stuck:
        raise RuntimeError("stuck")

    def close(self) -> None:
        self.closed = True


def test_a_failed_enter_leaves_nothing_open() -> None:
    transport = Stuck()
    with pytest.raises(RuntimeError, match="stuck"), Client(transport=transport):
        pass
    assert transport.closed

    client = Client()
    client.close()
    with pytest.raises(RuntimeError), client:  # it is closed
        pass
    gc.collect()  # whatever was open would warn, and a warning is an error


def test_a_failed_enter_leaves_nothing_open_for_those_who_await() -> None:
    class StuckToo(httpx2.AsyncBaseTransport):
        closed = False

        async def __aenter__(self) -> StuckToo:
            raise RuntimeError("stuck")

        async def aclose(self) -> None:
            self.closed = True

    transport = StuckToo()

    async def enter() -> None:
        async with AsyncClient(transport=transport):
            pass

    with pytest.raises(RuntimeError, match="stuck"):
        asyncio.run(enter())
    assert transport.closed


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("3", 3),
        (" 120 ", 120),
        ("0", 0),
        ("soon", None),
        ("-1", None),
        ("1.5", None),
        ("Wed, 21 Oct 2015 07:28:00 +99999999999999", None),
        ("Wed, 99999999999999999999 Oct 2015 07:28:00 GMT", None),
    ],
)
def test_retry_after_in_seconds(header: str | None, seconds: float | None) -> None:
    assert seconds_until(header) == seconds


def test_retry_after_as_a_date(noon: datetime) -> None:
    date = noon + timedelta(seconds=90)
    assert seconds_until(format_datetime(date, usegmt=True)) == 90
    assert seconds_until("Sun, 06 Nov 1994 08:49:37 GMT") == 0
    assert seconds_until("Sun Nov  6 08:49:37 1994") == 0  # asctime, which is obsolete and allowed


def test_pauses_are_what_the_formula_says() -> None:
    overloaded = failure_of(503, {}, b"")
    for turn, longest in enumerate([0.25, 0.5, 1, 2, 4, 8, 8, 8]):
        pauses = []
        for _ in range(50):
            tries = Tries(Retries(20, 1000))
            for _ in range(turn):
                tries.pause(overloaded)
            pauses.append(tries.pause(overloaded))
        assert longest / 2 <= min(pauses) < max(pauses) <= longest
    told = failure_of(429, {"retry-after": "4"}, b"")
    pauses = [Tries(Retries(1, 1000)).pause(told) for _ in range(50)]
    assert 4 <= min(pauses) < max(pauses) <= 5
    # The quarter more is left out where it would be too late.
    assert all(4 <= Tries(Retries(1, 4.02)).pause(told) <= 4.02 for _ in range(50))


@pytest.mark.parametrize(
    ("hint", "seconds"), [("0", 0), ("Sun, 06 Nov 1994 08:49:37 GMT", 0), ("1", 1)]
)
def test_no_hint_makes_a_pause_shorter(hint: str, seconds: float) -> None:
    told = failure_of(429, {"retry-after": hint}, b"")
    tries = Tries(Retries(5, 1000))
    for longest in (0.25, 0.5, 1.0, 2.0, 4.0):
        pause = tries.pause(told)
        assert max(longest / 2, seconds) <= pause <= max(longest, seconds * 1.25)


def test_an_error_that_is_no_problem_is_told_all_the_same() -> None:
    error = failure_of(502, {"x-request-id": "r1"}, b"<h1>Bad\n gateway</h1>")
    assert str(error) == "the answer is 502 Bad Gateway: <h1>Bad gateway</h1>"
    assert (error.status, error.type, error.request_id) == (502, "about:blank", "r1")
    assert str(failure_of(599, {}, b"\xff")) == "the answer is 599 an unknown status: \ufffd"


def test_errors_can_be_pickled() -> None:
    error = failure_of(429, {"retry-after": "4", "x-request-id": "r"}, problem(429, "full").body)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is Overloaded
    assert vars(again) == vars(error)
    assert str(again) == "full"
    assert again.retry_after == 4
    assert isinstance(pickle.loads(pickle.dumps(Unreachable("gone"))), ClientError)
