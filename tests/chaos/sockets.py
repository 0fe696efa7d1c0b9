"""Clients who send a byte a second, and clients who leave."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from tests.chaos.finding import Finding, share
from tests.chaos.stage import Client, photo, staged

HONEST = 4
DRIPPERS = str(Path(__file__).with_name("drippers.py"))
PAUSE_SECONDS = 0.05


async def dripping(scale: float) -> list[Finding]:
    """Some drip in the head, some in the body, some say nothing; whoever is cut off comes back."""
    count, seconds = max(int(500 * scale), 50), max(60 * scale, 14)
    with staged("calm") as stage:
        await _honest(stage.port, 2)
        alone = await _honest(stage.port, max(10 * scale, 4))
        drippers = await asyncio.create_subprocess_exec(
            *(sys.executable, DRIPPERS, str(stage.port), str(count), str(seconds)),
            stdout=asyncio.subprocess.PIPE,
        )
        await asyncio.sleep(1)
        beside = await _honest(stage.port, seconds - 2)
        lives: list[float] = json.loads((await drippers.communicate())[0])
    factor = share(beside, 0.99) / share(alone, 0.99)
    return [
        Finding(
            f"{count} dripping sockets for {seconds:.0f} s",
            "all closed in ≤ 12 s; honest clients all answered, p99 < 2×",
            f"{len(lives)} closed, the last after {max(lives):.1f} s; {len(beside)} honest "
            f"requests all answered, p99 {share(beside, 0.99) * 1000:.0f} ms, {factor:.1f}× of "
            f"{share(alone, 0.99) * 1000:.0f} ms alone",
            len(lives) >= count and max(lives) <= 12,
            factor < 2,
        )
    ]


async def _honest(port: int, seconds: float) -> list[float]:
    """Seconds of each answer; a request that is not answered with 200 ends the attack."""
    took = []
    ending = time.monotonic() + seconds

    async def client(turn: int) -> None:
        async with Client(port) as one:
            seed = turn * 1_000_000
            while time.monotonic() < ending:
                seed += 1
                reply = await one.ask("POST", "/v1/models/calm:explain", photo(seed))
                assert reply.status == 200, reply
                took.append(reply.seconds)
                await asyncio.sleep(PAUSE_SECONDS)

    await asyncio.gather(*(client(turn) for turn in range(HONEST)))
    return took


async def leaving(scale: float) -> list[Finding]:
    """A batch takes a tenth of a second: those who have left in the queue would take many."""
    count = max(int(500 * scale), 100)
    with staged(SLOW, max_queue="1000") as stage:
        async with Client(stage.port) as client:
            await client.ask("POST", "/v1/models/slow:predict", photo(0))
            before = await _batches(client)
            writers = []
            for turn in range(count):
                body = photo(turn + 1)
                _, writer = await asyncio.open_connection("127.0.0.1", stage.port)
                writer.write(
                    b"POST /v1/models/slow:predict HTTP/1.1\r\nHost: localhost\r\n"
                    b"Content-Type: image/png\r\nContent-Length: %d\r\n\r\n" % len(body) + body
                )
                writers.append(writer)
            while await _waiting(client) < count / 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            for writer in writers:
                writer.transport.abort()
            left = await _batches(client)
            await asyncio.sleep(1)
            wasted = await _batches(client) - left
    return [
        Finding(
            f"{count} clients leaving while queued",
            "≤ 1 batch for nobody",
            f"{wasted:.0f} batches after they left ({left - before:.0f} before)",
            wasted <= 1,
        )
    ]


SLOW = (
    'name = "slow"\nsource = "factory:tests.zoo.factories:bulky"\nweights = "none"\n'
    "input_size = 8\nmax_batch = 1"
)


async def _batches(client: Client) -> float:
    return await metric(client, 'gradcam_batch_size_count{model="slow"}')


async def _waiting(client: Client) -> float:
    return await metric(client, 'gradcam_queue_depth{model="slow"}')


async def metric(client: Client, series: str) -> float:
    """Its value; 0 where there is no such series yet."""
    text = (await client.ask("GET", "/metrics")).body.decode()
    return next(
        (float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(series)),
        0.0,
    )
