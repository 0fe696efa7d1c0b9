"""Jobs whose service dies while they are on their way in."""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

from tests.chaos.bringing import ask, bring, until_done
from tests.chaos.crops import Crops, crops
from tests.chaos.finding import Finding
from tests.chaos.remains import remains
from tests.chaos.stage import Client, Stage, staged, until_ready

COUNT = 300
"""Photos of a job: it takes long enough to come in for a kill at any point of it."""
KILLS = 40
MODEL = "calm"
IN_PEACE = 5
"""Jobs before, to know how long one takes."""
LONGER = 1.5
"""Times what a job takes, within which the kill comes: some come just after it was accepted."""


async def arriving(scale: float) -> list[Finding]:
    """SIGKILL at a random instant of each job's way in; it is sent again under the same key."""
    images, kills = crops(COUNT), max(int(KILLS * scale), 3)
    rng = random.Random(2)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name, staged(MODEL, jobs=name, max_jobs="1000") as stage:
        async with Client(stage.port) as client:
            took = statistics.median([await _in_peace(client, images, n) for n in range(IN_PEACE)])
            again = [
                await _killed(client, stage, images, f"job {number}", LONGER * took * rng.random())
                for number in range(kills)
            ]
            jobs = await _listed(client)
            counts = [(await until_done(client, job))["counts"] for job in jobs]
        assert await asyncio.to_thread(stage.stop) == 0
        done = sum(each["done"] for each in counts)
        state = remains(Path(name), images, jobs=kills + IN_PEACE, results=done)
    kept = state.pop("kept")
    said = ", ".join(f"{what}: {found}" for what, found in state.items())
    right = {"total": COUNT, "done": COUNT - len(images.corrupt), "failed": len(images.corrupt)}
    exact = sum(each == {**right, "left": 0} for each in counts)
    return [
        Finding(
            f"{kills} × SIGKILL while a job of {COUNT} photos came in ({1000 * took:.0f} ms), and "
            "the job again under its idempotency key",
            "each job there once, and finished; nothing of those that died is left",
            f"{sum(again)} sent again; {len(jobs) - IN_PEACE} jobs, {exact - IN_PEACE} of them "
            f"exact; {said}; {time.monotonic() - begun:.0f} s",
            len(jobs) == exact == kills + IN_PEACE and kept and sum(again) >= kills // 4,
        )
    ]


async def _in_peace(client: Client, images: Crops, number: int) -> float:
    begun = time.monotonic()
    await bring(client, images.packed(), f"in peace {number}")
    return time.monotonic() - begun


async def _killed(client: Client, stage: Stage, images: Crops, key: str, after: float) -> bool:
    """Whether it had to be sent again."""
    await asyncio.to_thread(until_ready, stage)
    bringing = asyncio.create_task(bring(client, images.packed(), key))
    await asyncio.sleep(after)
    with suppress(psutil.NoSuchProcess, ValueError):
        stage.door.kill()
    _, tries = await bringing
    return tries > 1


async def _listed(client: Client) -> list[str]:
    listed = (await ask(client, "/v1/jobs?limit=200")).json()["jobs"]
    return [f"/v1/jobs/{each['id']}" for each in listed]
