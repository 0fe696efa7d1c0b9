"""Requests for which there is no room: answered by the connection, before the app hears of them."""

from __future__ import annotations

import asyncio
import json

import pytest

from service.process import connections
from tests.service.process.callers import HELLO, SOON, VAST, serving, upload
from tests.waiting import until_async

pytestmark = pytest.mark.anyio

FULL = b"POST /length HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("length", [0, 1, 50_000, 99_000])
async def test_one_is_told_so_and_may_ask_again_on_the_same_connection(length: int) -> None:
    async with serving() as house:
        caller = await house.caller()
        house.full = True
        for _ in range(2):
            await caller.say(upload(length))
            head, body = await caller.answer()
            assert head.startswith(b"HTTP/1.1 429")
            assert b"content-type: application/problem+json" in head
            assert b"connection: keep-alive" in head
            assert b"Retry-After: 1" in head
            assert json.loads(body)["detail"] == "full"
            await caller.say(b"x" * length)
        await caller.say(HELLO)
        assert (await caller.answer())[0].startswith(b"HTTP/1.1 200")
        assert (house.asked, house.heard) == (["/"], [])
        house.full = False
        await caller.say(upload(length) + b"x" * length)
        assert (await caller.answer())[1] == str(length).encode()
        assert house.asked == ["/", "/length"]


async def test_the_app_gets_the_place_and_its_time_begins_when_the_body_is_there() -> None:
    async with serving() as house:
        caller = await house.caller()
        await caller.say(upload(3))
        await until_async(lambda: house.places)
        (place,) = house.places
        head = place.since
        await caller.say(b"123")
        assert (await caller.answer())[1] == b"3"
        assert house.handed == [place]
        assert place.since > head
        await caller.say(HELLO)
        await caller.answer()
        assert house.handed == [place, None]


async def test_its_connection_is_not_kept_for_ever() -> None:
    async with serving() as house:
        house.full = True

        async def ends(sent: int) -> bool:
            caller = await house.caller()
            await caller.say(upload(5))
            assert (await caller.answer())[0].startswith(b"HTTP/1.1 429")
            await caller.say(b"x" * sent)
            return await caller.is_hung_up_on()

        assert await asyncio.gather(*(ends(sent) for sent in (0, 3, 5))) == [True] * 3


async def test_its_body_is_cut_off_where_it_has_no_end() -> None:
    async with serving(receive_seconds=30) as house:
        house.full = True
        caller = await house.caller()
        await caller.say(upload(VAST))
        assert (await caller.answer())[0].startswith(b"HTTP/1.1 429")
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(caller.say(bytes(VAST)), SOON)
        assert house.asked == []


@pytest.mark.parametrize(
    "request_", [FULL[:-2] + b"Connection: close\r\n\r\n", b"POST /length HTTP/1.0\r\n\r\n"]
)
async def test_one_who_wants_no_more_is_hung_up_on(request_: bytes) -> None:
    async with serving() as house:
        house.full = True
        caller = await house.caller()
        await caller.say(request_)
        assert await caller.refused() == (429, "queue-full")
        assert house.asked == []


async def test_one_who_comes_while_the_server_ends_is_hung_up_on() -> None:
    async with serving() as house:
        house.full = True
        caller = await house.caller()
        await caller.say(HELLO)
        await caller.answer()
        house.server.should_exit = True
        await until_async(lambda: not house.listens())
        await caller.say(FULL)
        assert await caller.refused() == (429, "queue-full")


async def test_one_that_asks_for_a_head_gets_no_body() -> None:
    """Else the next answer on the connection would begin with it."""
    async with serving() as house:
        house.full = True
        caller = await house.caller()
        await caller.say(FULL.replace(b"POST", b"HEAD") + HELLO)
        heard = b""
        while heard.count(b"\r\n\r\n") < 2 and (data := await caller.hear()):
            heard += data
        head, _, rest = heard.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 ")
        assert rest.startswith(b"HTTP/1.1 200")


async def test_one_behind_a_request_that_runs_is_answered_after_it() -> None:
    async with serving() as house:
        caller = await house.caller()
        await caller.say(upload(3, b"/later") + b"123")
        await until_async(lambda: house.asked)
        house.full = True
        await caller.say(FULL)
        assert (await caller.answer())[1] == b"3"
        assert (await caller.answer())[0].startswith(b"HTTP/1.1 ")


async def test_a_request_behind_it_has_all_the_time_that_its_answer_takes() -> None:
    async with serving() as house:
        house.full = True
        caller = await house.caller()
        await caller.say(FULL + upload(3, b"/later") + b"123")
        assert (await caller.answer())[0].startswith(b"HTTP/1.1 429")
        assert (await caller.answer())[1] == b"3"


@pytest.mark.slow
async def test_one_who_asks_and_asks_and_reads_no_answer_fills_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MOST_PIPELINED", 1_000_000)  # which would end it sooner
    async with serving(receive_seconds=5 * SOON) as house:  # only the unread answers may end it
        house.full = True
        caller = await house.caller()
        flood = asyncio.create_task(caller.say(FULL * 20_000))
        async with asyncio.timeout(5 * SOON):
            await house.refused.wait()
        flood.cancel()
        await asyncio.wait([flood])
        assert house.refusals == ["answer not read"]
        # Nobody reads, so the buffer is largest when the connection ends.
        assert 0 < house.unsent < 1_000_000


@pytest.mark.parametrize("method", [b"GET", b"PUT", b"DELETE"])
async def test_another_method_is_left_to_the_app(method: bytes) -> None:
    """It knows which scope such a request needs, or that nothing answers it."""
    async with serving() as house:
        house.full = True
        caller = await house.caller()
        await caller.say(FULL.replace(b"POST", method))
        assert (await caller.answer())[0].startswith(b"HTTP/1.1 200")
        assert (house.asked, house.handed) == (["/length"], [None])
