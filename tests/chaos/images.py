"""Strangers' bytes: files damaged at random, made by hand to confuse, made to blow up."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections import Counter

from tests.chaos import corpus
from tests.chaos.finding import STUCK_SECONDS, Finding
from tests.chaos.stage import Client, Reply, staged

PATH = "/v1/models/calm:explain?size=model"
MEGABYTE = 1e6
AT_ONCE = 8
REST_SECONDS = 12
"""By then a service at rest has given back what memory it does not need."""


async def mutated(scale: float) -> list[Finding]:
    """Each file as a body, every third in JSON, every third for a picture."""
    with staged("calm", receive_seconds="60") as stage:
        nasties = list(corpus.nasties().items())
        damaged = [*corpus.mutations(int(10_000 * scale), seed=1)]
        async with Client(stage.port) as client:
            await _send(client, [*corpus.mutations(300, seed=2)], AT_ONCE)
            await _send(client, nasties, 1)
            await asyncio.sleep(REST_SECONDS)
            serving, before = stage.serving, stage.vitals()
            replies = await _send(client, damaged, AT_ONCE)
            replies += await _send(client, nasties, 1)  # some are large: they would wait in turn
            await asyncio.sleep(REST_SECONDS)
            after = stage.vitals()
        growth = after.resident / before.resident - 1
        deaths = sum(not each.is_running() for each in serving)
    statuses = Counter(reply.status for _, reply in replies)
    slowest, longest = max(replies, key=lambda each: each[1].seconds)
    failed = sum(count for status, count in statuses.items() if status >= 500)
    return [
        Finding(
            f"{len(damaged):,} files damaged at random, {len(nasties)} nasties",
            "0 5xx, 0 deaths, each < 2 s, resident memory < +5 %",
            f"{failed} 5xx, {deaths} deaths, slowest {longest.seconds:.2f} s ({slowest}), "
            f"{growth:+.1%}; {_shown(statuses)}",
            not failed and not deaths and longest.seconds < STUCK_SECONDS and growth < 0.05,
            longest.seconds < 2,
        )
    ]


async def bombs(scale: float) -> list[Finding]:
    """One after the other, with an eye on memory every few milliseconds."""
    files = corpus.bombs()
    with staged("calm") as stage:
        async with Client(stage.port) as client:
            await _send(client, list(corpus.valid().items()), 1)
            await asyncio.sleep(REST_SECONDS)
            serving = stage.serving
            before = peak = stage.vitals().resident
            done = threading.Event()

            def watch() -> None:
                nonlocal peak
                while not done.wait(0.003):
                    peak = max(peak, sum(each.memory_info().rss for each in serving))

            watcher = threading.Thread(target=watch)
            watcher.start()
            replies = [(name, await client.ask("POST", PATH, data)) for name, data in files.items()]
            done.set()
            watcher.join()
    slowest, longest = max(replies, key=lambda each: each[1].seconds)
    refused = all(400 <= reply.status < 500 for _, reply in replies)
    extra = (peak - before) / MEGABYTE
    return [
        Finding(
            f"{len(files)} bombs",
            "4xx in < 250 ms, < 64 MB extra",
            f"{'all 4xx' if refused else 'not all refused'}, slowest {longest.seconds * 1000:.0f} "
            f"ms ({slowest}), {extra:.0f} MB extra",
            refused and longest.seconds < STUCK_SECONDS and extra < 64,
            longest.seconds < 0.25,
        )
    ]


async def _send(
    client: Client, files: list[tuple[str, bytes]], at_once: int
) -> list[tuple[str, Reply]]:
    replies: list[tuple[str, Reply]] = []
    waiting = list(enumerate(files))

    async def work() -> None:
        while waiting:
            turn, (name, data) = waiting.pop()
            if turn % 3 == 0:
                body = {"instances": [{"image": {"b64": base64.b64encode(data).decode()}}]}
                sent = json.dumps(body).encode()
                reply = await client.ask("POST", PATH, sent, kind="application/json")
            else:
                accept = "image/png" if turn % 3 == 1 else "application/json"
                reply = await client.ask("POST", PATH, data, accept=accept)
            replies.append((name, reply))

    await asyncio.gather(*(work() for _ in range(at_once)))
    return replies


def _shown(statuses: Counter[int]) -> str:
    return ", ".join(f"{status}: {count:,}" for status, count in sorted(statuses.items()))
