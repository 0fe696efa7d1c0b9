"""The service under load, beside its own engine and two servers as people write them.

    python -m bench.service [--clients 1 32] [--seconds 12] [--modes exact fast]
                            [--accept image/png] [--open 0.8] [--peers] [--write NAME]

ResNet-50 with seeded weights, a 640 × 480 JPEG in, an overlay out, no two photos alike and no
memory of earlier answers. Closed loop: each client sends its next request when the last is
answered. Open loop (`--open 0.5 0.8 1.2`): requests arrive at
random (Poisson), at that share of the rate that 32 clients reached; what is answered within five
times a lone client's median counts as in time. Every server runs in a process
of its own, alone; the clients share its cores. `engine` is `Engine.ask` in this process, its
images preprocessed before the clock starts.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import http.client
import io
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import skimage.data
from PIL import Image
from rich.console import Console
from rich.table import Table

from bench.load import Connections, Send, closed, poisson
from bench.record import record
from cam import ClassTarget, Question
from service.backend.work import Explain
from service.core.allocator import keep_memory
from service.core.metrics import Metrics
from service.engine.engine import Engine
from service.loading.served_model import load
from service.models.catalog import ModelEntry
from service.runtimes.warming import fast_path

PHOTOS = 256
HERE = Path(__file__).parent
PATIENCE = 5
"""An answer is in time if it takes at most this many times a lone client's median."""
SERVE = [sys.executable, "-m", "service", "serve"]


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
    keep_memory()  # as the service does
    photos = photographs()
    rows: list[dict[str, Any]] = []
    for mode in arguments.modes:
        for clients in arguments.clients:
            rows.append(asyncio.run(engine(mode, clients, arguments.seconds)))
        with serving(mode) as (port, _):
            path = "/v1/models/resnet50:explain?fit=squash"
            rows += loads(f"service, {mode}", port, path, photos, arguments, image=True)
    if arguments.peers:
        for script in ("plain_fastapi", "litserve_gradcam"):
            with started([sys.executable, str(HERE / "peers" / f"{script}.py")]) as (port, _):
                image = script == "plain_fastapi"
                path = "/explain" if image else "/predict"
                rows += loads(script, port, path, photos, arguments, image=image)
    table = Table("", "load", "answers/s", "in time/s", "p50, ms", "p95", "p99", "failed")
    for row in rows:
        table.add_row(
            row["what"],
            row["load"],
            f"{row['per_second']:.2f}",
            f"{row['in_time']:.2f}" if "in_time" in row else "",
            *(f"{row[each] * 1000:.0f}" for each in ("p50", "p95", "p99")),
            str(row["failed"]),
        )
    Console().print(table)
    if arguments.write:
        record(arguments.write, rows=rows)


def photographs() -> list[bytes]:
    """A cat, turned about: no two alike, so that nothing is answered from memory."""
    cat = np.asarray(Image.fromarray(skimage.data.chelsea()).resize((640, 480)))
    found = []
    for turn in range(PHOTOS):
        file = io.BytesIO()
        Image.fromarray(np.roll(cat, 5 * turn, axis=1)).save(file, "JPEG", quality=90)
        found.append(file.getvalue())
    return found


async def engine(mode: str, clients: int, seconds: float) -> dict[str, Any]:
    """Our engine called in this process, without HTTP, decoding or drawing."""
    entry = ModelEntry(name="resnet50", source="torchvision:resnet50", weights="none", mode=mode)
    model = load(entry)
    seen = model.preprocessing.apply(Image.open(io.BytesIO(photographs()[0])), "squash")
    question = Question((ClassTarget(),), "gradcam", (model.default,))
    prepare = fast_path(entry, model)
    async with Engine(model, max_queue=1000, metrics=Metrics(), fast_path=prepare) as running:
        await running.warm()

        async def send() -> None:
            await running.ask(Explain(seen, (question,)))

        return await closed(f"engine, {mode}", send, clients, seconds)


def loads(
    what: str,
    port: int,
    path: str,
    photos: list[bytes],
    arguments: argparse.Namespace,
    *,
    image: bool,
) -> list[dict[str, Any]]:
    kind = "image/jpeg" if image else "application/json"
    accept = arguments.accept if image else "*/*"
    requests = itertools.cycle([request(path, photo, kind, accept) for photo in photos])

    async def run() -> list[dict[str, Any]]:
        async def load(running: Callable[[Send], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
            async with Connections(port) as connections:  # idle ones are closed by servers
                return await running(lambda: connections.send(next(requests)))

        await load(lambda send: closed(what, send, 2, 3))  # warm
        found = []
        for clients in arguments.clients:
            found.append(
                await load(lambda send, n=clients: closed(what, send, n, arguments.seconds))  # type: ignore[misc]
            )
        capacity = max(row["per_second"] for row in found)
        patience = PATIENCE * min(row["p50"] for row in found)
        for share in arguments.open:
            found.append(
                await load(
                    lambda send, s=share: poisson(  # type: ignore[misc]
                        what, send, s * capacity, s, arguments.seconds, patience
                    )
                )
            )
        return found

    return asyncio.run(run())


def request(path: str, photo: bytes, kind: str, accept: str) -> bytes:
    body = photo
    if kind == "application/json":
        body = json.dumps({"image": base64.b64encode(photo).decode()}).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n"
        f"Accept: {accept}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


Server = tuple[int, subprocess.Popen[bytes]]


@contextmanager
def serving(mode: str) -> Iterator[Server]:
    """Our service with a ResNet-50 in that mode: its port and process."""
    with tempfile.TemporaryDirectory() as folder:
        catalog = Path(folder, "models.toml")
        catalog.write_text(
            '[[models]]\nname = "resnet50"\nsource = "torchvision:resnet50"\nweights = "none"\n'
            f'mode = "{mode}"\n'
        )
        with started([*SERVE, "--models", str(catalog), "--port"]) as server:
            yield server


@contextmanager
def started(command: list[str], **variables: str) -> Iterator[Server]:
    """A server on a free port, which is the command's last word, ready to answer."""
    with started_at(free_port(), command, **variables) as server:
        yield server


@contextmanager
def started_at(port: int, command: list[str], **variables: str) -> Iterator[Server]:
    """A server on a port, which is the command's last word, ready to answer."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "GRADCAM_LOG_LEVEL": "warning"}
    environment |= {"GRADCAM_DEADLINE_SECONDS": "300", "GRADCAM_CACHE_BYTES": "0", **variables}
    process = subprocess.Popen(  # noqa: S603
        [*command, str(port)], env=environment, stdout=subprocess.DEVNULL
    )
    try:
        ask_until_ready(port, process)
        yield port, process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def ask_until_ready(
    port: int, process: subprocess.Popen[bytes] | None = None, below: str = ""
) -> None:
    """Wait for a server, whose paths are below another one; a process, if it is known, that ends
    meanwhile ends this one."""
    for _ in range(3000):
        if process and process.poll() is not None:
            break
        for path in ("/readyz", "/health"):
            with contextlib.suppress(OSError, http.client.HTTPException):
                asked = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
                with contextlib.closing(asked) as connection:
                    connection.request("GET", below + path)
                    if connection.getresponse().status == 200:
                        return
        time.sleep(0.1)
    raise SystemExit("a server did not start")


if __name__ == "__main__":
    main()
