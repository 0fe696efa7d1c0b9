"""Callers who wait for an explanation, alone and beside a job.

    python -m bench.jobs [--shares 0.3 0.6] [--seconds 30] [--turns 5] [--write NAME]

The embedded model, a 640 × 480 JPEG in, an overlay out, no two photos alike and no memory of
earlier answers. Requests arrive at random (Poisson) at a share of the rate that eight clients
reached in a closed loop. Slices without and with a job take turns, in both orders, and each is
compared with its neighbour: what the machine does otherwise changes more slowly than that. The
job's own speed is measured alone, too, before and after.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import io
import itertools
import json
import os
import platform
import statistics
import tempfile
import zipfile
from time import perf_counter, sleep
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bench.load import Connections, closed, poisson
from bench.record import RESULTS
from bench.service import SERVE, photographs, request, started

EXPLAIN = "/v1/models/efficientnet-lite0:explain"
ITEMS = 1200
CLIENTS = 8
WARM = 5
"""Items of a job that are done before the clock starts."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shares", nargs="*", type=float, default=[0.3, 0.6])
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--write", help="a name for bench/results/NAME.json")
    arguments = parser.parse_args()
    photos = photographs()
    asked = itertools.cycle([request(EXPLAIN, each, "image/jpeg", "image/png") for each in photos])
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GRADCAM_JOBS"] = folder
        with started([*SERVE, "--port"]) as (port, _):
            service = Service(port, packed(photos))

            def load(share: float, rate: float) -> dict[str, Any]:
                async def run() -> dict[str, Any]:
                    async with Connections(port) as connections:
                        send = lambda: connections.send(next(asked))  # noqa: E731
                        if not share:
                            return await closed("capacity", send, CLIENTS, arguments.seconds / 2)
                        return await poisson("explain", send, rate, share, arguments.seconds)

                return asyncio.run(run())

            load(0, 0)  # warm
            capacity = load(0, 0)["per_second"]
            speeds = [service.speed(arguments.seconds / 2)]
            rows = []
            for turn in range(arguments.turns):
                for share in arguments.shares:
                    pair: dict[str, Any] = {"share": share, "turn": turn}
                    for beside in (False, True) if turn % 2 else (True, False):
                        if beside:
                            service.begin()
                            before = service.done()
                        pair["beside" if beside else "alone"] = load(share, share * capacity)
                        if beside:
                            took = arguments.seconds
                            pair["job_per_second"] = (service.done() - before) / took
                            service.end()
                    rows.append(pair)
                    print(json.dumps(pair), flush=True)
            speeds.append(service.speed(arguments.seconds / 2))
    summary = [summed(share, rows) for share in arguments.shares]
    show(capacity, speeds, summary)
    if arguments.write:
        found = {
            "machine": {
                "processor": platform.processor() or platform.machine(),
                "cores": os.cpu_count(),
                "load": os.getloadavg(),  # what else it did shows in every number
                "torch": torch.__version__,
            },
            "capacity_per_second": capacity,
            "job_alone_per_second": speeds,
            "summary": summary,
            "rows": rows,
        }
        (RESULTS / f"{arguments.write}.json").write_text(json.dumps(found, indent=1) + "\n")


class Service:
    """The jobs of a service."""

    def __init__(self, port: int, body: bytes) -> None:
        self._port = port
        self._body = body
        self._job = ""

    def begin(self) -> None:
        """Return when a job runs."""
        kind = {"Content-Type": "application/zip"}
        self._job = f"/v1/jobs/{self._ask('POST', '/v1/jobs', self._body, kind)['id']}"
        while self.done() < WARM:
            sleep(0.1)

    def done(self) -> int:
        return int(self._ask("GET", self._job)["counts"]["done"])

    def end(self) -> None:
        self._ask("DELETE", f"{self._job}?purge=true")
        sleep(1)

    def speed(self, seconds: float) -> float:
        """Images per second of a job that has the service to itself."""
        self.begin()
        before, since = self.done(), perf_counter()
        sleep(seconds)
        speed = (self.done() - before) / (perf_counter() - since)
        self.end()
        return speed

    def _ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        found = response.read()
        connection.close()
        if response.status >= 300:
            raise RuntimeError(f"{response.status} {found[:200]!r}")
        return json.loads(found) if found else None


def packed(photos: list[bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(ITEMS):
            archive.writestr(f"{number}.jpg", photos[number % len(photos)])
    return file.getvalue()


def summed(share: float, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians, and the median of the ratios of neighbours."""
    here = [row for row in rows if row["share"] == share]
    found: dict[str, Any] = {"share": share}
    for part in ("p50", "p99"):
        for what in ("alone", "beside"):
            found[f"{part}_{what}"] = statistics.median(row[what][part] for row in here)
        ratios = [row["beside"][part] / row["alone"][part] for row in here]
        found[f"{part}_ratio"], found[f"{part}_ratios"] = statistics.median(ratios), ratios
    found["failed"] = sum(row[what]["failed"] for row in here for what in ("alone", "beside"))
    found["job_per_second"] = statistics.median(row["job_per_second"] for row in here)
    return found


def show(capacity: float, speeds: list[float], summary: list[dict[str, Any]]) -> None:
    table = Table("of capacity", "p50, ms", "beside a job", "×", "p99, ms", "beside", "×", "job/s")
    for row in summary:
        cells = [
            text
            for part in ("p50", "p99")
            for text in (
                f"{row[f'{part}_alone'] * 1000:.0f}",
                f"{row[f'{part}_beside'] * 1000:.0f}",
                f"{row[f'{part}_ratio']:.2f}",
            )
        ]
        table.add_row(f"{row['share']:.0%}", *cells, f"{row['job_per_second']:.1f}")
    console = Console()
    console.print(table)
    alone = " and ".join(f"{speed:.1f}" for speed in speeds)
    console.print(f"explanations: {capacity:.1f}/s at most; a job alone: {alone} images/s")


if __name__ == "__main__":
    main()
