"""What one request costs at the door: a model that costs nothing, 640 × 480 JPEG in.

    python -m bench.door [--seconds 10] [--clients 1 16] [--accept jpeg png mask]
                         [--model tiny | resnet50] [--doors 0 1 2] [--rounds 1] [--write NAME]

Needs `wrk` (Debian's package), so that the client takes little of the cores. The response cache is
off. For each kind of answer and number of clients: answers per second, the median latency, and the
CPU time of all the server's processes for each answer. With `--doors`, the service is measured once
for each number of doors, `--rounds` times in turns. `engine` is `Engine.ask` for the same
model in this process, with as many callers, its images preprocessed before the clock starts.
"""

from __future__ import annotations

from service.backend.work import Explain
from service.core.threads import spin_briefly

spin_briefly()  # as `gradcam serve` does, before torch is imported

import argparse
import asyncio
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from bench.load import closed
from bench.record import record
from bench.service import SERVE, photographs, started
from bench.wrk import ACCEPT, require_wrk, send, write_photos
from cam import ClassTarget, Question
from service.core.allocator import keep_memory
from service.core.metrics import Metrics
from service.engine.engine import Engine
from service.loading.served_model import load
from service.models.catalog import ModelEntry
from service.pipeline.images import decode
from service.runtimes.warming import fast_path

MODELS: dict[str, dict[str, Any]] = {
    "tiny": {"name": "tiny", "source": "timm:test_resnet", "weights": "none", "input_size": 64},
    "resnet50": {
        "name": "resnet50",
        "source": "torchvision:resnet50",
        "weights": "none",
        "mode": "fast",
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--clients", nargs="*", type=int, default=[1, 16])
    parser.add_argument("--accept", nargs="*", choices=ACCEPT, default=list(ACCEPT))
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument("--doors", nargs="*", type=int, default=[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--write", help="a name for bench/results/NAME.json")
    arguments = parser.parse_args()
    require_wrk(parser)
    keep_memory()  # as the service does
    entry = MODELS[arguments.model]
    rows: list[dict[str, Any]] = [
        asyncio.run(engine(entry, clients, arguments.seconds)) for clients in arguments.clients
    ]
    with tempfile.TemporaryDirectory() as folder:
        write_photos(Path(folder), photographs()[:64])
        for doors in arguments.doors * arguments.rounds:
            with serving(entry, doors) as (port, process):
                for kind in arguments.accept:
                    for clients in arguments.clients:
                        found = send(
                            Path(folder),
                            kind,
                            port=port,
                            model=arguments.model,
                            clients=clients,
                            seconds=arguments.seconds,
                            spent=lambda process=process: [cpu_seconds(process)],  # type: ignore[misc]
                        )
                        (cpu,) = found["cpu_ms"]
                        what = {"what": f"service, {kind}", "doors": doors, "clients": clients}
                        rows.append({**what, **found, "cpu_ms": cpu})
    table = Table(
        "", "doors", "clients", "answers/s", "p50, ms", "p99, ms", "server CPU, ms", "failed"
    )
    for row in rows:
        cpu = row["cpu_ms"]
        table.add_row(
            row["what"],
            str(row.get("doors", "")),
            str(row["clients"]),
            f"{row['per_second']:.0f}",
            f"{row['p50_ms']:.1f}",
            f"{row['p99_ms']:.1f}",
            "" if cpu is None else f"{cpu:.1f}",
            str(row["failed"]),
        )
    Console().print(table)
    if arguments.write:
        record(arguments.write, rows=rows)


async def engine(entry: dict[str, Any], clients: int, seconds: float) -> dict[str, Any]:
    """Measure the engine in this process."""
    with ThreadPoolExecutor(1) as loader:  # as the service does: the thread ends
        model = loader.submit(load, given := ModelEntry(**entry)).result()
    photo = decode(photographs()[0], max_pixels=10_000_000)
    seen = model.preprocessing.apply(photo, "squash")
    question = Question((ClassTarget(),), "gradcam", (model.default,))
    prepare = fast_path(given, model)
    async with Engine(model, max_queue=1000, metrics=Metrics(), fast_path=prepare) as running:
        await running.warm()

        async def send() -> None:
            await running.ask(Explain(seen, (question,)))

        row = await closed("engine", send, clients, seconds)
    return {
        "what": "engine",
        "clients": clients,
        "per_second": row["per_second"],
        "p50_ms": row["p50"] * 1000,
        "p99_ms": row["p99"] * 1000,
        "cpu_ms": None,
        "failed": 0,
    }


@contextmanager
def serving(entry: dict[str, Any], doors: int) -> Iterator[tuple[int, psutil.Process]]:
    """Run the service with that model and number of doors; yield its port and its first process."""
    with tempfile.TemporaryDirectory() as folder:
        lines = "\n".join(f"{key} = {value!r}" for key, value in entry.items())
        models = Path(folder, "models.toml")
        models.write_text(f"[[models]]\n{lines}\n")
        command = [*SERVE, "--models", str(models)]
        variables = {"GRADCAM_DOORS": str(doors)}
        with started([*command, "--port"], **variables) as (port, process):
            yield port, psutil.Process(process.pid)


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU time that a process and its children have taken."""
    tree = [process, *process.children(recursive=True)]
    return sum(sum(each.cpu_times()[:2]) for each in tree)


if __name__ == "__main__":
    main()
