"""Connections that take their time, over real sockets."""

from __future__ import annotations

import asyncio
from itertools import repeat

import pytest
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from service.process import connections
from tests.service.process.callers import (
    HELLO,
    KEEP_ALIVE,
    LARGE,
    SHORT,
    SOON,
    VAST,
    serving,
    upload,
)
from tests.waiting import stays_async, until_async

pytestmark = pytest.mark.anyio


OVERRIDDEN = {
    *("connection_made", "connection_lost", "data_received", "pause_writing", "resume_writing"),
    *("on_message_begin", "on_header", "on_headers_complete", "on_body", "on_message_complete"),
    *("on_response_complete", "send_400_response", "shutdown"),
}
USED = {
    *("_unset_keepalive_if_required", "cycle", "flow", "headers", "loop", "parser", "pipeline"),
    *("scope", "timeout_keep_alive", "timeout_keep_alive_handler", "timeout_keep_alive_task"),
    "transport",
}
"""Attributes and methods of uvicorn's that the protocol reads, sets or calls."""


async def test_uvicorn_has_the_internals_that_the_protocol_relies_on() -> None:
    ours, theirs = vars(connections.BoundedProtocol), vars(HttpToolsProtocol)
    assert {name for name in ours if name in theirs and not name.startswith("__")} == OVERRIDDEN
    made = HttpToolsProtocol(Config(app=lambda *_: None, factory=True), ServerState(), {})
    assert [name for name in sorted(USED) if not hasattr(made, name)] == []
    assert {"pause_reading", "resume_reading", "read_paused"} <= {
        *dir(FlowControl),
        *vars(FlowControl(asyncio.Transport())),
    }


async def test_a_silent_connection_is_closed_without_a_word() -> None:
    async with serving() as house:
        caller = await house.caller()
        await caller.hung_up_on()
        assert house.refusals == []


@pytest.mark.parametrize("begin", [b"GET /", upload(100)], ids=["head", "body"])
async def test_who_drips_is_told_that_it_was_too_slow(begin: bytes) -> None:
    async with serving() as house:
        caller = await house.caller()
        house.mark(SHORT * 0.9, SOON)
        dripping = asyncio.create_task(caller.drip(begin, repeat(b"x"), SHORT / 10))
        assert await caller.refused() == (408, "too-slow")
        assert house.order[:2] == [SHORT * 0.9, "the request arrived too slowly"]
        dripping.cancel()
        await asyncio.wait([dripping])
        assert house.refusals == ["the request arrived too slowly"]
        kinds = [message["type"] for message in house.heard[-1:]]
        assert kinds == (["http.disconnect"] if b"POST" in begin else [])


async def test_a_long_body_has_the_time_that_it_takes_at_the_least_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "LEAST_RATE", 1000)
    async with serving() as house:
        caller = await house.caller()
        await caller.drip(upload(20 * 300), [b"x" * 300] * 20, SHORT / 8)  # more than twice SHORT
        assert (await caller.answer())[1] == b"6000"


@pytest.mark.slow
async def test_a_body_has_its_time_where_the_app_held_it_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "LEAST_RATE", 1e12)
    async with serving() as house:
        caller = await house.caller()
        await caller.say(upload(100_000, b"/later") + bytes(90_000))
        await until_async(lambda: house.heard)
        await caller.drip(b"", [bytes(10_000)], SHORT * 0.7)
        assert (await caller.answer())[1] == b"100000"


async def test_every_request_of_a_connection_has_its_own_time() -> None:
    async with serving() as house:
        caller = await house.caller()
        for _ in range(2):
            await caller.say(HELLO)
            assert (await caller.answer())[0].startswith(b"HTTP/1.1 200")
            await stays_async(lambda: house.server.server_state.connections, SHORT * 1.3)
        await caller.say(b"GET / HT")
        assert await caller.refused() == (408, "too-slow")


async def test_a_connection_that_was_answered_is_not_kept_for_ever() -> None:
    async with serving() as house:

        async def ends(begin: bytes, rest: bytes) -> bool:
            caller = await house.caller()
            await caller.say(begin)
            await caller.answer()
            await caller.say(rest)
            return await caller.is_hung_up_on()

        then = {
            "nothing": ends(HELLO, b""),
            "an empty line": ends(HELLO, b"\r\n"),
            "half a request": ends(HELLO, b"GET /"),
            "half of a body that nobody reads": ends(upload(5, b"/"), b"123"),
            "all of it": ends(upload(5, b"/"), b"12345"),
        }
        ended = dict(zip(then, await asyncio.gather(*then.values()), strict=True))
        assert ended == dict.fromkeys(then, True)


async def test_a_body_that_goes_on_after_its_answer_is_cut_off() -> None:
    async with serving(receive_seconds=30) as house:
        caller = await house.caller()
        await caller.say(upload(VAST, b"/"))
        assert (await caller.answer())[0].startswith(b"HTTP/1.1 200")
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(caller.say(bytes(VAST)), SOON)


async def test_a_request_behind_another_is_told_too_that_it_was_too_slow() -> None:
    async with serving() as house:
        caller = await house.caller()
        await caller.say(HELLO + upload(5) + b"123")
        assert (await caller.answer())[0].startswith(b"HTTP/1.1 200")
        assert await caller.refused() == (408, "too-slow")


def headers(count: int) -> bytes:
    return b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * count


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\nX-Endless: " + b"a" * 40_000,
        b"GET /" + b"a" * 40_000,
        headers(101) + b"\r\n",
        headers(8_000),
    ],
    ids=["header", "path", "101 headers", "8000 headers"],
)
async def test_a_head_that_is_too_large_is_refused(head: bytes) -> None:
    async with serving() as house:
        caller = await house.caller()
        await caller.say(head)
        assert await caller.refused() == (431, "head-too-large")
        assert house.refusals == ["the request's head is too large"]


async def test_a_head_just_within_the_limits_is_read() -> None:
    async with serving() as house:
        caller = await house.caller()
        await caller.say(headers(99) + b"c: " + b"d" * 32_000 + b"\r\n\r\n")
        assert (await caller.answer())[0].startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "trailer", [b"a: b\r\n" * 9_000, b"a: " + b"b" * 50_000], ids=["many", "one"]
)
async def test_trailers_of_a_body_are_bounded_as_its_head_is(trailer: bytes) -> None:
    async with serving() as house:
        caller = await house.caller()
        chunked = upload(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        await caller.say(chunked + b"2\r\nab\r\n0\r\n")
        await until_async(lambda: house.heard)
        await caller.say(trailer)
        assert await caller.refused() == (431, "head-too-large")


@pytest.mark.parametrize(
    "words",
    [
        b"\x16\x03\x01\x02\0\x01\0",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"Hi!\r\n",
        b"CONNECT x:80 HTTP/1.1\r\n\r\n",
        upload(5)[:-2] + b"Transfer-Encoding: chunked\r\n\r\n",
    ],
    ids=["TLS", "HTTP/2", "a greeting", "CONNECT", "two lengths"],
)
async def test_what_is_not_http_is_a_problem(words: bytes) -> None:
    async with serving() as house:
        caller = await house.caller()
        await caller.say(words)
        assert await caller.refused() == (400, "malformed-request")
        assert house.refusals == ["the request cannot be read"]


async def test_a_client_that_reads_nothing_of_its_answer_is_dropped() -> None:
    async with serving() as house:
        caller = await house.caller()
        house.mark(SHORT * 0.9, SOON)
        await caller.say(LARGE % VAST)
        await until_async(lambda: house.refusals)
        assert house.refusals == ["answer not read"]
        assert house.order[:2] == [SHORT * 0.9, "answer not read"]
        assert 0 < len((await caller.answer())[1]) < VAST


async def test_a_client_that_reads_slowly_gets_all_of_its_answer() -> None:
    async with serving() as house:
        caller = await house.caller()
        await caller.say(LARGE % VAST)
        await caller.takes_its_time_over(VAST)  # more than twice SHORT
        assert house.refusals == []


async def test_nor_is_a_slow_one_dropped_whose_answer_comes_in_pieces_that_grow() -> None:
    async with serving() as house:
        caller = await house.caller()
        await caller.say(b"GET /pieces/4000000/16000000 HTTP/1.1\r\nHost: x\r\n\r\n")
        await caller.takes_its_time_over(VAST)
        assert house.refusals == []


async def test_nor_one_that_had_a_smaller_answer_before() -> None:
    async with serving() as house:
        caller = await house.caller()
        await caller.say(LARGE % 8_000_000)
        assert len((await caller.answer())[1]) == 8_000_000
        await stays_async(lambda: not house.refusals, SHORT * 0.8)
        await caller.say(LARGE % VAST)
        await stays_async(lambda: not house.refusals, SHORT * 0.4)
        assert len((await caller.answer())[1]) == VAST
        assert house.refusals == []


async def test_one_connection_too_many_is_told_to_come_again_and_may() -> None:
    async with serving(receive_seconds=30) as house:
        callers = [await house.caller() for _ in range(5)]
        for one in callers:
            await one.say(HELLO)
            await one.answer()
        sixth = await house.caller()
        head, _ = await sixth.answer()
        assert head.startswith(b"HTTP/1.1 503")
        assert b"\r\nRetry-After: 1" in head
        await sixth.hung_up_on()
        await callers[0].say(HELLO)
        assert (await callers[0].answer())[0].startswith(b"HTTP/1.1 200")
        house.callers[1].close()
        await until_async(lambda: len(house.server.server_state.connections) == 4)
        seventh = await house.caller()
        await seventh.say(HELLO)
        assert (await seventh.answer())[0].startswith(b"HTTP/1.1 200")
        assert house.refusals == ["the service holds as much as it may"]


async def test_a_connection_that_was_idle_when_the_server_ends_has_its_last_request_answered() -> (
    None
):
    async with serving(receive_seconds=30, keep_alive=30) as house:
        last, fresh, idle = [await house.caller() for _ in range(3)]
        for one in (last, idle):
            await one.say(HELLO)
            assert b"connection: close" not in (await one.answer())[0]
        house.server.should_exit = True
        await until_async(lambda: not house.listens())
        house.mark(KEEP_ALIVE * 0.9)
        for one in (last, fresh):
            await one.say(HELLO)
            head, _ = await one.answer()
            assert head.startswith(b"HTTP/1.1 200")
            assert b"connection: close" in head
            await one.hung_up_on()
        await idle.hung_up_on()
        assert house.order[:3] == ["closed if idle"] * 3, "not by the limit for kept connections"
        assert house.refusals == []


async def test_a_request_that_runs_when_the_server_ends_is_finished() -> None:
    async with serving() as house:
        caller = await house.caller()
        await caller.say(upload(3, b"/later") + b"123")
        await until_async(lambda: house.server.server_state.tasks)
        house.server.should_exit = True
        head, body = await caller.answer()
        assert (head.split()[1], body) == (b"200", b"3")
        assert b"connection: close" in head
        await caller.hung_up_on()


async def test_requests_that_wait_for_an_earlier_one_are_few() -> None:
    """A chunk of a quarter of a megabyte may hold ten thousand, each with objects of its own."""
    async with serving() as house:
        caller = await house.caller()
        await caller.say(upload(3, b"/later") + b"123" + HELLO * 10_000)
        await until_async(lambda: house.refusals)
        (connection,) = house.server.server_state.connections
        assert isinstance(connection, connections.BoundedProtocol)
        assert len(connection.pipeline) == connections.MOST_PIPELINED
        assert (await caller.answer())[1] == b"3"
        for _ in range(connections.MOST_PIPELINED):
            head, _ = await caller.answer()
            assert head.startswith(b"HTTP/1.1 200")
        assert await caller.refused() == (503, "overloaded")
        assert house.asked == ["/later", *["/"] * connections.MOST_PIPELINED]


@pytest.mark.parametrize("between", [b"", HELLO], ids=["at once", "one between"])
@pytest.mark.parametrize(
    ("last", "told"),
    [
        (b"BAD\x01 / HTTP/1.1\r\n\r\n", (400, "malformed-request")),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 40_000 + b"\r\n\r\n", (431, "head-too-large")),
        (b"GET /", (408, "too-slow")),
    ],
)
async def test_a_request_that_is_none_takes_no_other_ones_answer(
    last: bytes, told: tuple[int, str], between: bytes
) -> None:
    async with serving() as house:
        caller = await house.caller()
        await caller.say(upload(3, b"/later") + b"123" + between + last)
        head, body = await caller.answer()
        assert (head.split()[1], body) == (b"200", b"3")
        if between:
            assert (await caller.answer())[0].startswith(b"HTTP/1.1 200")
        assert await caller.refused() == told
