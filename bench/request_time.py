"""Where one request's time goes.

    python -m bench.request_time [--mode exact] [--accept image/png] [--requests 60]
                            [--flame FILE]

ResNet-50 with seeded weights, a 640 × 480 JPEG in, an overlay out, one client. The service runs in
this process, a stop-watch around each of its steps; what no step accounts for is HTTP, threads and
the event loop. `--flame` runs it once more in a process of its own under py-spy, which samples all
its threads, and writes a flame graph.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import socket
import statistics
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import uvicorn
from rich.console import Console
from rich.table import Table

import cam.hooks.capture
import cam.methods.head
import cam.passes.onepass
import service.pipeline.images
import service.pipeline.rendering
from bench.service import ask_until_ready, photographs, serving
from service.app import create_app
from service.models.catalog import ModelEntry
from service.models.preprocessing import Preprocessing
from service.settings import Settings

PATH = "/v1/models/resnet50:explain?fit=squash"
STEPS: list[tuple[str, Any, str]] = [
    ("decode", service.pipeline.images.EncodedPhoto, "decode"),
    ("preprocess", Preprocessing, "apply"),
    ("backward", cam.hooks.capture.Capture, "backward"),
    ("backward", cam.methods.head.HeadSignals, "backward"),
    ("map", cam.passes.onepass, "maps_of"),
    ("resize", service.pipeline.rendering, "place"),
    ("colour", service.pipeline.rendering, "overlay"),
    ("encode", service.pipeline.rendering, "encode"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", default="exact", choices=["exact", "fast"])
    parser.add_argument("--accept", default="image/png")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--flame", type=Path)
    arguments = parser.parse_args()
    spent: dict[str, list[float]] = defaultdict(list)
    entry = ModelEntry(
        name="resnet50",
        source="torchvision:resnet50",
        weights="none",
        mode=arguments.mode,
        runtime="torch",
    )
    with here(entry) as (port, app), watched(spent):
        (engine,) = app.state.manager.replicas("resnet50").engines
        owner, name = (
            (engine._fast, "_run")
            if engine.is_fast("gradcam")
            else (engine.model.module, "forward")
        )
        with patch.object(owner, name, timed(getattr(owner, name), spent["forward"])):
            walls = ask(port, arguments.accept, arguments.requests, spent)
    total = statistics.median(walls)
    table = Table("step", "median, ms", "share")
    left = total
    for step in (
        "decode",
        "preprocess",
        "forward",
        "backward",
        "map",
        "resize",
        "colour",
        "encode",
    ):
        seconds = statistics.median(spent[step]) if spent[step] else 0.0
        left -= seconds
        table.add_row(step, f"{seconds * 1000:.2f}", f"{seconds / total:.1%}")
    table.add_row("HTTP, threads, loop", f"{left * 1000:.2f}", f"{left / total:.1%}")
    table.add_row("all", f"{total * 1000:.2f}", "", style="bold")
    Console().print(table)
    if arguments.flame:
        flame(arguments.flame, arguments.mode, arguments.accept)


@contextlib.contextmanager
def watched(spent: dict[str, list[float]]) -> Iterator[None]:
    with contextlib.ExitStack() as scope:
        for step, owner, name in STEPS:
            watch = timed(getattr(owner, name), spent[step])
            scope.enter_context(patch.object(owner, name, watch))
        yield


def timed(work: Callable[..., Any], into: list[float]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return work(*args, **kwargs)
        finally:
            into.append(time.perf_counter() - started)

    return run


def ask(port: int, accept: str, count: int, spent: dict[str, list[float]]) -> list[float]:
    """Seconds of each request; the first ten warm up."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    headers = {"Content-Type": "image/jpeg", "Accept": accept}
    walls: list[float] = []
    for turn, photo in zip(range(count + 10), photographs(), strict=False):
        if turn == 10:
            walls.clear()
            for each in spent.values():
                each.clear()
        started = time.perf_counter()
        connection.request("POST", PATH, photo, headers)
        response = connection.getresponse()
        response.read()
        walls.append(time.perf_counter() - started)
        assert response.status == 200
    return walls


@contextlib.contextmanager
def here(entry: ModelEntry) -> Iterator[tuple[int, Any]]:
    """The service on a port of its own, in a thread of this process."""
    app = create_app(Settings(cache_bytes=0), [entry])
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = int(listening.getsockname()[1])
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            ask_until_ready(port)
            yield port, app
        finally:
            server.should_exit = True
            thread.join()


def flame(file: Path, mode: str, accept: str) -> None:
    """Sample the service while it answers."""
    with serving(mode) as (port, process):
        file.parent.mkdir(parents=True, exist_ok=True)
        spy = ["py-spy", "record", "--pid", str(process.pid), "--output", str(file)]
        sampling = subprocess.Popen([*spy, "--duration", "15", "--rate", "200", "--threads"])  # noqa: S603
        until = time.monotonic() + 15
        while time.monotonic() < until:
            ask(port, accept, 10, {})
        sampling.wait()


if __name__ == "__main__":
    main()
