"""The service with more requests than it can answer: how many answers are still useful.

    python -m bench.overload [--models door engine] [--loads 0.8 1.2 2 5] [--seconds 8]
                             [--write NAME]
    python -m bench.overload --closed 2 3 4 8 16 64 256 [--models default large]
                             [--answers json png] [--pause 0.1] [--seconds 60]

Requests arrive at random (Poisson), each on a connection of its own, with photos of 640 × 480 of
which no two are alike, and `output=mask`. `door` is a model that costs nothing, so that HTTP,
decoding and drawing are the bottleneck; `engine` one whose pass takes 0.1 s of no processor's time.
The loads are shares of the capacity, the answers a second to `CLIENTS` callers who wait for theirs.
An answer is useful within `GRADCAM_TARGET_SECONDS`, or five times a lone caller's median if that is
longer, and half a second. The peak is the most useful answers a second of all loads of the run.
/healthz is probed every 50 ms at the service's port (`probe`), and, from another process, at the
port for probes (`own`). Recovery is measured by one caller who asks one request after the other
when the burst is over.

With `--closed`, so many callers ask again as soon as they are answered, and `--pause` seconds after
a refusal, or after as many as it asks for (`--pause -1`). `in progress` is how many requests were
admitted at a time, on average, and `fit` how many may be: the target times the largest rate of the
model's rows. `default` is the service's model without configuration, `large` a ResNet-50 with
random weights.

With `--keys`, two callers with a key each send five times the capacity and a quarter of it, and the
second one's useful answers are compared with what it sent.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import uvloop
from rich.console import Console
from rich.table import Table

from bench.open_loop import Flood, Shot, ask, flood, patience, percentile
from bench.record import record
from bench.service import SERVE, photographs, request, started
from service.features.keys.keys import new_key
from service.settings import Settings

PATH: Final = "/v1/models/m:explain?output=mask&fit=squash"
MODELS: Final = {
    "door": 'source = "timm:test_resnet"\nweights = "none"\ninput_size = 64',
    "default": 'source = "embedded:efficientnet-lite0"',
    "large": 'source = "torchvision:resnet50"\nweights = "none"',
    "engine": 'source = "factory:tests.zoo.factories:bulky"\nweights = "none"\ninput_size = 8\n'
    "max_batch = 1",
}
CLIENTS: Final = 8
LONE: Final = 30
"""Number of requests by which a lone caller's median is measured."""
ANSWERS: Final = {"json": "application/json", "png": "image/png"}
REST_SECONDS: Final = 1.0
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", choices=MODELS, default=["door", "engine"])
    parser.add_argument("--loads", nargs="*", type=float, default=[0.8, 1.2, 2, 5])
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--keys", action="store_true")
    parser.add_argument("--closed", nargs="*", type=int, default=[])
    parser.add_argument("--answers", nargs="*", choices=ANSWERS, default=["json"])
    parser.add_argument("--pause", type=float, default=0.1)
    parser.add_argument("--write", help="a name for bench/results/NAME.json")
    arguments = parser.parse_args()
    photos = photographs()
    rows: list[Row] = []
    for model in arguments.models:
        work = measure_closed if arguments.closed else measure
        with (
            serving(model, keyed=arguments.keys) as (port, probes, keys),
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            for answer in arguments.answers:
                callers = [requests(photos, key, answer) for key in keys]
                what = f"{model}, {answer}"
                rows += runner.run(work(what, port, probes, callers, arguments))
    (show_closed if arguments.closed else show)(rows)
    if arguments.write:
        record(arguments.write, rows=rows)


@contextmanager
def serving(model: str, *, keyed: bool) -> Iterator[tuple[int, int, list[str]]]:
    """Run the service with that model. Yield its port, its port for probes, and the keys of two
    callers, or one caller without a key."""
    with tempfile.TemporaryDirectory() as folder:
        catalog, file = Path(folder, "models.toml"), Path(folder, "keys.toml")
        catalog.write_text(f'[[models]]\nname = "m"\n{MODELS[model]}\n')
        keys, variables = [""], {"GRADCAM_RUNTIME": "torch"}
        if model in ("default", "large"):
            variables = {}
        if keyed:
            made = [new_key(name, ["explain"], None) for name in ("greedy", "modest")]
            keys = [key for key, _ in made]
            file.write_text("\n".join(entry for _, entry in made))
            variables["GRADCAM_KEYS"] = str(file)
        probes = 20_000 + os.getpid() % 10_000
        command = [*SERVE, "--models", str(catalog), "--probe-port", str(probes), "--port"]
        with started(command, **variables) as (port, _):
            yield port, probes, keys


def requests(photos: Sequence[bytes], key: str, answer: str) -> list[bytes]:
    plain = [request(PATH, photo, "image/jpeg", ANSWERS[answer]) for photo in photos]
    line = f"X-API-Key: {key}\r\nHost:".encode() if key else b"Host:"
    return [each.replace(b"Host:", line, 1) for each in plain]


async def measure(
    model: str,
    port: int,
    probes: int,
    callers: Sequence[list[bytes]],
    arguments: argparse.Namespace,
) -> list[Row]:
    """Measure one service under all loads, one after the other."""
    await apart(closed, port, callers[-1], 2, 2)  # warm
    took = [await lone(port, callers[-1][turn]) for turn in range(LONE)]
    alone = statistics.median(took)
    found = await apart(closed, port, callers[-1], CLIENTS, arguments.seconds / 2)
    capacity = found.useful(math.inf)
    patient = patience(alone)
    rows = []
    if len(callers) > 1:
        rates = [5 * capacity, capacity / 4]
        sent = list(zip(rates, callers, strict=True))
        found = await apart(flooded, port, sent, arguments.seconds)
        modest = Flood([each for each in found.shots if each.who], found.probes, arguments.seconds)
        rows.append(described(modest, patient) | {"what": f"{model}, modest key", "load": 0.25})
        rows[0]["peak"] = len(modest.shots) / arguments.seconds
        return rows
    for load in arguments.loads:
        sent = [(load * capacity, callers[0])]
        found, own = await asyncio.gather(
            apart(flooded, port, sent, arguments.seconds),
            flood(probes, [], arguments.seconds),
        )
        row = described(found, patient) | {"what": model, "load": load, "alone": alone}
        row["own_p99"] = percentile([each.seconds for each in own.probes], 0.99)
        row["recovered"] = await recovery(port, callers[0], found, patient)
        rows.append(row)
        await asyncio.sleep(REST_SECONDS)
    peak = max(row["useful"] for row in rows)
    return [row | {"peak": peak} for row in rows]


async def measure_closed(
    model: str,
    port: int,
    probes: int,
    callers: Sequence[list[bytes]],
    arguments: argparse.Namespace,
) -> list[Row]:
    """Measure one service with callers who wait for their answers."""
    await apart(closed, port, callers[0], 2, 2)  # warm
    rows = []
    for clients in arguments.closed:
        found, own = await asyncio.gather(
            apart(closed, port, callers[0], clients, arguments.seconds, arguments.pause),
            flood(probes, [], arguments.seconds),
        )
        row = described(found, math.inf) | {"what": model, "callers": clients}
        good = [shot.seconds for shot in found.shots if shot.status == 200]
        row["in progress"] = sum(good) / found.seconds
        row["own_p99"] = percentile([each.seconds for each in own.probes], 0.99)
        rows.append(row)
        await asyncio.sleep(REST_SECONDS)
    fit = Settings().target_seconds * max(row["useful"] for row in rows)
    return [row | {"fit": fit} for row in rows]


def described(found: Flood, patient: float) -> Row:
    good = [shot.seconds for shot in found.shots if shot.status == 200]
    refusals = [shot.seconds for shot in found.refusals]
    return {
        "offered": len(found.shots) / found.seconds,
        "useful": found.useful(patient),
        "p50": percentile(good, 0.5),
        "p99": percentile(good, 0.99),
        "statuses": dict(Counter(shot.status for shot in found.shots)),
        "without_retry_after": sum(not shot.retry_after for shot in found.refusals),
        "refusal_p99": percentile(refusals, 0.99),
        "probe_p99": percentile([each.seconds for each in found.probes], 0.99),
        "lateness": found.lateness,
    }


async def apart(work: Callable[..., Coroutine[Any, Any, Flood]], *given: Any) -> Flood:
    """Run a generator of load in a process of its own, so that the probes need not wait for it."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(generator(), _run, work, *given)


@cache
def generator() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def _run(work: Callable[..., Coroutine[Any, Any, Flood]], *given: Any) -> Flood:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work(*given))


async def flooded(port: int, sent: Sequence[tuple[float, list[bytes]]], seconds: float) -> Flood:
    return await flood(port, [(rate, itertools.cycle(each)) for rate, each in sent], seconds)


async def lone(port: int, request: bytes) -> float:
    shot = Shot(0)
    await ask(port, request, shot)
    return shot.seconds


async def closed(
    port: int, requests: list[bytes], clients: int, seconds: float, pause: float = 0.01
) -> Flood:
    """Send the requests of clients who each wait for their answer, and come again `pause` seconds
    after a refusal; below 0, after as many as the refusal asks for."""
    begun = time.perf_counter()
    turns, shots = itertools.cycle(requests), list[Shot]()

    async def client() -> None:
        while (due := time.perf_counter()) - begun < seconds:
            shot = Shot(due)
            await ask(port, next(turns), shot)
            shots.append(shot)
            if shot.status != 200:
                await asyncio.sleep(pause if pause >= 0 else shot.retry_after or 1)

    await asyncio.gather(*(client() for _ in range(clients)))
    return Flood(shots, [], time.perf_counter() - begun)


async def recovery(port: int, requests: list[bytes], found: Flood, patient: float) -> float:
    """Return the seconds from the last arrival of a flood until all of it is answered and a new
    caller gets a useful answer, without the time of that answer."""
    last = max(shot.sent + shot.seconds for shot in found.shots)
    drained = last - max(shot.sent for shot in found.shots)
    begun = time.perf_counter()
    for sent in itertools.cycle(requests):
        shot = Shot(0)
        await ask(port, sent, shot)
        if shot.status == 200 and shot.seconds <= patient:
            return drained + shot.sent - begun
    raise AssertionError("requests do not end")


def show_closed(rows: Sequence[Row]) -> None:
    columns = ("", "callers", "fit", "in progress", "answers/s", "refusals", "p50, ms", "p99")
    table = Table(*columns, "own p99", "statuses")
    for row in rows:
        table.add_row(
            row["what"],
            str(row["callers"]),
            f"{row['fit']:.0f}",
            f"{row['in progress']:.1f}",
            f"{row['useful']:.1f}",
            str(row["statuses"].get(429, 0)),
            *(f"{row[each] * 1000:.0f}" for each in ("p50", "p99", "own_p99")),
            ", ".join(f"{status}: {count}" for status, count in sorted(row["statuses"].items())),
        )
    Console(width=160).print(table)


def show(rows: Sequence[Row]) -> None:
    columns = ("", "load", "offered/s", "useful/s", "of the peak", "p50, ms", "p99")
    more = ("refusals' p99", "probe's p99", "own p99", "recovered, s", "late p99", "statuses")
    table = Table(*columns, *more)
    for row in rows:
        table.add_row(
            row["what"],
            f"{row['load']:g} ×",
            f"{row['offered']:.1f}",
            f"{row['useful']:.1f}",
            f"{row['useful'] / row['peak']:.2f}" if row["peak"] else "",
            *(f"{row[each] * 1000:.0f}" for each in ("p50", "p99", "refusal_p99", "probe_p99")),
            f"{row['own_p99'] * 1000:.0f}" if "own_p99" in row else "",
            f"{row['recovered']:.2f}" if "recovered" in row else "",
            f"{row['lateness'] * 1000:.0f}",
            ", ".join(f"{status}: {count}" for status, count in sorted(row["statuses"].items())),
        )
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
