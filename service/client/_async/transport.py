"""The connection to a service: it sends calls, repeats them, and receives the answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import BinaryIO

import httpx2

from service.client.calls import Request
from service.client.responses import Response
from service.client.retries import FAILURES, Retries, Tries
from service.client.tasks import iterate_blocking, sleep


class AsyncLine:
    """It sends calls, and tries again. Several callers may use it at once."""

    def __init__(self, http: httpx2.AsyncClient, rule: Retries) -> None:
        self.http = http
        self.rule = rule

    async def send(self, call: Request, *, into: BinaryIO | None = None) -> Response:
        """The answer of a call that succeeded at last, its body written `into` a file if there is
        one.

        Raises:
            ValueError: if the call's names and parameters are longer than an address may be.
            ClientError: if none of the tries did.
        """
        tries = Tries(self.rule, call.bulky)
        while True:
            try:
                async with self._opened(call, tries) as response:
                    sink = into if into is not None and response.is_success else None
                    body = bytearray()
                    async for chunk in response.aiter_bytes():
                        if sink is None:
                            body += chunk
                        else:
                            sink.write(chunk)
                        tries.require_time()
                return Response(
                    response.status_code, response.headers, bytes(body)
                ).require_success()
            except FAILURES as error:
                pause = tries.pause(error)
            if into is not None:
                into.seek(0)
                into.truncate()
            await sleep(pause)

    @asynccontextmanager
    async def listen(self, call: Request, tries: Tries) -> AsyncIterator[httpx2.EventSource]:
        """The events that one try of a call gives, while it lasts.

        Raises:
            ServiceError: if there are none.
        """
        async with self._opened(call, tries) as response:
            if not response.is_success:
                body = await response.aread()
                Response(response.status_code, response.headers, body).require_success()
            yield httpx2.EventSource(response)

    @asynccontextmanager
    async def _opened(self, call: Request, tries: Tries) -> AsyncIterator[httpx2.Response]:
        # Such a body reads files on its way.
        content = iterate_blocking(call.body()) if callable(call.body) else call.body
        opening = self.http.stream(
            call.method,
            call.path,
            params=call.query or None,
            headers=call.headers,
            content=content,
            timeout=tries.limits(),
        )
        try:
            async with opening as response:
                yield response
        except httpx2.InvalidURL as error:
            raise ValueError(
                f"the names and parameters of the call do not fit into an address: {error}"
            ) from None
