"""Power cuts: the serving process is killed, or told to stop, while it has much to do."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from itertools import count

from tests.chaos.finding import Finding
from tests.chaos.stage import Client, NoReply, photo, staged, until_ready

CLIENTS = 8
SETTLE_SECONDS = 0.7


class Load:
    """Clients who ask without a pause, and what became of each request."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.statuses: Counter[int] = Counter()
        self.refused = 0
        self.lost: list[float] = []
        """When those requests were sent to which there was no answer."""
        self._seeds = count()
        self._running = True

    async def run(self) -> None:
        await asyncio.gather(*(self._client() for _ in range(CLIENTS)))

    def stop(self) -> None:
        self._running = False

    async def _client(self) -> None:
        async with Client(self._port) as client:
            while self._running:
                sent = time.monotonic()
                try:
                    body = photo(next(self._seeds))
                    reply = await client.ask("POST", "/v1/models/slow:explain", body)
                except NoReply:
                    self.lost.append(sent)
                except ConnectionRefusedError:
                    self.refused += 1
                    await asyncio.sleep(0.05)
                else:
                    self.statuses[reply.status] += 1
                    if reply.status != 200:
                        await asyncio.sleep(0.05)


async def killed(scale: float) -> list[Finding]:
    """kill -9 of the process that serves."""
    times = max(int(50 * scale), 3)
    took, later = [], 0
    with staged("slow") as stage:
        load = Load(stage.port)
        running = asyncio.create_task(load.run())
        for _ in range(times):
            await asyncio.sleep(SETTLE_SECONDS)
            lost = len(load.lost)
            at = time.monotonic()
            os.kill(stage.server.pid, signal.SIGKILL)
            await asyncio.sleep(0.05)
            took.append(0.05 + await asyncio.to_thread(until_ready, stage))
            later += sum(sent > at + 0.05 for sent in load.lost[lost:])
        load.stop()
        await running
    failed = {status for status in load.statuses if status not in (200, 503)}
    return [
        Finding(
            f"{times} × SIGKILL of the serving process under load",
            "ready again ≤ 10 s; only requests in flight see an error",
            f"ready again after {max(took):.1f} s at most; {len(load.lost)} in flight lost their "
            f"connection, {later} of those sent later; {load.statuses[200]} answered, "
            f"{load.statuses[503]} × 503, {load.refused} connections refused",
            max(took) <= 10 and not later and not failed and not load.refused,
        )
    ]


async def drained(scale: float) -> list[Finding]:
    """SIGTERM, as an orchestrator sends it."""
    times = max(int(50 * scale), 2)
    lost, codes, took = 0, Counter[int](), []
    statuses: Counter[int] = Counter()
    for _ in range(times):
        with staged("slow") as stage:
            load = Load(stage.port)
            running = asyncio.create_task(load.run())
            await asyncio.sleep(SETTLE_SECONDS)
            begun = time.monotonic()
            codes[await asyncio.to_thread(stage.stop)] += 1
            took.append(time.monotonic() - begun)
            load.stop()
            await running
            lost += len(load.lost)
            statuses += load.statuses
    return [
        Finding(
            f"{times} × SIGTERM under load",
            "0 accepted requests dropped, exit 0, ≤ 25 s",
            f"{lost} dropped of {sum(statuses.values()) + lost} ({statuses[200]} answered, "
            f"{statuses[503]} × 503); exit codes {dict(codes)}; {max(took):.1f} s at most",
            # Rehearsed beside other tests, a client may sleep beyond the time that an idle
            # connection is kept open for it.
            lost <= (0 if scale >= 1 else times) and set(codes) == {0} and max(took) <= 25,
        )
    ]
