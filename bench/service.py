"""The service under load, beside its own engine and two servers as people write them.

    python -m bench.service [--clients 1 32] [--seconds 12] [--modes exact fast]
                            [--accept image/png] [--open 0.8] [--peers] [--write NAME]

ResNet-50 with seeded weights, a 640 × 480 JPEG in, an overlay out. Closed loop: each client sends
its next request when the last is answered. Open loop (`--open 0.5 0.8 1.2`): requests arrive at
random (Poisson), at that share of the rate that 32 clients reached. Every server runs in a process
of its own, alone; the clients share its cores. `engine` is `Engine.answer` in this process, its
images preprocessed before the clock starts.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import skimage.data
from PIL import Image
from rich.console import Console
from rich.table import Table

from bench.library import RESULTS, machine
from cam import ClassTarget, Question
from service.catalog import ModelEntry
from service.engine import Engine
from service.metrics import Metrics
from service.registry import load

HERE = Path(__file__).parent
Send = Callable[[], Awaitable[None]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", nargs="*", type=int, default=[1, 32])
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--modes", nargs="*", default=["exact"], choices=["exact", "fast"])
    parser.add_argument("--accept", default="image/png")
    parser.add_argument("--open", nargs="*", type=float, default=[])
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--write", help="a name for bench/results/NAME.json")
    arguments = parser.parse_args()
    photo = photograph()
    rows: list[dict[str, Any]] = []
    for mode in arguments.modes:
        entry = {"name": "resnet50", "source": "torchvision:resnet50", "weights": "none"}
        for clients in arguments.clients:
            rows.append(asyncio.run(engine(mode, clients, arguments.seconds)))
        with serving(mode, entry) as port:
            path = "/v1/models/resnet50:explain?fit=squash"
            rows += loads(f"service, {mode}", port, path, photo, arguments, image=True)
    if arguments.peers:
        for script in ("plain_fastapi", "litserve_gradcam"):
            with started([sys.executable, str(HERE / "peers" / f"{script}.py")]) as port:
                image = script == "plain_fastapi"
                path = "/explain" if image else "/predict"
                rows += loads(script, port, path, photo, arguments, image=image)
    table = Table("", "load", "answers/s", "p50, ms", "p95", "p99", "failed")
    for row in rows:
        table.add_row(
            row["what"],
            row["load"],
            f"{row['per_second']:.2f}",
            *(f"{row[each] * 1000:.0f}" for each in ("p50", "p95", "p99")),
            str(row["failed"]),
        )
    Console().print(table)
    if arguments.write:
        file = RESULTS / f"{arguments.write}.json"
        file.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


def photograph() -> bytes:
    file = io.BytesIO()
    Image.fromarray(skimage.data.chelsea()).resize((640, 480)).save(file, "JPEG", quality=90)
    return file.getvalue()


async def engine(mode: str, clients: int, seconds: float) -> dict[str, Any]:
    """Our engine called in this process, without HTTP, decoding or drawing."""
    entry = ModelEntry(name="resnet50", source="torchvision:resnet50", weights="none", mode=mode)
    model = load(entry)
    seen = model.preprocessing.apply(Image.open(io.BytesIO(photograph())), "squash")
    question = Question((ClassTarget(),), "gradcam", (model.default_layer,))
    async with Engine(model, max_queue=1000, metrics=Metrics()) as running:
        await running.warm()

        async def send() -> None:
            await running.answer(seen.tensor, question)

        return await closed(f"engine, {mode}", send, clients, seconds)


def loads(
    what: str, port: int, path: str, photo: bytes, arguments: argparse.Namespace, *, image: bool
) -> list[dict[str, Any]]:
    body = photo if image else json.dumps({"image": base64.b64encode(photo).decode()}).encode()
    kind = "image/jpeg" if image else "application/json"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n"
        f"Accept: {arguments.accept if image else '*/*'}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    request = head + body

    async def run() -> list[dict[str, Any]]:
        found = []
        async with Connections(port) as connections:

            async def send() -> None:
                await connections.send(request)

            await closed(what, send, 2, 3)  # warm
            for clients in arguments.clients:
                found.append(await closed(what, send, clients, arguments.seconds))
            for share in arguments.open:
                rate = share * max(row["per_second"] for row in found)
                found.append(await poisson(what, send, rate, share, arguments.seconds))
        return found

    return asyncio.run(run())


class Connections:
    """Kept-alive HTTP/1.1 connections to one port, as many as are needed at once."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def __aenter__(self) -> Connections:
        return self

    async def __aexit__(self, *_: object) -> None:
        for _, writer in self._free:
            writer.close()

    async def send(self, request: bytes) -> None:
        """
        Raises:
            RuntimeError: if the answer is not a 200.
        """
        if self._free:
            reader, writer = self._free.pop()
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(request)
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        await reader.readexactly(length)
        self._free.append((reader, writer))
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise RuntimeError(head.partition(b"\r\n")[0].decode())


class Tally:
    """What answers took, and how many there were not."""

    def __init__(self) -> None:
        self.took: list[float] = []
        self.failed = 0

    async def time(self, send: Send) -> None:
        started = time.perf_counter()
        try:
            await send()
        except RuntimeError:
            self.failed += 1
        else:
            self.took.append(time.perf_counter() - started)


async def closed(what: str, send: Send, clients: int, seconds: float) -> dict[str, Any]:
    """Each client sends its next request when the last is answered."""
    tally = Tally()
    begun = time.perf_counter()

    async def client() -> None:
        while time.perf_counter() - begun < seconds:
            await tally.time(send)

    await asyncio.gather(*(client() for _ in range(clients)))
    wall = time.perf_counter() - begun
    return row(what, f"{clients} clients", tally.took, tally.failed, wall)


async def poisson(
    what: str, send: Send, rate: float, share: float, seconds: float
) -> dict[str, Any]:
    """Requests arrive at random, whatever has been answered."""
    rng = random.Random(0)  # noqa: S311
    tally = Tally()
    begun = time.perf_counter()
    tasks = []
    while time.perf_counter() - begun < seconds:
        await asyncio.sleep(rng.expovariate(rate))
        tasks.append(asyncio.create_task(tally.time(send)))
    await asyncio.gather(*tasks)
    wall = time.perf_counter() - begun
    return row(what, f"{share:.0%} of capacity", tally.took, tally.failed, wall)


def row(what: str, load_: str, took: list[float], failed: int, wall: float) -> dict[str, Any]:
    ordered = sorted(took) or [float("nan")]

    def at(share: float) -> float:
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]

    return {
        "what": what,
        "load": load_,
        "per_second": len(took) / wall,
        "p50": statistics.median(ordered),
        "p95": at(0.95),
        "p99": at(0.99),
        "answers": len(took),
        "failed": failed,
    }


@contextmanager
def serving(mode: str, entry: dict[str, str]) -> Iterator[int]:
    """Our service with that model in that mode."""
    with tempfile.TemporaryDirectory() as folder:
        catalog = Path(folder, "models.toml")
        lines = [f'{key} = "{value}"' for key, value in {**entry, "mode": mode}.items()]
        catalog.write_text("[[models]]\n" + "\n".join(lines) + "\n")
        command = [sys.executable, "-m", "service", "serve", "--models", str(catalog), "--port"]
        with started(command) as port:
            yield port


@contextmanager
def started(command: list[str]) -> Iterator[int]:
    """A server on a port of its own, ready to answer."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = int(one.getsockname()[1])
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "GRADCAM_LOG_LEVEL": "warning"}
    environment["GRADCAM_DEADLINE_SECONDS"] = "300"
    process = subprocess.Popen(  # noqa: S603
        [*command, str(port)], env=environment, stdout=subprocess.DEVNULL
    )
    try:
        asyncio.run(ready(process, port))
        yield port
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


async def ready(process: subprocess.Popen[bytes], port: int) -> None:
    for _ in range(6000):
        if process.poll() is not None:
            raise SystemExit("a server did not start")
        for path in ("/readyz", "/health"):
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(
                    f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
                )
                said = await reader.readline()
                writer.close()
            except OSError:
                continue
            if b" 200 " in said:
                return
        await asyncio.sleep(0.1)
    raise SystemExit("a server was never ready")


if __name__ == "__main__":
    main()
