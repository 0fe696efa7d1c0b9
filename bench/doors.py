"""How many cores feed an engine of 5,000 images a second: doors in front of one that only waits.

    python -m bench.doors [--doors 1 2] [--rate 5000] [--seconds 8] [--clients 32] [--rounds 3]
                          [--accept jpeg] [--write NAME]

The engine is simulated: it answers each image after the time that an accelerator of that rate
takes, with a map of 7 × 7, and computes nothing. All else is the service's: HTTP, limits, decoding,
preprocessing, the socket between the processes, drawing, encoding. With N doors, all processes, the
client's included, run on the first N cores. Photos are JPEG of 640 × 480; the model's input has
224 × 224 pixels.

For each number of doors: answers per second, and the CPU time of the doors and of the engine's side
of the socket for each answer. From those follow the cores that feed the engine. Needs `wrk`.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
from PIL import Image
from rich.console import Console
from rich.table import Table

from bench.wrk import ACCEPT, require_wrk, send, write_photos
from cam import ClassTarget, Explanation
from service.backend.interface import Backend, Listener, unknown_model
from service.backend.outcome import Outcome, Prediction, ServedAnswer
from service.backend.work import Explain
from service.models.catalog import ModelEntry
from service.models.info import LayerInfo, ModelInfo
from service.models.labels import Labels
from service.models.preprocessing import Preprocessing
from service.process.heartbeat import ENGINE, Heartbeat
from service.process.supervisor import shared_folder
from service.rpc.server import BackendServer
from service.settings import Settings

NAME = "simulated"
CLASSES = 1000


class Simulated:
    """A model on an accelerator that takes its time, and a backend that has only this model."""

    devices, copies, alive, runtime = "simulated", 1, True, "torch"
    draining = worn_out = busy = False
    ready = all_loaded = True
    names = (NAME,)

    def __init__(self, rate: float) -> None:
        self.fidelities: dict[str, Any] = {}
        self.images_a_second = rate
        self.loaded = asyncio.create_task(asyncio.sleep(0))
        self._seconds = 1 / rate
        self._free = 0.0
        self.model = ModelInfo(
            name=NAME,
            source="simulated",
            precision="bfloat16",
            preprocessing=Preprocessing(
                224, 224, 256, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), Image.Resampling.BICUBIC
            ),
            kind="classes",
            activation="softmax",
            activation_reason="the model has several outputs",
            labels=Labels.of([f"class {number}" for number in range(CLASSES)]),
            classes=CLASSES,
            layers=(LayerInfo("layer", "Conv2d", (512, 7, 7), None, (7, 7)),),
            default_layer="layer",
            levels=("layer",),
            method_layers={},
            unsuited={},
            max_batch=128,
            batching=None,
            unnamed=None,
            stochastic=None,
            no_default=None,
            fingerprint="simulated",
        )
        random = np.random.default_rng(0)
        self._map = random.random((7, 7)).astype(np.float32)
        self._logits = random.random(CLASSES).astype(np.float32)
        self._probabilities = self._logits / self._logits.sum()

    def is_fast(self, method: str) -> bool:
        return False

    async def ask(
        self, work: Explain, *, progress: Listener | None = None
    ) -> Outcome[ServedAnswer]:
        """Wait until the accelerator has done this image."""
        begun = time.monotonic()
        self._free = max(self._free, begun) + self._seconds
        await asyncio.sleep(self._free - begun)
        explanation = Explanation(ClassTarget(3), 5.0, 0.5, "gradcam", "layer", self._map)
        prediction = Prediction(logits=self._logits, probabilities=self._probabilities)
        ran = time.monotonic() - begun
        return Outcome(ServedAnswer(prediction, (explanation,)), 0.0, ran, 1)

    def replicas(self, name: str) -> Simulated:
        if name != NAME:
            raise unknown_model(name, [NAME])
        return self

    def model_ready(self, name: str) -> bool:
        return name == NAME

    def why_not_ready(self) -> str:
        return ""


def live_engine(rate: float, calls: socket.socket) -> None:
    """Run the simulated engine until killed."""
    from service.process.running import new_loop

    async def serve() -> None:
        async with BackendServer(cast(Backend, Simulated(rate)), calls):
            await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serve())


def live_door(
    settings: Settings, listening: socket.socket, folder: Path, number: int, sending: Connection
) -> None:
    """Run a door until killed."""
    from service.process.door import run

    entries = (ModelEntry(name=NAME, source="embedded:simulated"),)
    raise SystemExit(run(settings, entries, listening, Heartbeat(sending), folder, number))


@contextmanager
def processes(doors: int, rate: float) -> Iterator[tuple[int, psutil.Process, list[Any]]]:
    """Run a simulated engine and its doors; yield the port, the engine's process and the doors'."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as scope:
        folder = scope.enter_context(shared_folder(doors))
        calls = scope.enter_context(socket.socket(socket.AF_UNIX))
        calls.bind(str(folder / ENGINE))
        calls.listen()
        listening = scope.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(1024)
        port = int(listening.getsockname()[1])
        settings = Settings(
            log_level="error", jobs=folder / "jobs", max_queue=1000, deadline_seconds=300
        )
        started: list[Any] = []

        def start(target: Callable[..., None], *arguments: object) -> psutil.Process:
            process = context.Process(target=target, args=arguments)
            process.start()
            started.append(process)
            return psutil.Process(process.pid)

        try:
            engine = start(live_engine, rate, calls)
            pipes = [multiprocessing.Pipe(duplex=False) for _ in range(doors)]
            found = [
                start(live_door, settings, listening, folder, number, sending)
                for number, (_, sending) in enumerate(pipes)
            ]
            until_ready(port)
            yield port, engine, found
        finally:
            for each in started:
                each.kill()
                each.join()


def until_ready(port: int) -> None:
    """Wait until the doors know the model."""
    for _ in range(600):
        with suppress(OSError):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        time.sleep(0.1)
    raise SystemExit("the doors were never ready")


def main() -> None:
    # These import torch, which the processes that import this module as their own do not need.
    from bench.record import record
    from bench.service import photographs

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--doors", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--rate", type=float, default=5000)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--accept", choices=ACCEPT, default="jpeg")
    parser.add_argument("--write", help="a name for bench/results/NAME.json")
    arguments = parser.parse_args()
    require_wrk(parser)
    cores = sorted(os.sched_getaffinity(0))
    if max(arguments.doors) > len(cores):
        parser.error(f"there are {len(cores)} cores; --doors names at most so many")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_photos(Path(folder), photographs()[:64])
        for _ in range(arguments.rounds):
            for doors in arguments.doors:
                os.sched_setaffinity(0, cores[:doors])
                rows.append(measure(doors, arguments, Path(folder)))
                os.sched_setaffinity(0, cores)
    table = Table(
        "doors, cores", "answers/s", "p50, ms", "door CPU, ms", "engine side, ms", "cores"
    )
    for doors in arguments.doors:
        some = [row for row in rows if row["doors"] == doors]
        rate, p50, door, engine = (
            statistics.median(row[key] for row in some)
            for key in ("per_second", "p50_ms", "door_ms", "engine_ms")
        )
        needed = arguments.rate * door / 1000
        table.add_row(
            str(doors), f"{rate:.0f}", f"{p50:.1f}", f"{door:.2f}", f"{engine:.2f}", f"{needed:.0f}"
        )
    Console().print(table)
    print(f"cores: those that doors keep busy at {arguments.rate:g} images/s")
    if arguments.write:
        record(arguments.write, rows=rows)


def measure(doors: int, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure one number of doors."""
    with processes(doors, arguments.rate) as (port, engine, found):
        row = send(
            folder,
            arguments.accept,
            port=port,
            model=NAME,
            clients=arguments.clients,
            seconds=arguments.seconds,
            spent=lambda: [cpu_seconds([engine]), cpu_seconds(found)],
        )
    if row["failed"]:
        raise SystemExit(f"{row['failed']} requests failed")
    engine_ms, door_ms = row.pop("cpu_ms")
    return {"doors": doors, **row, "door_ms": door_ms, "engine_ms": engine_ms}


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """Return the CPU time that processes have taken."""
    return sum(sum(each.cpu_times()[:2]) for each in processes)


if __name__ == "__main__":
    main()
