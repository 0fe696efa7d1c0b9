"""Requests that arrive at random, whatever becomes of the earlier ones, each on a new connection.

Everything that is sent is made before the clock starts, and an answer is kept as its status, its
`Retry-After` and its time. The generator shares the machine with the service, so it measures its
own lateness: how long after the moment that was drawn for it a request was sent.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from time import perf_counter
from typing import Final, cast

from service.settings import Settings

PROBE_SECONDS: Final = 0.05
"""Seconds between two probes."""
LAST_SECONDS: Final = 15.0
"""Longest wait for the last answers."""
TIMES_ALONE: Final = 5
SPARE_SECONDS: Final = 0.5
PROBE: Final = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@dataclass(eq=False)
class Shot:
    """One request, and what became of it. Times are those of `perf_counter`."""

    due: float
    who: int = 0
    """Which of the callers sends it."""
    sent: float = 0.0
    seconds: float = 0.0
    """Time from `sent` to the whole answer."""
    status: int = 0
    """0 if the connection ended without an answer."""
    retry_after: int | None = None


@dataclass(frozen=True)
class Flood:
    """What became of the requests that came in `seconds`."""

    shots: list[Shot]
    probes: list[Shot]
    seconds: float

    def useful(self, patience: float) -> float:
        """Return the good answers a second that were there at most `patience` seconds after the
        request was due."""
        good = sum(
            shot.status == 200 and shot.sent - shot.due + shot.seconds <= patience
            for shot in self.shots
        )
        return good / self.seconds

    @property
    def refusals(self) -> list[Shot]:
        """The answers which say that there is no room. A 504 is an answer that came too late."""
        return [shot for shot in self.shots if shot.status in (429, 503)]

    @property
    def silent(self) -> int:
        """Number of requests without an answer."""
        return sum(shot.status == 0 for shot in self.shots)

    @property
    def lateness(self) -> float:
        """The 99th percentile of the generator's lateness, in seconds."""
        return percentile([shot.sent - shot.due for shot in self.shots], 0.99)


class _Exchange(asyncio.Protocol):
    """Sends one request on a connection of its own, and notes the answer."""

    def __init__(self, request: bytes, shot: Shot, done: asyncio.Future[None]) -> None:
        self._request, self._shot, self._done = request, shot, done
        self._head = b""
        self._left: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is of another class
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._left is None:
            self._head += data
            head, end, body = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            fields = dict(
                line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line
            )
            self._shot.status = int(head.split(b" ", 2)[1])
            self._left = int(fields.get(b"content-length", b"0"))
            if b"retry-after" in fields:
                self._shot.retry_after = int(fields[b"retry-after"])
            data = body
        self._left -= len(data)
        if self._left <= 0:
            self._shot.seconds = perf_counter() - self._shot.sent
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if self._left is None or self._left > 0:
            self._shot.status = 0
        if not self._done.done():
            self._done.set_result(None)


async def ask(port: int, request: bytes, shot: Shot, patience: float | None = None) -> None:
    """Send one request, and hang up after `patience` seconds without an answer."""
    loop = asyncio.get_running_loop()
    shot.sent = perf_counter()
    done = loop.create_future()
    try:
        async with asyncio.timeout(patience):
            transport, _ = await loop.create_connection(
                lambda: _Exchange(request, shot, done), "127.0.0.1", port
            )
            try:
                await done
            finally:
                transport.abort()
    except (OSError, TimeoutError):
        shot.status = 0
        shot.seconds = perf_counter() - shot.sent


async def flood(
    port: int,
    callers: Sequence[tuple[float, Iterator[bytes]]],
    seconds: float,
    *,
    patience: float | None = None,
    seed: int = 0,
) -> Flood:
    """Send requests at random for `seconds`, and probes at even distances.

    Args:
        callers: for each of them the requests a second, and the requests, without an end.
        patience: seconds after which a caller without an answer hangs up.
    """
    rng = random.Random(seed)  # noqa: S311
    shots: list[Shot] = []
    probes: list[Shot] = []
    plan: list[tuple[Shot, Iterator[bytes]]] = []
    for who, (rate, requests) in enumerate(callers):
        due = rng.expovariate(rate)
        while due < seconds:
            plan.append((Shot(due, who), requests))
            due += rng.expovariate(rate)
    health = cycle([PROBE])
    plan += [
        (Shot(PROBE_SECONDS * turn, -1), health) for turn in range(int(seconds / PROBE_SECONDS))
    ]
    plan.sort(key=lambda each: each[0].due)
    tasks = []
    gc.freeze()  # a collection that searched all of them would make what follows late
    begun = perf_counter()
    for shot, requests in plan:
        shot.due += begun
        if (wait := shot.due - perf_counter()) > 0:
            await asyncio.sleep(wait)
        is_probe = shot.who < 0
        (probes if is_probe else shots).append(shot)
        tasks.append(asyncio.create_task(ask(port, next(requests), shot, patience)))
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=LAST_SECONDS)
        for each in late:
            each.cancel()
        if late:
            await asyncio.wait(late)
    return Flood(shots, probes, seconds)


def patience(alone: float) -> float:
    """Return the seconds within which an answer is useful.

    Args:
        alone: seconds that a request takes alone.
    """
    settings = Settings()
    wanted = max(TIMES_ALONE * alone, settings.target_seconds) + SPARE_SECONDS
    return min(settings.deadline_seconds, wanted)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which that share of them lies; 0 of none."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0
