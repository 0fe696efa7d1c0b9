"""Requests that do not come: connections and calls that stay open, dripping or silent.

What is held takes the way in, the bytes that drip (none: nothing comes), the scopes of the keys, in
turn, and the seconds after which nobody waits any more.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Final

from tests.chaos import http2
from tests.chaos.scene import Scene
from tests.chaos.ways import Way

SLOW: Final = 24
CALLS: Final = 250
"""More than the service has places (`scene.CONNECTIONS`); those with a key are fewer."""
CALLS_OF_A_CONNECTION: Final = 50
DRIP_SECONDS: Final = 0.1


async def connections_held(
    scene: Scene, way: Way, drip: bytes, scopes: Sequence[str], limit: float
) -> tuple[Counter[str], list[float]]:
    """The answers, and how long each of the connections lived; the limit, if it is still open."""
    right = way.form.right
    answers: Counter[str] = Counter()
    lives = []

    async def hold(turn: int) -> None:
        head = (
            f"POST {way.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {right.kind}\r\n"
            f"{scene.header(scopes[turn % len(scopes)])}"
        ).encode()
        kinds = [b"Content-Length: 1000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n", b""]
        beginning = head + kinds[0 if drip else turn // 2 % 3]
        answer, life = await _held_open(scene.ports[0], beginning, drip, limit)
        answers[answer] += 1
        lives.append(life)

    await asyncio.gather(*map(hold, range(SLOW)))
    return answers, lives


async def _held_open(port: int, beginning: bytes, drip: bytes, limit: float) -> tuple[str, float]:
    """The status, and how long the connection was open."""
    begun, found = time.monotonic(), b""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with suppress(OSError):
        writer.write(beginning)
        while time.monotonic() - begun <= limit:
            try:
                piece = await asyncio.wait_for(reader.read(10_000), DRIP_SECONDS)
            except TimeoutError:
                if drip and not writer.is_closing():
                    writer.write(drip)
                continue
            if not piece:
                break
            found += piece
    writer.close()
    answer = found.split(b" ", 2)[1].decode() if found.startswith(b"HTTP/") else "ended"
    return answer, time.monotonic() - begun


async def calls_held(
    scene: Scene, way: Way, drip: bytes, scopes: Sequence[str], limit: float
) -> tuple[Counter[str], list[float]]:
    """As `connections_held`, of calls of gRPC."""
    async with AsyncExitStack() as opened:
        connections = [
            await opened.enter_async_context(http2.connected(scene.grpc_port))
            for _ in range(CALLS // CALLS_OF_A_CONNECTION)
        ]

        async def hold(connection: http2.Connection) -> None:
            begun = [
                connection.begin(way.path, scene.metadata(scopes[turn % len(scopes)]))
                for turn in range(CALLS_OF_A_CONNECTION)
            ]
            if drip:
                for stream in begun:
                    connection.send(stream, b"\0" + (100_000).to_bytes(4, "big"))
            ended = asyncio.create_task(connection.until_ended())
            with suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    while not ended.done():
                        await asyncio.wait([ended], timeout=DRIP_SECONDS)
                        for stream in begun if drip else ():
                            connection.send(stream, drip)
            ended.cancel()

        await asyncio.gather(*map(hold, connections))
        ended = [life for each in connections for life in each.lives]
        still = sum(each.open for each in connections)
    return Counter({"ended": len(ended)}), [*ended, *[limit + 1] * still]
