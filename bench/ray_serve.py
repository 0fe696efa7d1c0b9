"""The service behind Ray Serve's proxy, one replica, beside the service by itself.

    unshare --net --pid --fork --mount-proc --kill-child bash -c \\
      'ip link set lo up; python -m bench.ray_serve [--rounds 5] [--write]'

Ray listens on every interface, so this wants a network of its own. The embedded model, a 640 × 480
JPEG in, no two alike in a turn and no memory of earlier answers; /healthz for what the way to the
app costs by itself. Both servers stay up, and in each round each has its turn at each load: 200
requests one after the other, and 400 by 32 clients, with an aiohttp client in this process, which
shares the cores with them. Medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import secrets
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.table import Table

from bench.service import SERVE, photographs, started

MODEL = "/v1/models/efficientnet-lite0"
PATHS = {"healthz": "/healthz", "predict": f"{MODEL}:predict", "explain": f"{MODEL}:explain"}
LOADS = {1: 200, 32: 400}
"""Clients, and how many requests they make."""
PORT = 8000
FILE = Path(__file__).parent / "results" / "ray_serve.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="to bench/results/ray_serve.json")
    arguments = parser.parse_args()
    photos = photographs()
    with state(), started([*SERVE, "--port"]) as (port, _), behind_serve():
        rows = asyncio.run(measure({"alone": port, "Ray Serve": PORT}, photos, arguments.rounds))
    table = Table("", "", "clients", "ms a request, p50", "p99", "requests/s", "failed")
    for row in rows:
        table.add_row(
            row["server"],
            row["what"],
            str(row["clients"]),
            f"{row['p50'] * 1000:.1f}",
            f"{row['p99'] * 1000:.1f}",
            f"{row['per_second']:.1f}",
            str(row["failed"]),
        )
    Console().print(table)
    if arguments.write:
        machine = {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            **{package: version(package) for package in ("torch", "ray", "uvicorn")},
        }
        found = {"machine": machine, "rounds": arguments.rounds, "rows": rows}
        FILE.write_text(json.dumps(found, indent=1) + "\n")


@contextmanager
def state() -> Iterator[None]:
    """A folder for what the servers keep, which is gone with them."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        yield


@contextmanager
def behind_serve() -> Iterator[None]:
    """The service behind Serve's proxy, at PORT."""
    os.environ |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # 15 by itself: the clients here would come first
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "service.ray.proxy:gate",
        # As bench.service's are started.
        "GRADCAM_LOG_LEVEL": "warning",
        "GRADCAM_DEADLINE_SECONDS": "300",
        "GRADCAM_CACHE_BYTES": "0",
    }
    import ray  # reads them
    from ray import serve

    from service.features.ray.serve import build

    ray.init(address="local", namespace="serve", include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": PORT})
        serve.run(build({"insecure": True}), name="gradcam", route_prefix="/")
        yield
    finally:
        serve.shutdown()
        ray.shutdown()


async def measure(ports: dict[str, int], photos: list[bytes], rounds: int) -> list[dict[str, Any]]:
    took: dict[tuple[str, str, int], list[dict[str, float]]] = {}
    bodies = itertools.cycle(photos)
    for turn in range(rounds + 1):  # the first warms both up
        for what, clients in itertools.product(PATHS, LOADS):
            for server in sorted(ports, reverse=bool(turn % 2)):
                found = await load(ports[server], what, clients, bodies)
                if turn:
                    took.setdefault((server, what, clients), []).append(found)
    return [
        {
            "server": server,
            "what": what,
            "clients": clients,
            **{key: statistics.median(each[key] for each in found) for key in found[0]},
            "failed": sum(each["failed"] for each in found),
        }
        for (server, what, clients), found in sorted(took.items(), key=lambda item: item[0][1:])
    ]


async def load(port: int, what: str, clients: int, bodies: Iterator[bytes]) -> dict[str, float]:
    """Requests of so many clients, each of which sends its next when its last is answered."""
    left = iter(range(LOADS[clients]))
    times: list[float] = []
    failed = 0
    url = f"http://127.0.0.1:{port}{PATHS[what]}"
    verb = "GET" if what == "healthz" else "POST"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=clients)) as session:

        async def client() -> None:
            nonlocal failed
            for _ in left:
                body = next(bodies) if verb == "POST" else None
                began = time.perf_counter()
                headers = {"Content-Type": "image/jpeg"} if body else {}
                async with session.request(verb, url, data=body, headers=headers) as answer:
                    await answer.read()
                    failed += answer.status != 200
                times.append(time.perf_counter() - began)

        begun = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        wall = time.perf_counter() - begun
    ordered = sorted(times)
    return {
        "p50": statistics.median(ordered),
        "p99": ordered[int(0.99 * len(ordered))],
        "per_second": len(ordered) / wall,
        "failed": failed,
    }


if __name__ == "__main__":
    main()
