"""One caller's trouble does not reach another caller."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

import httpx2
import numpy as np

from tests.chaos.finding import STUCK_SECONDS, Finding
from tests.chaos.sockets import metric
from tests.chaos.stage import Client, photo, plain, staged
from tests.zoo.hostile import SICK

MANY = 32
THREADS = 8
TOLERANCE = 1e-5
HANG_SECONDS = 3
METHODS = ("gradcam", "gradcam++", "layercam", "hirescam", "xgradcam", "eigencam", "occlusion")


async def neighbours(scale: float) -> list[Finding]:
    """What others get beside an image that fails is what they get alone."""
    sick = plain(SICK)
    found = []
    with staged("hungry", "fragile", "unsound", cache_bytes="0") as stage:
        async with Client(stage.port) as client:
            for model, bad, attack in (
                ("hungry", None, f"{MANY} images, memory for 2 at a time"),
                ("fragile", sick, f"1 in {MANY} fails the whole batch"),
                ("unsound", sick, f"1 in {MANY} with gradients that are not numbers"),
            ):
                images = [photo(seed) for seed in range(MANY)]
                if bad:
                    images[MANY // 2] = bad
                together = await _explain(client, model, images)
                failed = [turn for turn, each in enumerate(together) if "error" in each]
                differ = 0.0
                for turn in range(0, MANY, max(int(1 / max(scale, 0.1)), 1)):
                    if turn in failed:
                        continue
                    (alone,) = await _explain(client, model, [images[turn]])
                    differ = max(differ, float(np.abs(_map(alone) - _map(together[turn])).max()))
                expected = [MANY // 2] if bad else []
                found.append(
                    Finding(
                        attack,
                        "the others' results as alone",
                        f"{len(failed)} failed; largest difference of a map {differ:.1g} of 1",
                        failed == expected and differ < TOLERANCE,
                    )
                )
    return found


async def hanging(scale: float) -> list[Finding]:
    """A forward pass never ends. Its model's worker is given up after some seconds."""
    with staged("stuck", "calm", hang_seconds=str(HANG_SECONDS), deadline_seconds="20") as stage:
        async with Client(stage.port) as client:
            begun = time.monotonic()
            hang = asyncio.create_task(_timed(client, "stuck", plain(SICK)))
            await asyncio.sleep(0.5)
            waiting = asyncio.create_task(_timed(client, "stuck", photo(1)))
            other, _ = await _timed(client, "calm", photo(2))
            unready = ready = 0.0
            while not ready and time.monotonic() - begun < 30:
                status = (await client.ask("GET", "/readyz")).status
                now = time.monotonic() - begun
                if status == 503 and not unready:
                    unready = now
                if status == 200 and unready:
                    ready = now
                await asyncio.sleep(0.02)
            (hung, _), (waited, _) = await hang, await waiting
            after, _ = await _timed(client, "stuck", photo(3))
            restarts = await metric(client, 'gradcam_worker_restarts_total{model="stuck"}')
    late = unready - HANG_SECONDS
    return [
        Finding(
            "a forward pass that never ends",
            "another model answers; /readyz 503 within 1 s of its discovery; those who wait get "
            "503; a new worker",
            f"another model: {other}; unready {late:.1f} s after the limit, ready again "
            f"{ready - unready:.1f} s later; the hung one {hung}, who waited {waited}, the next "
            f"one {after}; {restarts:.0f} restart",
            (other, hung, waited, after, restarts) == (200, 503, 503, 200, 1)
            and 0 <= late < STUCK_SECONDS
            and ready > 0,
            late < 1,
        )
    ]


async def concurrent(scale: float) -> list[Finding]:
    """Threads ask mixed questions of one model, each answered once before, alone."""
    each = int(1000 * scale)
    with staged("calm", cache_bytes="0") as stage:
        url = f"http://127.0.0.1:{stage.port}/v1/models/calm:explain"
        rng = random.Random(0)
        questions = [
            (
                photo(seed),
                {
                    "method": rng.choice(METHODS),
                    "target": str(rng.randrange(3)),
                    "size": "layer",
                },
            )
            for seed in range(60)
        ]

        def ask(http: httpx2.Client, turn: int) -> Any:
            body, query = questions[turn]
            headers = {"Content-Type": "image/png", "Accept": "application/x-npy"}
            reply = http.post(url, params=query, content=body, headers=headers)
            assert reply.status_code == 200, reply.text
            return np.load(BytesIO(reply.content))

        with httpx2.Client(timeout=60) as http:
            serial = [ask(http, turn) for turn in range(len(questions))]

        def many(seed: int) -> int:
            order = random.Random(seed)
            differ = 0
            with httpx2.Client(timeout=60) as http:
                for _ in range(each):
                    turn = order.randrange(len(questions))
                    differ += not np.allclose(ask(http, turn), serial[turn], atol=TOLERANCE)
            return differ

        def run() -> int:
            with ThreadPoolExecutor(THREADS) as threads:
                return sum(threads.map(many, range(THREADS)))

        differ = await asyncio.to_thread(run)
    return [
        Finding(
            f"{THREADS} threads × {each} mixed explanations",
            f"0 differ from serial by more than {TOLERANCE:g} of 1",
            f"{differ} differ",
            differ == 0,
        )
    ]


async def _explain(client: Client, model: str, images: list[bytes]) -> list[Any]:
    body = {
        "instances": [{"image": {"b64": base64.b64encode(each).decode()}} for each in images],
        "parameters": {"output": "values", "size": "layer"},
    }
    path = f"/v1/models/{model}:explain"
    reply = await client.ask("POST", path, json.dumps(body).encode(), kind="application/json")
    assert reply.status == 200, reply
    explanations: list[Any] = reply.json()["explanations"]
    return explanations


def _map(explanation: Any) -> Any:
    return np.frombuffer(base64.b64decode(explanation["heatmap"]["data"]), "<f4")


async def _timed(client: Client, model: str, image: bytes) -> tuple[int, float]:
    reply = await client.ask("POST", f"/v1/models/{model}:explain", image)
    return reply.status, reply.seconds
