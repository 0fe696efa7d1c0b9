"""Jobs whose processes die: a thousand photos, two hundred kills, and the same results."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from service.features.jobs.leases import HOPELESS
from tests.chaos.bringing import ask, bring, lines_of, told, until_done
from tests.chaos.crops import Crops, crops
from tests.chaos.finding import Finding
from tests.chaos.remains import most_attempts, remains
from tests.chaos.stage import Client, Stage, photo, plain, staged, until_ready
from tests.waiting import until_async

EMBEDDED = """
name = "lite"
source = "embedded:efficientnet-lite0"
layout = "channels-last"
"""
"""Last bits differ with the layout, which else is chosen at the start, by time."""
LETHAL = """
name = "lethal"
source = "factory:tests.zoo.factories:lethal"
weights = "none"
input_size = 8
"""
LEISURELY = """
name = "leisurely"
source = "factory:tests.zoo.factories:bulky"
weights = "none"
input_size = 8
max_batch = 1
"""
"""A pass takes a tenth of a second."""
MANY_PASSES = "?method=scorecam&budget=8"
PREEMPTED = 100
LIFE_SECONDS, SHORT_LIFE_SECONDS = 20, 4
COUNT = 1000
KILLS = 200
SUPERVISORS = 20
"""One in so many kills is of the supervisor, with the process that serves."""
MOST_SECONDS = 900
"""Then there are no more: on a slow machine a process takes long to be there again."""
ENOUGH = 0.25
"""Part of the kills below which nothing is shown."""
LONGEST_LIFE = 3.0
"""Seconds after it is ready."""
EARLY = 0.3
"""Part of the kills that come without waiting for that."""
WHITE = 255


@dataclass
class Attack:
    """What was done to a service and its jobs so far."""

    folder: Path
    images: Crops
    kills: int
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    dead: int = 0
    supervisors: int = 0
    again: int = 0
    """Times that one was sent again."""
    given_up: int = 0
    """Times that the supervisor ended after too many failed starts."""
    jobs: list[str] = field(default_factory=list)
    documents: list[dict[str, Any]] = field(default_factory=list)
    lines: list[list[dict[str, Any]]] = field(default_factory=list)
    listed: int = 0
    begun: float = field(default_factory=time.monotonic)

    @property
    def over(self) -> bool:
        return self.dead >= self.kills or time.monotonic() - self.begun > MOST_SECONDS


async def killed(scale: float) -> list[Finding]:
    """SIGKILL at random instants while jobs are worked on."""
    images = crops(max(int(COUNT * scale), 40))
    kills = max(int(KILLS * scale), 4)
    with tempfile.TemporaryDirectory() as calm, tempfile.TemporaryDirectory() as rough:
        expected = await _in_peace(calm, images)
        attack = Attack(Path(rough), images, kills)
        await _survive(attack)
        took = time.monotonic() - attack.begun
        done = sum(document["counts"]["done"] for document in attack.documents)
        state = remains(attack.folder, images, jobs=len(attack.jobs), results=done)
    count, jobs = len(images.images), len(attack.jobs)
    counts = [document["counts"] for document in attack.documents]
    right = {"total": count, "done": count - len(images.corrupt), "failed": len(images.corrupt)}
    exact = sum(each == {**right, "left": 0} for each in counts)
    order = sum([n["cursor"] for n in lines] == list(range(1, count + 1)) for lines in attack.lines)
    differ = sum(
        found.get(item) != said
        for found in map(told, attack.lines)
        for item, said in expected.items()
    )
    kept = state.pop("kept")
    said = ", ".join(f"{what}: {found}" for what, found in state.items())
    started = attack.supervisors + attack.given_up
    return [
        Finding(
            f"{jobs} × a job of {count:,} photos, 3 % corrupt, and {attack.dead} × SIGKILL at "
            f"random, {attack.supervisors} of the supervisor, too",
            "accepted = finished, none lost, none twice, none given up, counts exact, every "
            "result byte for byte as without kills, nothing left behind",
            f"{attack.listed} accepted, {len(counts)} finished; of them with exact counts {exact}, "
            f"cursors 1 … {count:,} {order}; {differ} results differ; {said}; sent again "
            f"{attack.again} ×, started again {started} ×; {took:.0f} s",
            attack.listed == jobs == exact == order
            and not differ
            and kept
            and attack.dead >= ENOUGH * kills,
        )
    ]


async def _in_peace(folder: str, images: Crops) -> dict[str, str]:
    with staged(EMBEDDED, jobs=folder, cache_bytes="0") as stage:
        async with Client(stage.port) as client:
            job, _ = await bring(client, images.packed(), "calm")
            await until_done(client, job)
            return told(await lines_of(client, job))


async def _survive(attack: Attack) -> None:
    """As many jobs as last for all kills; the last one ends in peace."""
    while True:
        with staged(EMBEDDED, jobs=str(attack.folder), cache_bytes="0") as stage:
            async with Client(stage.port) as client:
                working = asyncio.create_task(_work(attack, client))
                killing = asyncio.create_task(_kill(attack, stage))
                try:
                    both = [working, killing]
                    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                    if working.done() or not killing.result():
                        await working
                        await _account(attack, client)
                        assert await asyncio.to_thread(stage.stop) == 0
                        return
                finally:
                    for each in (working, killing):
                        each.cancel()
                    await asyncio.wait([working, killing])


async def _work(attack: Attack, client: Client) -> None:
    """One job after the other, until all kills are done."""
    body = attack.images.packed()
    while True:
        if len(attack.documents) == len(attack.jobs):
            if attack.jobs and attack.over:
                return
            job, tries = await bring(client, body, f"job {len(attack.jobs)}")
            attack.again += tries - 1
            attack.jobs.append(job)
        attack.documents.append(await until_done(client, attack.jobs[-1]))


async def _kill(attack: Attack, stage: Stage) -> bool:
    """Returns whether the supervisor has ended; otherwise there were enough kills."""
    rng = attack.rng
    while not attack.over:
        if rng.random() >= EARLY and not await asyncio.to_thread(_ready, stage):
            attack.given_up += 1
            return True
        await asyncio.sleep(LONGEST_LIFE * rng.random())
        with suppress(psutil.NoSuchProcess, ValueError):
            server = rng.choice(stage.serving or [stage.engine])
            both = rng.randrange(SUPERVISORS) == 0
            if both:
                os.kill(stage.process.pid, signal.SIGKILL)
                attack.supervisors += 1
            server.kill()
            attack.dead += 1
            if both:
                await asyncio.to_thread(stage.process.wait)
                return True
        if stage.process.poll() is not None:
            attack.given_up += 1
            return True
    ended = not await asyncio.to_thread(_ready, stage)
    attack.given_up += ended
    return ended


def _ready(stage: Stage) -> bool:
    """As soon as it is. It is not any more where three processes in a row were killed before they
    were: then it ends, and whoever started it has to start it again."""
    try:
        until_ready(stage)
    except AssertionError:
        if stage.process.poll() is None:
            raise
        return False
    return True


async def _account(attack: Attack, client: Client) -> None:
    attack.listed = len((await ask(client, "/v1/jobs?limit=200")).json()["jobs"])
    for job in attack.jobs:
        attack.lines.append(await lines_of(client, job))


async def preempted(scale: float) -> list[Finding]:
    """The whole service ends again and again, as that of a preempted pod, while each photo of a job
    takes a second."""
    count = max(int(PREEMPTED * scale), 8)
    life = LIFE_SECONDS if scale >= 1 else SHORT_LIFE_SECONDS
    body = Crops({str(number): photo(number) for number in range(count)}, {}).packed()
    job, done, with_rest, document = "", [0], True, dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder:
        while done[-1] < count and len(done) <= count:
            with staged(LEISURELY, jobs=folder) as stage:  # which ends with SIGKILL
                async with Client(stage.port) as client:
                    job = job or (await bring(client, body, "preempted", MANY_PASSES))[0]
                    with suppress(TimeoutError):
                        await asyncio.wait_for(until_done(client, job), life)
                    document = (await ask(client, job)).json()
                    done.append(document["counts"]["done"])
                    if 0 < done[-1] < count:
                        with_rest = with_rest and document.get("eta_seconds", 0) > 0
        attempts = most_attempts(Path(folder))
    counts, each = document["counts"], [now - before for before, now in pairwise(done)]
    return [
        Finding(
            f"a job of {count} photos of many passes, and SIGKILL of all processes every {life} s",
            "done at the end; some photos done in each life, and `eta_seconds` from the first; "
            "none given up",
            f"{counts['done']} done, {counts['failed']} failed, by life: "
            f"{', '.join(map(str, each))}; most deaths of an item: {attempts} of {HOPELESS}",
            counts == {"total": count, "done": count, "failed": 0, "left": 0}
            and len(each) > 1
            and min(each) > 0
            and with_rest
            and attempts < HOPELESS,
        )
    ]


async def deadly(scale: float) -> list[Finding]:
    """One photo of a job kills whoever works on it, beside a model that loads later: an engine that
    is killed before it has loaded all of its models has failed to start."""
    count, sick = 60, 7
    images = [plain(WHITE) if number == sick else photo(number) for number in range(count)]
    lives: set[int] = set()
    with tempfile.TemporaryDirectory() as folder, staged(LETHAL, "late", jobs=folder) as stage:
        watching = asyncio.create_task(_count_lives(stage, lives))
        begun = time.monotonic()
        async with Client(stage.port) as client:
            named = {str(number): image for number, image in enumerate(images)}
            job, _ = await bring(client, Crops(named, {}).packed(), "deadly")
            counts = (await until_done(client, job))["counts"]
            took = time.monotonic() - begun
            failed = [line for line in await lines_of(client, job) if "error" in line]
        # The job may end before the engine that follows the last one is there.
        with suppress(AssertionError):
            await until_async(lambda: len(lives) > HOPELESS, 30)
        watching.cancel()
        await asyncio.wait([watching])
    why = failed[0]["error"] if failed else "nothing"
    return [
        Finding(
            f"1 photo in {count} that ends the process",
            f"it alone is given up, after {HOPELESS} deaths, and says so",
            f"{counts['done']} done, {counts['failed']} failed ({why}); {len(lives) - 1} restarts "
            f"in {took:.0f} s",
            counts == {"total": count, "done": count - 1, "failed": 1, "left": 0}
            and [line["item"] for line in failed] == [str(sick)]
            and "ended or hung repeatedly" in why
            and len(lives) - 1 == HOPELESS,
        )
    ]


async def _count_lives(stage: Stage, lives: set[int]) -> None:
    """Each process that serves. What an engine starts for a moment, such as `uname`, is none."""
    before = 0
    while True:
        with suppress(psutil.NoSuchProcess, ValueError):
            if (now := stage.engine.pid) == before:
                lives.add(now)
            before = now
        await asyncio.sleep(0.1)
