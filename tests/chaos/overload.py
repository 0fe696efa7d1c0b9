"""More requests than can be answered: the bottleneck is the door, or the model."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import Counter
from io import BytesIO
from itertools import count, cycle

import numpy as np
from PIL import Image

from bench.open_loop import Flood, Shot, ask, flood, patience, percentile
from tests.chaos.finding import STUCK_SECONDS, Finding
from tests.chaos.stage import staged
from tests.service.live import free_port

DOOR = 'name = "m"\nsource = "timm:test_resnet"\nweights = "none"\ninput_size = 64'
MODELS = {
    "the door": DOOR,
    "the door by /v2": DOOR,
    "the door by /invocations": DOOR,
    "the engine": 'name = "m"\nsource = "factory:tests.zoo.factories:bulky"\nweights = "none"\n'
    "input_size = 8\nmax_batch = 1",
}
CLIENTS = 4
LONE = 20
LOADS = (0.8, 1.2, 2, 5)
PHOTOS = 256
REST_SECONDS = 1.0


async def overload(scale: float) -> list[Finding]:
    """Requests arrive at random on connections of their own, whatever becomes of earlier ones."""
    findings = []
    for what, model in MODELS.items():
        probes = free_port()
        given = {"platform": "sagemaker", "host": "127.0.0.1"} if "/invocations" in what else {}
        given |= {"cache_bytes": "0", "delay_tolerance": "", "probe_port": str(probes)}
        with staged(model, wait=True, **given) as stage:
            findings += await _attacked(what, stage.port, probes, scale)
    return findings


async def _attacked(what: str, port: int, probes: int, scale: float) -> list[Finding]:
    photos = max(int(PHOTOS * scale), 32)
    make = next((form for name, form in FORMS.items() if what.endswith(name)), _request)
    requests = cycle([make(_photo(turn)) for turn in range(photos)])
    took = [await _lone(port, requests) for _ in range(LONE)]
    alone = percentile(took, 0.5)
    patient = patience(alone)
    capacity = await _capacity(port, requests, max(10 * scale, 2))
    found: dict[float, tuple[Flood, Flood, float]] = {}
    for load in LOADS if scale >= 1 else LOADS[-1:]:
        seconds = max(20 * scale, 3)
        burst, own = await asyncio.gather(
            flood(port, [(load * capacity, requests)], seconds), flood(probes, [], seconds)
        )
        ended = max(shot.sent for shot in burst.shots)
        drained = max(shot.sent + shot.seconds for shot in burst.shots) - ended
        found[load] = burst, own, drained
        await asyncio.sleep(REST_SECONDS)
    peak = max(burst.useful(patient) for burst, _, _ in found.values())
    return [
        _judged(f"{load:g}× what {what} can do", *found[load], peak, patient)
        for load in found
        if load > 1
    ]


def _judged(
    what: str, burst: Flood, own: Flood, drained: float, peak: float, patient: float
) -> Finding:
    statuses = Counter(shot.status for shot in burst.shots)
    refusal = percentile([shot.seconds for shot in burst.refusals], 0.99)
    without = sum(not shot.retry_after for shot in burst.refusals)
    probe = percentile([shot.seconds for shot in burst.probes], 0.99)
    beside = percentile([shot.seconds for shot in own.probes], 0.99)
    useful, possible = burst.useful(patient), min(peak, len(burst.shots) / burst.seconds)
    well = all(shot.status == 200 for shot in [*burst.probes, *own.probes])
    return Finding(
        f"{what}: {len(burst.shots) / burst.seconds:.0f} requests/s for {burst.seconds:.0f} s",
        f"only 200, 429, 503, 504; useful answers (in {patient * 1000:.0f} ms) ≥ 90 % of the "
        "peak, or of what came; refusals with Retry-After, p99 ≤ 50 ms; probes p99 ≤ 100 ms; over "
        "within that time",
        f"{', '.join(f'{status}: {n}' for status, n in sorted(statuses.items()))}; "
        f"{useful:.1f}/s of {possible:.1f}/s, {useful / max(possible, 0.1):.0%}; {without} "
        f"refusals without Retry-After, p99 {refusal * 1000:.0f} ms; probes p99 "
        f"{probe * 1000:.0f} ms, at their own port {beside * 1000:.0f} ms; over after "
        f"{drained:.2f} s; the generator's lateness p99 {burst.lateness * 1000:.0f} ms",
        {200} <= statuses.keys() <= {200, 429, 503, 504}
        and not without
        and well
        and max(probe, beside) <= STUCK_SECONDS,
        useful >= 0.9 * possible
        and refusal <= 0.05
        and max(probe, beside) <= 0.1
        and drained <= patient,
    )


def _photo(turn: int) -> bytes:
    """Waves as a JPEG of 640 × 480 pixels; no two turns alike."""
    y, x = np.mgrid[:480, :640]
    waves = 127 + 60 * np.sin(x / 9 + turn) + 60 * np.cos(y / (7 + turn % 5))
    file = BytesIO()
    Image.fromarray(np.stack([waves] * 3, 2).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def _request(body: bytes) -> bytes:
    return _post("/v1/models/m:explain?output=mask&fit=squash", body, "image/jpeg")


def _inference(body: bytes) -> bytes:
    data = [base64.b64encode(body).decode()]
    sent = {
        "inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": data}],
        "outputs": [{"name": "overlay", "parameters": {"binary_data": True}}],
    }
    return _post("/v2/models/m/infer", json.dumps(sent).encode(), "application/json")


def _invocation(body: bytes) -> bytes:
    return _post("/invocations?output=mask&fit=squash", body, "application/x-image")


def _post(path: str, body: bytes, kind: str) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


FORMS = {"/v2": _inference, "/invocations": _invocation}


async def _lone(port: int, requests: cycle[bytes]) -> float:
    shot = Shot(0)
    await ask(port, next(requests), shot)
    assert shot.status == 200, shot
    return shot.seconds


async def _capacity(port: int, requests: cycle[bytes], seconds: float) -> float:
    """Answers a second to clients who wait for theirs."""
    begun, answered = time.monotonic(), count()

    async def work() -> None:
        while time.monotonic() - begun < seconds:
            shot = Shot(0)
            await ask(port, next(requests), shot)
            if shot.status == 200:
                next(answered)
            else:
                await asyncio.sleep(0.01)

    await asyncio.gather(*(work() for _ in range(CLIENTS)))
    return next(answered) / (time.monotonic() - begun)
