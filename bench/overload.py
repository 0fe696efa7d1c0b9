"""The service with more requests than it can answer: how many answers are still useful.

    python -m bench.overload [--models door engine] [--loads 0.8 1.2 2 5] [--seconds 8]
                             [--write NAME]

Requests arrive at random (Poisson), each on a connection of its own, with photos of 640 × 480 of
which no two are alike, and `output=mask`. `door` is a model that costs nothing, so that HTTP,
decoding and drawing are the bottleneck; `engine` one whose pass takes 0.1 s of no processor's time.
The loads are shares of the capacity, the answers a second to `CLIENTS` callers who wait for theirs.
An answer is useful within five times a lone caller's median, and within 2 s. The peak is the most
useful answers a second of all loads of the run. /healthz is probed every 50 ms at the service's
port (`probe`) and at the port for probes (`own`). Recovery is measured by one caller who asks one
request after the other when the burst is over.

With `--keys`, two callers with a key each send five times the capacity and a quarter of it, and the
second one's useful answers are compared with what it sent.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import uvloop
from rich.console import Console
from rich.table import Table

from bench.open_loop import Flood, Shot, ask, flood, percentile
from bench.record import record
from bench.service import SERVE, photographs, request, started
from service.limits.keys import new_key

PATH: Final = "/v1/models/m:explain?output=mask&fit=squash"
MODELS: Final = {
    "door": 'source = "timm:test_resnet"\nweights = "none"\ninput_size = 64',
    "engine": 'source = "factory:tests.chaos.models:slow"\nweights = "none"\ninput_size = 8\n'
    "max_batch = 1",
}
CLIENTS: Final = 8
LONE: Final = 30
"""Number of requests by which a lone caller's median is measured."""
PATIENCE: Final = 5
MOST_SECONDS: Final = 2.0
REST_SECONDS: Final = 1.0
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--loads", nargs="*", type=float, default=[0.8, 1.2, 2, 5])
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--keys", action="store_true")
    parser.add_argument("--write", help="a name for bench/results/NAME.json")
    arguments = parser.parse_args()
    photos = photographs()
    rows: list[Row] = []
    for model in arguments.models:
        with serving(model, keyed=arguments.keys) as (port, probes, keys):
            callers = [itertools.cycle(requests(photos, key)) for key in keys]
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                rows += runner.run(measure(model, port, probes, callers, arguments))
    show(rows)
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
        if keyed:
            made = [new_key(name, ["explain"], None) for name in ("greedy", "modest")]
            keys = [key for key, _ in made]
            file.write_text("\n".join(entry for _, entry in made))
            variables["GRADCAM_KEYS"] = str(file)
        probes = 20_000 + os.getpid() % 10_000
        command = [*SERVE, "--models", str(catalog), "--probe-port", str(probes), "--port"]
        with started(command, **variables) as (port, _):
            yield port, probes, keys


def requests(photos: Sequence[bytes], key: str) -> list[bytes]:
    plain = [request(PATH, photo, "image/jpeg", "application/json") for photo in photos]
    line = f"X-API-Key: {key}\r\nHost:".encode() if key else b"Host:"
    return [each.replace(b"Host:", line, 1) for each in plain]


async def measure(
    model: str,
    port: int,
    probes: int,
    callers: Sequence[Iterator[bytes]],
    arguments: argparse.Namespace,
) -> list[Row]:
    """Measure one service under all loads, one after the other."""
    await closed(port, callers[-1], 2, 2)  # warm
    took = [await lone(port, callers[-1]) for _ in range(LONE)]
    alone = statistics.median(took)
    capacity = await closed(port, callers[-1], CLIENTS, arguments.seconds / 2)
    patience = min(PATIENCE * alone, MOST_SECONDS)
    rows = []
    if len(callers) > 1:
        rates = [5 * capacity, capacity / 4]
        sent = list(zip(rates, callers, strict=True))
        found = await flood(port, sent, arguments.seconds)
        modest = Flood([each for each in found.shots if each.who], found.probes, arguments.seconds)
        rows.append(described(modest, patience) | {"what": f"{model}, modest key", "load": 0.25})
        rows[0]["peak"] = len(modest.shots) / arguments.seconds
        return rows
    for load in arguments.loads:
        sent = [(load * capacity, callers[0])]
        found, own = await asyncio.gather(
            flood(port, sent, arguments.seconds),
            flood(probes, [], arguments.seconds),
        )
        row = described(found, patience) | {"what": model, "load": load, "alone": alone}
        row["own_p99"] = percentile([each.seconds for each in own.probes], 0.99)
        row["recovered"] = await recovery(port, callers[0], found, patience)
        rows.append(row)
        await asyncio.sleep(REST_SECONDS)
    peak = max(row["useful"] for row in rows)
    return [row | {"peak": peak} for row in rows]


def described(found: Flood, patience: float) -> Row:
    good = [shot.seconds for shot in found.shots if shot.status == 200]
    refusals = [shot.seconds for shot in found.refusals]
    return {
        "offered": len(found.shots) / found.seconds,
        "useful": found.useful(patience),
        "p50": percentile(good, 0.5),
        "p99": percentile(good, 0.99),
        "statuses": dict(Counter(shot.status for shot in found.shots)),
        "without_retry_after": sum(not shot.retry_after for shot in found.refusals),
        "refusal_p99": percentile(refusals, 0.99),
        "probe_p99": percentile([each.seconds for each in found.probes], 0.99),
        "lateness": found.lateness,
    }


async def lone(port: int, requests: Iterator[bytes]) -> float:
    shot = Shot(0)
    await ask(port, next(requests), shot)
    return shot.seconds


async def closed(port: int, requests: Iterator[bytes], clients: int, seconds: float) -> float:
    """Return the answers a second to clients who each wait for theirs, and come again at once after
    a refusal."""
    begun = time.perf_counter()
    answered = 0

    async def client() -> None:
        nonlocal answered
        while time.perf_counter() - begun < seconds:
            shot = Shot(0)
            await ask(port, next(requests), shot)
            answered += shot.status == 200
            if shot.status != 200:
                await asyncio.sleep(0.01)

    await asyncio.gather(*(client() for _ in range(clients)))
    return answered / (time.perf_counter() - begun)


async def recovery(port: int, requests: Iterator[bytes], found: Flood, patience: float) -> float:
    """Return the seconds from the last arrival of a flood until all of it is answered and a new
    caller gets a useful answer, without the time of that answer."""
    last = max(shot.sent + shot.seconds for shot in found.shots)
    drained = last - max(shot.sent for shot in found.shots)
    begun = time.perf_counter()
    while True:
        shot = Shot(0)
        await ask(port, next(requests), shot)
        if shot.status == 200 and shot.seconds <= patience:
            return drained + shot.sent - begun


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
