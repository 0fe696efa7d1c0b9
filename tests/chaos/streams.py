"""Streams of inferences over gRPC whose callers never send, send without end, or never read."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any, Final

import grpc
from tritonclient.grpc import service_pb2

from service.features.open_inference.grpc_server import STREAMS
from service.features.open_inference.streaming import AT_ONCE
from tests.chaos import http2, messages, probing
from tests.chaos.answers import LATE_SECONDS, LOOK_SECONDS, MOST_AGE_SECONDS
from tests.chaos.finding import Finding, slack
from tests.chaos.matrix import MOST_WITHOUT_A_KEY
from tests.chaos.stage import Client, Stage, staged
from tests.chaos.watch import PROBES, Watch
from tests.service.live import free_port

SILENT: Final = 50
SENDING_SECONDS: Final = 20.0
UNREAD: Final = 4 * AT_ONCE
RECEIVE_SECONDS, DEADLINE_SECONDS = 2.0, 5.0
PATIENCE_SECONDS: Final = 120.0
STREAM: Final = f"{http2.SERVICE}/ModelStreamInfer"
MESSAGE: Final = messages.infer().right.body


async def streams(scale: float) -> list[Finding]:
    """Each kind in turn, with an honest caller beside it."""
    grpc_port, probe_port, findings = free_port(), free_port(), []
    with staged(
        "calm",
        grpc_port=str(grpc_port),
        probe_port=str(probe_port),
        receive_seconds=str(RECEIVE_SECONDS),
        deadline_seconds=str(DEADLINE_SECONDS),
    ) as stage:
        async with (
            probing.probing(stage.port, probe_port) as probes,
            grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel,
        ):
            honest = channel.unary_unary(f"/{http2.SERVICE}/ModelInfer")
            await honest(MESSAGE, timeout=PATIENCE_SECONDS)
            for name, allowed, asking in (
                (
                    f"{SILENT} streams of gRPC that never send",
                    f"{STREAMS} wait {RECEIVE_SECONDS:.0f} s at most, the others are refused",
                    _silent(grpc_port, honest, slack(scale)),
                ),
                (
                    "a stream of gRPC that sends without end",
                    "each request is answered rightly, until its connection ends",
                    _endless(channel, honest, max(SENDING_SECONDS * scale, 1.0)),
                ),
                (
                    f"a stream of gRPC with {UNREAD} requests whose answers are never read",
                    f"at most {AT_ONCE} are worked on"
                    + (", and it is cut off" if scale >= 1 else ""),
                    _unread(grpc_port, stage, honest, ends=scale >= 1),
                ),
            ):
                findings.append(await _judged(name, allowed, asking, stage, probes, probe_port))
    return findings


async def _judged(
    name: str,
    allowed: str,
    asking: Coroutine[Any, Any, tuple[str, bool]],
    stage: Stage,
    probes: probing.Probes,
    probe_port: int,
) -> Finding:
    watch = Watch(stage)
    said, kept = await asking
    seen = await watch.seen(probes, stage.port, probe_port)
    most = MOST_WITHOUT_A_KEY
    return Finding(
        name,
        f"{allowed}; an honest caller is answered; ≤ {most / 1e6:.0f} MB; {PROBES}",
        f"{said}; {seen}",
        kept and seen.is_within(most),
        seen.timely,
    )


async def _beside(honest: Any) -> str:
    """What is wrong with the answer to an honest caller; "" if nothing is."""
    try:
        await honest(MESSAGE, timeout=PATIENCE_SECONDS)
    except grpc.aio.AioRpcError as error:
        return f"; an honest caller got {error.code().name}"
    return ""


async def _silent(port: int, honest: Any, more: float) -> tuple[str, bool]:
    limit = RECEIVE_SECONDS + LATE_SECONDS * more
    async with http2.connected(port) as connection:
        for _ in range(SILENT):
            connection.begin("ModelStreamInfer", {})
        ended = asyncio.create_task(connection.until_ended())
        beside = await _beside(honest)
        with suppress(TimeoutError):
            await asyncio.wait_for(ended, limit)
        lives, left = sorted(connection.lives), connection.open
    # A refused one ends at once; those that may wait are the last.
    waited = sum(life >= RECEIVE_SECONDS / 2 for life in lives)
    said = (
        f"{waited} waited, the last for {lives[-1] if lives else limit:.1f} s; {left} did not end"
    )
    return said + beside, not left and not beside and 1 <= waited <= STREAMS


async def _endless(channel: Any, honest: Any, seconds: float) -> tuple[str, bool]:
    sent, answers = 0, Counter[str]()
    until = time.monotonic() + seconds

    async def requests() -> AsyncIterator[bytes]:
        nonlocal sent
        while time.monotonic() < until:
            sent += 1
            yield MESSAGE

    call = channel.stream_stream(f"/{STREAM}")(requests(), timeout=PATIENCE_SECONDS)
    beside = asyncio.create_task(_beside(honest))
    with suppress(grpc.aio.AioRpcError):
        async for answer in call:
            message = service_pb2.ModelStreamInferResponse.FromString(answer)
            answers["an error" if message.error_message else "right"] += 1
    code, wrong = (await call.code()).name, await beside
    said = ", ".join(f"{count:,} {name}" for name, count in answers.items())
    kept = not answers["an error"] and (code != "OK" or answers["right"] == sent) and not wrong
    return f"{sent:,} sent, {said}; {code}{wrong}", kept


async def _unread(port: int, stage: Stage, honest: Any, *, ends: bool) -> tuple[str, bool]:
    limit = MOST_AGE_SECONDS + DEADLINE_SECONDS + LATE_SECONDS
    route = re.compile(rf'^gradcam_requests_total\{{.*route="{re.escape(STREAM)}".*\}} (\S+)', re.M)

    async with Client(stage.port) as client, http2.connected(port, window=0) as connection:

        async def worked() -> float:
            reply = await client.ask("GET", "/metrics")
            return sum(map(float, route.findall(reply.body.decode())))

        before = await worked()
        stream = connection.begin("ModelStreamInfer", {})
        for _ in range(UNREAD):
            connection.send(stream, b"\0" + len(MESSAGE).to_bytes(4, "big") + MESSAGE)
        ended = asyncio.create_task(connection.until_ended())
        for _ in range(int(limit / LOOK_SECONDS)):
            if await worked() >= before + AT_ONCE:
                break
            await asyncio.sleep(LOOK_SECONDS)
        beside = await _beside(honest)
        if ends:
            with suppress(TimeoutError):
                await asyncio.wait_for(ended, limit)
        left = connection.open
        # The end of a stream counts as a request, too.
        count = await worked() - before - (not left)
        ended.cancel()
    life = f", ended after {connection.lives[-1]:.0f} s" if connection.lives else ""
    kept = count <= AT_ONCE and not beside and not (ends and left)
    return f"{count:.0f} worked on{life}{beside}", kept
