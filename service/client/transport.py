"""The line to a service: calls go out, and out again; answers come in. One waits, one awaits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import BinaryIO

import httpx2

from service.client.answers import Answer
from service.client.calls import Call
from service.client.failures import ClientError
from service.client.retries import Retries, Tries

FAILURES = (ClientError, httpx2.RequestError)


class Line:
    """Calls of one who waits for the answer. Several threads may use it at once."""

    def __init__(self, http: httpx2.Client, rule: Retries) -> None:
        self.http = http
        self.rule = rule

    def send(
        self,
        call: Call,
        *,
        into: BinaryIO | None = None,
        rest: Callable[[float], object] = time.sleep,
    ) -> Answer:
        """The answer of a call that succeeded at last, its body written `into` a file if there is
        one.

        Raises:
            ValueError: if the call's names and parameters are longer than an address may be.
            ClientError: if none of the tries did.
        """
        tries = Tries(self.rule, call.bulky)
        while True:
            try:
                with self._opened(call, tries) as response:
                    sink = into if into is not None and response.is_success else None
                    body = bytearray()
                    for chunk in response.iter_bytes():
                        _keep(chunk, body, sink)
                        tries.require_time()
                return Answer(response.status_code, response.headers, bytes(body)).require_success()
            except FAILURES as error:
                pause = tries.pause(error)
            if into is not None:
                into.seek(0)
                into.truncate()
            rest(pause)

    @contextmanager
    def listen(self, call: Call, tries: Tries) -> Iterator[httpx2.EventSource]:
        """The events that one try of a call gives, while it lasts.

        Raises:
            ServiceError: if there are none.
        """
        with self._opened(call, tries) as response:
            if not response.is_success:
                body = response.read()
                Answer(response.status_code, response.headers, body).require_success()
            yield httpx2.EventSource(response)

    @contextmanager
    def _opened(self, call: Call, tries: Tries) -> Iterator[httpx2.Response]:
        content = call.body() if callable(call.body) else call.body
        opening = self.http.stream(
            call.method,
            call.path,
            params=call.query or None,
            headers=call.headers,
            content=content,
            timeout=tries.limits(),
        )
        with _fitting(), opening as response:
            yield response


class AsyncLine:
    """Calls of one who awaits the answer, in asyncio."""

    def __init__(self, http: httpx2.AsyncClient, rule: Retries) -> None:
        self.http = http
        self.rule = rule

    async def send(self, call: Call, *, into: BinaryIO | None = None) -> Answer:
        """As `Line.send`."""
        tries = Tries(self.rule, call.bulky)
        while True:
            try:
                async with self._opened(call, tries) as response:
                    sink = into if into is not None and response.is_success else None
                    body = bytearray()
                    async for chunk in response.aiter_bytes():
                        _keep(chunk, body, sink)
                        tries.require_time()
                return Answer(response.status_code, response.headers, bytes(body)).require_success()
            except FAILURES as error:
                pause = tries.pause(error)
            if into is not None:
                into.seek(0)
                into.truncate()
            await asyncio.sleep(pause)

    @asynccontextmanager
    async def listen(self, call: Call, tries: Tries) -> AsyncIterator[httpx2.EventSource]:
        """As `Line.listen`."""
        async with self._opened(call, tries) as response:
            if not response.is_success:
                body = await response.aread()
                Answer(response.status_code, response.headers, body).require_success()
            yield httpx2.EventSource(response)

    @asynccontextmanager
    async def _opened(self, call: Call, tries: Tries) -> AsyncIterator[httpx2.Response]:
        content = _awaited(call.body()) if callable(call.body) else call.body
        opening = self.http.stream(
            call.method,
            call.path,
            params=call.query or None,
            headers=call.headers,
            content=content,
            timeout=tries.limits(),
        )
        with _fitting():
            async with opening as response:
                yield response


@contextmanager
def _fitting() -> Iterator[None]:
    try:
        yield
    except httpx2.InvalidURL as error:
        raise ValueError(
            f"the names and parameters of the call do not fit into an address: {error}"
        ) from None


def _keep(chunk: bytes, body: bytearray, sink: BinaryIO | None) -> None:
    if sink is None:
        body += chunk
    else:
        sink.write(chunk)


async def _awaited(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """A body whose making reads files, made in another thread."""
    while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
        yield chunk
