"""Clients of a server: in a closed loop or arriving at random, and what their answers took."""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

Send = Callable[[], Awaitable[None]]
IDLE_SECONDS = 3
"""Servers close connections that idle longer, uvicorn after 5."""


class Connections:
    """Kept-alive HTTP/1.1 connections to one port, as many as are needed at once."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def __aenter__(self) -> Connections:
        return self

    async def __aexit__(self, *raised: object) -> None:
        for _, _, writer in self._free:
            writer.close()

    async def send(self, request: bytes) -> None:
        """
        Raises:
            RuntimeError: if the answer is not a 200.
        """
        since, reader, writer = self._free.pop() if self._free else (0.0, None, None)
        if writer and time.perf_counter() - since > IDLE_SECONDS:
            writer.close()
            writer = None
        if reader is None or writer is None:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(request)
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        await reader.readexactly(length)
        self._free.append((time.perf_counter(), reader, writer))
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise RuntimeError(head.partition(b"\r\n")[0].decode())


class Tally:
    """What answers took, and how many there were not."""

    def __init__(self) -> None:
        self.took: list[float] = []
        self.failed = 0

    async def time(self, send: Send) -> None:
        started = time.perf_counter()
        try:
            await send()
        except RuntimeError:
            self.failed += 1
        else:
            self.took.append(time.perf_counter() - started)


async def closed(what: str, send: Send, clients: int, seconds: float) -> dict[str, Any]:
    """Each client sends its next request when the last is answered."""
    tally = Tally()
    begun = time.perf_counter()

    async def client() -> None:
        while time.perf_counter() - begun < seconds:
            await tally.time(send)

    await asyncio.gather(*(client() for _ in range(clients)))
    wall = time.perf_counter() - begun
    return row(what, f"{clients} clients", tally.took, tally.failed, wall)


async def poisson(
    what: str, send: Send, rate: float, share: float, seconds: float, patience: float = math.inf
) -> dict[str, Any]:
    """Requests arrive at random, whatever has been answered. `in_time` are the answers a second
    that took at most `patience` seconds: the goodput."""
    rng = random.Random(0)  # noqa: S311
    tally = Tally()
    begun = time.perf_counter()
    tasks = []
    while time.perf_counter() - begun < seconds:
        await asyncio.sleep(rng.expovariate(rate))
        tasks.append(asyncio.create_task(tally.time(send)))
    await asyncio.gather(*tasks)
    wall = time.perf_counter() - begun
    found = row(what, f"{share:.0%} of capacity", tally.took, tally.failed, wall)
    return found | {"in_time": sum(each <= patience for each in tally.took) / wall}


def row(what: str, load_: str, took: list[float], failed: int, wall: float) -> dict[str, Any]:
    ordered = sorted(took) or [float("nan")]

    def at(share: float) -> float:
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]

    return {
        "what": what,
        "load": load_,
        "per_second": len(took) / wall,
        "p50": statistics.median(ordered),
        "p95": at(0.95),
        "p99": at(0.99),
        "answers": len(took),
        "failed": failed,
    }
