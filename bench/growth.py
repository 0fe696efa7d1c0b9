"""How cost grows: with the batch, classes, layers, pixels, the queue, and the models loaded.

    python -m bench.growth [--rounds 7] [--write NAME]

ResNet-50 with seeded weights at one map an image, unless the size says otherwise. For each of the
six the median seconds at each size, and the exponent e of seconds ~ size^e over the upper half of
the sizes (a straight line through the logarithms): 1 where cost is the work, less where sizes share
some of it, more would be a defect.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import skimage.data
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from bench.library import build, head_of
from bench.record import record
from cam import ClassTarget, Question, explain_batch
from service.backend.work import Explain
from service.core.allocator import keep_memory
from service.core.metrics import Metrics
from service.engine.engine import Engine
from service.loading.served_model import load
from service.models.catalog import ModelEntry
from service.models.preprocessing import ModelInput
from service.pipeline.images import decode
from service.pipeline.parameters import Parameters
from service.pipeline.rendering import Caption, draw

LAYER = "layer4"
Trial = tuple[str, dict[float, Callable[[], Any]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", help="a name for bench/results/NAME.json")
    arguments = parser.parse_args()
    keep_memory()  # as the service does
    found = {}
    table = Table("what grows", "seconds at each size", "exponent")
    for name, sizes in (batches(), classes(), layers(), pixels(), queue(), models()):
        seconds = measure(sizes, arguments.rounds)
        found[name] = {"seconds": seconds, "exponent": exponent(seconds)}
        shown = ", ".join(f"{size:g}: {value:.3f}" for size, value in seconds.items())
        table.add_row(name, shown, f"{found[name]['exponent']:.2f}")
    Console().print(table)
    if arguments.write:
        record(arguments.write, growth=found)


def measure(sizes: dict[float, Callable[[], Any]], rounds: int) -> dict[float, float]:
    """Median seconds at each size, sizes in turns; the first round warms up."""
    seconds: dict[float, list[float]] = {size: [] for size in sizes}
    for turn in range(rounds + 1):
        for size, work in sizes.items():
            started = perf_counter()
            work()
            if turn:
                seconds[size].append(perf_counter() - started)
    return {size: round(statistics.median(values), 5) for size, values in seconds.items()}


def exponent(seconds: dict[float, float]) -> float:
    upper = sorted(seconds)[len(seconds) // 2 - 1 :]
    slope, _ = np.polyfit(np.log(upper), np.log([seconds[size] for size in upper]), 1)
    return round(float(slope), 3)


def explaining(count: int, classes_: int = 1, names: tuple[str, ...] = (LAYER,)) -> Any:
    model = build("resnet50").requires_grad_(False)
    images = torch.randn(count, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    head = head_of(model, images[:1], LAYER)
    targets = tuple(ClassTarget(index) for index in range(classes_))
    questions = [Question(targets, "gradcam", names)] * count
    return lambda: [*explain_batch(model, images, questions, head=head)]


def batches() -> Trial:
    return "images in a batch", {count: explaining(count) for count in (1, 2, 4, 8, 16, 32)}


def classes() -> Trial:
    sizes = (1, 3, 10, 30, 100)
    return "classes of an image", {count: explaining(1, count) for count in sizes}


def layers() -> Trial:
    blocks = [f"layer{stage}.{block}" for stage in (4, 3, 2) for block in (0, 1, 2)]
    sizes = (1, 2, 4, 8)
    return "layers of an image", {n: explaining(1, 1, tuple(blocks[:n])) for n in sizes}


def pixels() -> Trial:
    """A JPEG in, an overlay as JPEG out, without the model."""
    entry = ModelEntry(name="resnet50", source="torchvision:resnet50", weights="none")
    served = load(entry)
    cat = Image.fromarray(skimage.data.chelsea())
    question = Question((ClassTarget(),), "gradcam", (LAYER,))
    image = torch.randn(1, 3, 224, 224)
    (answer,) = explain_batch(served.module, image, [question])
    (explanation,) = answer.explanations  # type: ignore[union-attr]

    def no_words() -> Caption:
        return Caption("", ())

    def work(data: bytes) -> None:
        photo = decode(data, max_pixels=60_000_000)
        seen = served.preprocessing.apply(photo, "squash")
        drawing = draw(photo, seen, explanation, 0, Parameters(), caption=no_words)
        drawing.encoded("image/jpeg")

    def of(megapixels: float) -> Callable[[], None]:
        width = round((megapixels * 1e6 * 3 / 2) ** 0.5)
        file = io.BytesIO()
        cat.resize((width, width * 2 // 3)).save(file, "JPEG", quality=90)
        return lambda: work(file.getvalue())

    return "megapixels of a photo", {size: of(size) for size in (0.05, 0.3, 1, 5, 15, 50)}


def tiny(name: str) -> ModelEntry:
    return ModelEntry(
        name=name, source="torchvision:squeezenet1_1", weights="none", input_size=64, mode="exact"
    )


def queue() -> Trial:
    """So many questions at once, each alone in its batch: what waiting for others costs."""
    served = load(tiny("tiny").model_copy(update={"max_batch": 1}))
    question = Question((ClassTarget(),), "gradcam", (served.default,))
    work = Explain(ModelInput.of(np.zeros((64, 64, 3), np.uint8)), (question,))

    async def ask(count: int) -> None:
        async with Engine(served, max_queue=4096, metrics=Metrics()) as engine:
            await asyncio.gather(*(engine.ask(work) for _ in range(count)))

    sizes = (8, 32, 128, 512)
    return "questions waiting", {n: lambda n=n: asyncio.run(ask(n)) for n in sizes}  # type: ignore[misc]


def models() -> Trial:
    """One question to one of so many loaded models: what the others cost it."""

    def of(count: int) -> Callable[[], None]:
        loaded = [load(tiny(f"tiny{turn}")) for turn in range(count)]
        question = Question((ClassTarget(),), "gradcam", (loaded[0].default,))
        work = Explain(ModelInput.of(np.zeros((64, 64, 3), np.uint8)), (question,))

        async def ask() -> None:
            engines = [Engine(model, max_queue=64, metrics=Metrics()) for model in loaded]
            for engine in engines:
                await engine.__aenter__()
            for _ in range(50):
                await engines[0].ask(work)
            for engine in engines:
                await engine.__aexit__(None, None, None)

        return lambda: asyncio.run(ask())

    return "models loaded", {count: of(count) for count in (1, 2, 4, 8)}


if __name__ == "__main__":
    main()
