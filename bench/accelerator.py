"""A stand-in for an accelerator: the service's engine in front of a device that only takes time.

    python -m bench.accelerator [--first 2] [--image 0.2] [--callers 64 256] [--seconds 4]
                                [--socket]

`Network` is a module that goes through the real engine and the real `cam.passes`. Its passes return
at once, like those of an accelerator, and the device is done with a batch of n images a + b n
milliseconds after it was given, or after it was done with the batch before. Whoever waits for the
device waits for that moment, outside the interpreter's lock. The numbers are real ones, of a small
network that reads 49 pixels, so that they cost the processor next to nothing.

For each number of callers, each of which asks again once it has its answer: answers per second, the
mean number of images in a batch, the share of the time in which the device was busy (a bare loop
over batches of the same sizes has 1), and the CPU time of the engine's process for each answer.
With `--socket`, the callers are another process that has prepared pixels, as a door has them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import socket
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from cam import ClassTarget, Question
from cam.outputs import transfer
from service.backend import interface
from service.backend.work import Explain
from service.core.allocator import keep_memory, settle
from service.core.metrics import Metrics
from service.engine.engine import Engine
from service.engine.replicas import Replicas
from service.features.drift.watch import DriftWatch
from service.loading.served_model import ServedModel, load
from service.loading.transforms import Normalisation
from service.models.catalog import ModelEntry
from service.models.preprocessing import ModelInput
from service.process.running import new_loop
from service.rpc.client import RemoteBackend
from service.rpc.server import BackendServer

NAME = "stand-in"
LAYER = "features"
READ = slice(16, None, 32)
"""The rows and the columns that are read on the device: the centres of 7 × 7 cells."""


class Network(nn.Module):
    """A convolution of one position and a pooled linear head, as `factory:` makes it."""

    kind = "classes"

    def __init__(self, channels: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, channels, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        # Positions that cover the input evenly, as those of usual networks do.
        read = images if images.shape[-1] == 7 else nn.functional.avg_pool2d(images, 32)
        logits: Tensor = self.fc(self.pool(self.features(read).relu()).flatten(1))
        return logits


def network() -> Network:
    """Return a network with seeded weights."""
    torch.manual_seed(0)
    return Network().eval()


@dataclass
class Device:
    """A device that takes `first` + `image` × n seconds for a batch of n images."""

    first: float
    image: float
    busy: float = 0.0
    """Seconds for which it has worked."""
    sizes: list[int] = field(default_factory=list)
    """The number of images of each batch."""
    _done: float = 0.0

    def give(self, images: int) -> None:
        """Queue a batch; return at once."""
        took = self.first + self.image * images
        self._done = max(self._done, time.perf_counter()) + took
        self.busy += took
        self.sizes.append(images)

    def end(self) -> transfer.Event:
        """Return the end of what it has to do by now."""
        return _Moment(self._done)

    @contextmanager
    def attached(self, model: ServedModel) -> Iterator[ServedModel]:
        """Compute the model's passes within the block; yield the model. Its pixels are normalised
        there, so the processor only takes those that the network reads."""

        def given(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            self.give(len(args[0]))

        def normalise(pixels: NDArray[np.uint8]) -> Tensor:
            return model.normalise(np.ascontiguousarray(pixels[:, READ, READ]))

        here = cast(Normalisation, normalise)

        def end_of_queue(tensors: Sequence[Tensor]) -> transfer.Event:
            return self.end()

        before = transfer.end_of_queue
        handle = model.module.register_forward_pre_hook(given)
        setattr(transfer, "end_of_queue", end_of_queue)  # noqa: B010 - mypy allows no assignment
        try:
            yield replace(model, normalise=here)
        finally:
            setattr(transfer, "end_of_queue", before)  # noqa: B010
            handle.remove()


@dataclass(frozen=True)
class _Moment:
    at: float

    def synchronize(self) -> None:
        time.sleep(max(self.at - time.perf_counter(), 0.0))


@dataclass(frozen=True)
class Figures:
    """What `callers` callers at a time saw.

    Attributes:
        answers: answers per second.
        batch: mean number of images in a batch.
        busy: share of the time in which the device worked.
        cpu: CPU seconds of the process for an answer.
    """

    callers: int
    answers: float
    batch: float
    busy: float
    cpu: float


def loaded(most: int = 128) -> ServedModel:
    """Load the network as the service does."""
    entry = ModelEntry(
        name=NAME, source="factory:bench.accelerator:network", max_batch=most, mode="exact"
    )
    return load(entry)


@dataclass
class Backend:
    """The engine's side of the socket, with the stand-in alone."""

    models: Replicas
    ready: bool = True
    all_loaded: bool = True
    names: tuple[str, ...] = (NAME,)

    def replicas(self, name: str) -> Replicas:
        return self.models

    def model_ready(self, name: str) -> bool:
        return True

    def why_not_ready(self) -> str:
        return ""


Ask = Callable[[Explain], Awaitable[object]]


async def asking(ask: Ask, callers: int, seconds: float) -> int:
    """Let callers ask, each about its own photo, for some time; return the number of answers."""
    pixels = np.random.default_rng(0).integers(0, 256, (callers, 224, 224, 3), np.uint8)
    question = Question((ClassTarget(),), "gradcam", (LAYER,))
    until, answered = time.perf_counter() + seconds, 0

    async def again(seen: ModelInput) -> None:
        nonlocal answered
        while time.perf_counter() < until:
            await ask(Explain(seen, (question,), watched=True))
            answered += 1

    await asyncio.gather(*(again(ModelInput.of(each, fit="squash")) for each in pixels))
    return answered


def produce(path: str, callers: int, seconds: Sequence[float], told: Connection) -> None:
    """Ask through the socket, in a process of its own: first to warm up, then to be measured."""

    async def run() -> None:
        async with RemoteBackend(path, Metrics()) as backend:
            for each in seconds:
                told.send(await asking(backend.replicas(NAME).ask, callers, each))
                told.recv()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


@contextmanager
def producers(path: str, callers: int, seconds: Sequence[float]) -> Iterator[Connection]:
    """Run `produce` within the block."""
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=produce, args=(path, callers, seconds, there), daemon=True)
    process.start()
    there.close()  # so that the end of the process is the end of what it tells
    try:
        yield here
    finally:
        process.kill()
        process.join()


async def measure(
    model: ServedModel,
    callers: int,
    seconds: float,
    *,
    first: float,
    image: float,
    by_socket: bool = False,
) -> Figures:
    """Let callers ask an engine whose device takes its time.

    Args:
        first: seconds that any batch takes.
        image: seconds more for each image.
        by_socket: whether the callers are another process.
    """
    device, metrics = Device(first, image), Metrics()
    phases = (0.5, seconds)
    with ExitStack() as scope:
        attached = scope.enter_context(device.attached(model))
        async with AsyncExitStack() as inner:
            engine = Engine(attached, max_queue=1024, metrics=metrics)
            await inner.enter_async_context(engine)
            await engine.warm()
            watch = DriftWatch(attached, metrics)
            replicas = Replicas([engine], cache_bytes=0, metrics=metrics, watches=[watch])
            inner.push_async_callback(replicas.close)
            if by_socket:
                folder = scope.enter_context(tempfile.TemporaryDirectory())
                listening = scope.enter_context(socket.socket(socket.AF_UNIX))
                listening.bind(path := f"{folder}/engine.sock")
                listening.listen()
                backend = cast(interface.Backend, Backend(replicas))
                await inner.enter_async_context(BackendServer(backend, listening))
                told = scope.enter_context(producers(path, callers, phases))
            scope.callback(gc.set_threshold, *gc.get_threshold())
            scope.callback(gc.unfreeze)
            settle(seldom=True)  # as the service does once its models are loaded
            for each in phases:
                used = -time.process_time()
                begun = time.perf_counter()
                device.busy = 0.0
                device.sizes.clear()
                if by_socket:
                    answered = await asyncio.to_thread(told.recv)
                    told.send(None)
                else:
                    answered = await asking(replicas.ask, callers, each)
                took = time.perf_counter() - begun
                used += time.process_time()
    sizes = statistics.fmean(device.sizes)
    return Figures(callers, answered / took, sizes, device.busy / took, used / answered)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--first", type=float, default=2.0, help="milliseconds for any batch")
    parser.add_argument("--image", type=float, default=0.2, help="more milliseconds for each image")
    parser.add_argument("--callers", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--socket", action="store_true", help="ask from another process")
    args = parser.parse_args()
    keep_memory()
    torch.set_num_threads(1)
    model = loaded()
    title = f"A batch of n images takes {args.first:g} + {args.image:g} n ms"
    table = Table(title=title)
    for column in ("callers", "answers/s", "images a batch", "device busy", "CPU an answer, µs"):
        table.add_column(column, justify="right")
    for callers in args.callers:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            found = runner.run(
                measure(
                    model,
                    callers,
                    args.seconds,
                    first=args.first / 1000,
                    image=args.image / 1000,
                    by_socket=args.socket,
                )
            )
        table.add_row(
            str(callers),
            f"{found.answers:.0f}",
            f"{found.batch:.1f}",
            f"{found.busy:.2f}",
            f"{found.cpu * 1e6:.0f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
