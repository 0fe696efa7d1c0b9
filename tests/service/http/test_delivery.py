"""Answers are sent in pieces, and within the time of their request."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

import pytest
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message

from service.core.errors import DeadlineExceeded
from service.core.metrics import Metrics
from service.http.middleware import PIECE, Deliver
from service.settings import Settings
from tests.service.conftest import encoded, noise, running_app
from tests.service.http.test_bad_input import check
from tests.service.http.test_overload import FRAGILE

pytestmark = pytest.mark.anyio
EXPLAIN = "/v1/models/fragile:explain"


async def delivered(app: ASGIApp, sent: list[Message], **state: Any) -> None:
    """Let a client that reads each message at once ask an app."""

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    await Deliver(app, metrics=Metrics())(
        {"type": "http", "method": "GET", "state": state}, receive, send
    )


async def test_a_large_body_is_sent_in_pieces() -> None:
    body = bytes(range(256)) * (PIECE // 100)
    sent: list[Message] = []
    await delivered(Response(body), sent)
    pieces = [message["body"] for message in sent[1:]]
    assert b"".join(pieces) == body
    assert [len(piece) for piece in pieces[:-1]] == [PIECE] * (len(body) // PIECE)
    assert [message["more_body"] for message in sent[1:]] == [True] * (len(pieces) - 1) + [False]


async def test_an_answer_that_is_late_becomes_a_problem_and_a_problem_is_sent() -> None:
    sent: list[Message] = []
    with pytest.raises(DeadlineExceeded, match="too late"):
        await delivered(Response(b"a"), sent, until=monotonic() - 1)
    assert sent == []
    await delivered(Response(b"a", 422), sent, until=monotonic() - 1)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]


async def test_an_answer_that_is_not_read_in_time_is_cut_off() -> None:
    cut_off: list[bool] = []
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)
        if len(sent) == 3:  # the client reads the head and one piece
            await asyncio.Event().wait()

    async def receive() -> Message:
        return {"type": "http.request"}

    state = {"until": monotonic() + 0.1, "abort": lambda: cut_off.append(True)}
    metrics = Metrics()
    with pytest.raises(ClientDisconnect):
        await Deliver(Response(bytes(3 * PIECE)), metrics=metrics)(
            {"type": "http", "method": "GET", "state": state}, receive, send
        )
    assert cut_off == [True]
    assert len(sent) == 3
    assert b'reason="answer not read"} 1' in metrics.render([])


def test_the_numbers_of_an_answer_are_counted_before_they_are_made() -> None:
    photo = encoded(noise(200, 200))
    query, png = {"output": "values"}, {"Content-Type": "image/png"}
    with running_app(Settings(max_body_bytes=500_000, max_bodies_bytes=500_000), [FRAGILE]) as http:
        full = http.post(EXPLAIN, params=query, content=photo, headers=png)
        check(full, 503, "overloaded", "requests and answers together", "try again")
        assert full.headers["retry-after"] == "1"
        npy = {**png, "Accept": "application/x-npy"}
        assert http.post(EXPLAIN, content=photo, headers=npy).status_code == 200
        small = http.post(EXPLAIN, params={**query, "size": "model"}, content=photo, headers=png)
        assert small.status_code == 200


def test_a_json_answer_has_at_most_four_million_numbers() -> None:
    photo = encoded(noise(2048, 2048), "JPEG")
    jpeg = {"Content-Type": "image/jpeg"}
    with running_app(Settings(), [FRAGILE]) as http:
        for query in ({"output": "values"}, {"normalize": "none"}):
            refused = http.post(EXPLAIN, params=query, content=photo, headers=jpeg)
            check(refused, 422, "invalid-parameter", "4194304 numbers", "4000000", "size=model")
        npy = {**jpeg, "Accept": "application/x-npy"}
        assert http.post(EXPLAIN, content=photo, headers=npy).status_code == 200
