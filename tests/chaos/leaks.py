"""Many requests, every fifth of which fails: what stays behind?"""

from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np

from tests.chaos.finding import Finding
from tests.chaos.stage import Client, Stage, photo, staged

AT_ONCE = 16
WARMING, REHEARSED_WARMING = 4_000, 2_000
"""Least number of requests before the first look: pools of threads and connections grow until as
many requests as ever have been in progress at one moment."""
LOOKS = 3
ROUNDS = 2
"""A pool that got one more thread, with its connection to a database, does not get another one.
What leaks does so again."""
SAMPLES = 40
SLOPE, REHEARSED_SLOPE = 1.0, 12.0
"""Megabytes for each 10,000 requests. Of few requests the slope is mostly noise."""
PATH = "/v1/models/{}:explain"


async def leaks(scale: float) -> list[Finding]:
    """The service, and beside it one whose model leaks, which has to be caught."""
    count = int(50_000 * scale)
    most = SLOPE if scale >= 1 else REHEARSED_SLOPE
    warming = WARMING if scale >= 1 else REHEARSED_WARMING
    found = await _measure("watched", count, warming, most)
    control = await _measure("leaky", min(count, 4_000), warming // 10, most)
    kept = found.caught == []
    return [
        Finding(
            f"{count:,} requests, a fifth of them failing",
            "resident memory after the midpoint < 1 MB per 10,000; hooks, descriptors, threads ± 0",
            f"{found}",
            kept,
        ),
        Finding(
            "the control: a model that keeps a hook, a buffer, at times a file and a thread",
            "is caught",
            f"{control}; caught by {', '.join(control.caught) or 'nothing'}",
            set(control.caught) >= {"memory", "hooks", "descriptors", "threads"},
        ),
    ]


class Behind:
    """What stayed."""

    def __init__(
        self, slope: float, hooks: int, descriptors: int, threads: int, most: float
    ) -> None:
        self.slope, self.hooks = slope, hooks
        self._most = most
        self.descriptors, self.threads = descriptors, threads

    @property
    def caught(self) -> list[str]:
        grown = {
            "memory": self.slope >= self._most,
            "hooks": self.hooks != 0,
            "descriptors": self.descriptors > 0,
            "threads": self.threads > 0,
        }
        return [what for what, is_so in grown.items() if is_so]

    def __str__(self) -> str:
        return (
            f"{self.slope:+.2f} MB per 10,000; hooks {self.hooks:+}, descriptors "
            f"{self.descriptors:+}, threads {self.threads:+}"
        )


async def _measure(model: str, count: int, warming: int, most: float) -> Behind:
    with staged(model, cache_bytes="100000") as stage:
        async with Client(stage.port) as client:
            await _ask(client, model, 0, warming)
            await asyncio.sleep(7)  # idle connections and spare memory are given back
            for round_ in range(ROUNDS):
                first = (round_ + 1) * 1_000_000
                behind = await _behind(stage, client, model, first, count, most)
                if not {"descriptors", "threads"} & set(behind.caught):
                    break
        return behind


async def _behind(
    stage: Stage, client: Client, model: str, first: int, count: int, most: float
) -> Behind:
    """What stays of some requests, the first of which has this number."""
    hooks, before = stage.hooks, stage.vitals()
    resident = []
    for turn in range(SAMPLES):
        await _ask(client, model, first + turn * count // SAMPLES, count // SAMPLES)
        resident.append(stage.vitals().resident / 1e6)
    for _ in range(LOOKS):  # what is open for a moment is not a leak
        await asyncio.sleep(7)
        after = stage.vitals()
        if after.descriptors <= before.descriptors and after.threads <= before.threads:
            break
    return Behind(
        _slope(resident[SAMPLES // 2 :], count / SAMPLES),
        stage.hooks - hooks,
        after.descriptors - before.descriptors,
        after.threads - before.threads,
        most,
    )


def _slope(resident: list[float], requests: float) -> float:
    """Per 10,000 requests, by least squares."""
    return float(np.polyfit(np.arange(len(resident)) * requests / 10_000, resident, 1)[0])


async def _ask(client: Client, model: str, start: int, count: int) -> None:
    seeds = iter(range(start, start + count))
    statuses: Counter[int] = Counter()

    async def work() -> None:
        for seed in seeds:
            path, body = PATH.format(model), photo(seed, 8, 8)
            if seed % 5 == 0:
                path, body = [
                    (path, body[:30]),
                    (path + "?target=99", body),
                    (path + "?method=sorcery", body),
                    (PATH.format(f"no-{seed}"), body),
                    (path, b""),
                ][seed // 5 % 5]
            reply = await client.ask("POST", path, body)
            statuses[reply.status // 100] += 1

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    assert set(statuses) == {2, 4}, statuses
