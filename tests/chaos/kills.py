"""Power cuts: the serving process is killed, or told to stop, while it has much to do."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from itertools import count

from tests.chaos.finding import Finding
from tests.chaos.stage import Client, NoReply, photo, staged, until_ready

CLIENTS = 8
SETTLE_SECONDS = 0.7


class Load:
    """Clients who ask without a pause, and what became of each request."""

    def __init__(self, port: int, model: str = "slow") -> None:
        self._port = port
        self._path = f"/v1/models/{model}:explain"
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
                    reply = await client.ask("POST", self._path, body)
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
    """kill -9 of the process that receives requests, and of the one that holds the models."""
    times = max(int(50 * scale), 3)
    findings = []
    with staged("calm", cache_bytes="0") as stage:
        for which, most in (("door", 1.5), ("engine", 3.0)):
            load = Load(stage.port, "calm")
            running = asyncio.create_task(load.run())
            took, later = [], 0
            for _ in range(times):
                await asyncio.sleep(SETTLE_SECONDS)
                lost = len(load.lost)
                other = stage.engine if which == "door" else stage.door
                killed_one = getattr(stage, which)
                at = time.monotonic()
                killed_one.kill()
                await asyncio.to_thread(killed_one.wait, 30)
                gone = time.monotonic()  # until then, its connections may be made and lost
                await asyncio.sleep(0.05)
                await asyncio.to_thread(until_ready, stage)
                took.append(time.monotonic() - at)
                assert other.is_running()
                later += sum(sent > gone + 0.05 for sent in load.lost[lost:])
            load.stop()
            await running
            # On a slow machine eight callers may be more than the service admits.
            failed = {status for status in load.statuses if status not in (200, 429, 503)}
            # The engine's death costs no connection: what it had not answered is a 503.
            lost_too_many = load.lost if which == "engine" else []
            findings.append(
                Finding(
                    f"{times} × SIGKILL of the {which} under load",
                    f"ready again ≤ {most:g} s; only requests in flight see an error"
                    + (", and no connection ends" if which == "engine" else ""),
                    f"ready again after {sorted(took)[len(took) // 2]:.1f} s (median), "
                    f"{max(took):.1f} s at most; {len(load.lost)} in flight lost their "
                    f"connection, {later} of those sent later; {load.statuses[200]} answered, "
                    f"{load.statuses[503]} × 503, {load.refused} connections refused",
                    not (later or failed or load.refused or lost_too_many),
                    max(took) <= most,
                )
            )
    return findings


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
            # On a busy machine a client may sleep beyond the time that an idle connection is kept
            # open for it.
            lost <= times and set(codes) == {0} and max(took) <= 25,
            not lost,
        )
    ]
