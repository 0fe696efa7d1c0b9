"""Connections of which nothing comes, more than the service has descriptors."""

from __future__ import annotations

import asyncio
import resource
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress

from tests.chaos import probing
from tests.chaos.finding import Finding
from tests.chaos.stage import Client, NoReply, Stage, photo, staged
from tests.chaos.watch import PROBES, Watch
from tests.service.live import free_port
from tests.waiting import until_async

IDLE = 1300
DESCRIPTORS = 1024
"""Number of file descriptors that a process of the service may have."""
OURS = 4000
SECONDS, PAUSE_SECONDS = 10.0, 0.1
MOST_BYTES = 64_000_000


async def idling(scale: float) -> list[Finding]:
    """Idle connections at gRPC's port, at that of HTTP and at that of the probes, in turn."""
    grpc_port, probe_port = free_port(), free_port()
    findings = []
    with (
        _descriptors(DESCRIPTORS),
        staged("calm", grpc_port=str(grpc_port), probe_port=str(probe_port)) as stage,
        _descriptors(OURS),
    ):
        http = stage.port
        for where, port, others in (
            ("gRPC", grpc_port, (http, probe_port)),
            ("HTTP", http, (probe_port,)),
            ("probes", probe_port, (http,)),
        ):
            findings.append(await _idle(f"the port of {where}", port, others, stage, scale))
            await until_async(lambda: stage.vitals().descriptors < IDLE / 2, 60)
    return findings


async def _idle(
    where: str, port: int, others: tuple[int, ...], stage: Stage, scale: float
) -> Finding:
    """What becomes of probes at the other ports, and of explanations, while connections idle."""
    watch, opened = Watch(stage), 0
    statuses: Counter[str] = Counter()
    async with probing.probing(*others) as probes, AsyncExitStack() as stack:
        for _ in range(IDLE):
            with suppress(OSError, TimeoutError):
                _, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), 5)
                stack.callback(writer.close)
                opened += 1
        ending = time.monotonic() + max(SECONDS * min(scale, 1), 3)
        while time.monotonic() < ending:
            await asyncio.sleep(PAUSE_SECONDS)
            if stage.port in others:
                statuses[await _asked(stage.port, statuses.total())] += 1
        seen = await watch.seen(probes, *others)
    said = ", ".join(f"{answer}: {count}" for answer, count in sorted(statuses.items()))
    return Finding(
        f"{opened:,} idle connections to {where}, {DESCRIPTORS:,} descriptors a process",
        f"others are answered with 200; {PROBES} at other ports; no process ends",
        f"{said + '; ' if said else ''}{seen}",
        statuses.keys() <= {"200"} and seen.is_within(MOST_BYTES),
        seen.timely,
    )


async def _asked(port: int, turn: int) -> str:
    """The status of the answer to a caller with a connection of its own."""
    async with Client(port) as client:
        try:
            reply = await client.ask("POST", "/v1/models/calm:predict", photo(turn))
        except (NoReply, ConnectionRefusedError):
            return "no answer"
    return str(reply.status)


@contextmanager
def _descriptors(most: int) -> Iterator[None]:
    """Let this process, and those that it starts, have so many."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
