"""Ten times as many requests as can be answered."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from itertools import count

from tests.chaos.finding import Finding, share, slack
from tests.chaos.stage import Client, NoReply, photo, staged

RESNET = 'name = "resnet50"\nsource = "torchvision:resnet50"\nweights = "none"\nmode = "exact"'
PATH = "/v1/models/resnet50:explain?size=layer&fit=squash"
CLIENTS = 16
FACTOR = 10
PHOTOS = 400


async def overload(scale: float) -> list[Finding]:
    """Requests arrive at random, whatever becomes of the earlier ones."""
    seconds = max(60 * scale, 10)
    with staged(RESNET, cache_bytes="0", max_queue="64") as stage:
        async with Client(stage.port) as client:
            photos = [photo(seed, 64, 64) for seed in range(PHOTOS)]
            peak = await _peak(client, photos, max(15 * scale, 8))
            statuses, refusals, honest, silent = await _flood(
                client, photos, FACTOR * peak, seconds
            )
    allowed = {200, 429, 503, 504}
    good = statuses[200] / seconds
    refused = sum(statuses.values()) - statuses[200]
    return [
        Finding(
            f"{FACTOR}× overload for {seconds:.0f} s: {FACTOR * peak:.0f} requests/s",
            "only 2xx, 429, 503, 504; every refusal with Retry-After, p99 < 50 ms; "
            "goodput ≥ 80 % of peak",
            f"{', '.join(f'{status}: {n}' for status, n in sorted(statuses.items()))}; "
            f"{silent} without an answer, {refused - honest} refusals without Retry-After, p99 "
            f"{share(refusals, 0.99) * 1000:.0f} ms; {good:.1f}/s of {peak:.1f}/s, "
            f"{good / peak:.0%}",
            set(statuses) <= allowed
            and not silent
            and refused == honest
            and share(refusals, 0.99) < 0.05 * slack(scale)
            and good >= 0.8 / slack(scale) * peak,
        )
    ]


async def _peak(client: Client, photos: list[bytes], seconds: float) -> float:
    """Answers per second to clients who wait for theirs."""
    turns, answered = count(), 0
    await asyncio.gather(*(client.ask("POST", PATH, photos[turn]) for turn in range(CLIENTS)))
    begun = time.monotonic()

    async def work() -> None:
        nonlocal answered
        while time.monotonic() - begun < seconds:
            reply = await client.ask("POST", PATH, photos[next(turns) % PHOTOS])
            answered += reply.status == 200

    await asyncio.gather(*(work() for _ in range(CLIENTS)))
    return answered / (time.monotonic() - begun)


async def _flood(
    client: Client, photos: list[bytes], rate: float, seconds: float
) -> tuple[Counter[int], list[float], int, int]:
    """Statuses, seconds of each refusal, how many of these say when to come back, and how many
    requests had no answer at all."""
    rng = random.Random(0)
    statuses: Counter[int] = Counter()
    refusals: list[float] = []
    honest = silent = 0

    async def one(turn: int) -> None:
        nonlocal honest, silent
        try:
            reply = await client.ask("POST", PATH, photos[turn % PHOTOS])
        except NoReply:
            silent += 1
            return
        statuses[reply.status] += 1
        if reply.status != 200:
            honest += "retry-after" in reply.headers
            refusals.append(reply.seconds)

    begun = time.monotonic()
    due = begun
    tasks: list[asyncio.Task[None]] = []
    while due < begun + seconds:
        due += rng.expovariate(rate)
        if (wait := due - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(one(len(tasks))))
    await asyncio.gather(*tasks)
    return statuses, refusals, honest, silent
