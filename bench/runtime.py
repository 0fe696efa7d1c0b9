"""PyTorch as it is, PyTorch compiled, and OpenVINO, side by side in one process.

    python -m bench.runtime [--models efficientnet-lite0 resnet50 …] [--rounds 9] [--dtype float32]
                            [--compile] [--write]

For each model and batch size, milliseconds an image: a forward pass and an explanation (Grad-CAM
at the default layer) by PyTorch, OpenVINO's own forward pass of the same model, and an explanation
by OpenVINO; the contenders take turns. `engine` is an image alone through `Engine.ask`, with
OpenVINO. `difference` is the largest difference of OpenVINO's map from PyTorch's, as a share of the
map's maximum.
"""

from __future__ import annotations

from service.backend.work import Explain
from service.core.threads import WAITING, spin_briefly
from service.models.preprocessing import ModelInput
from service.runtimes.openvino import OPENVINO
from service.runtimes.paths import Offer
from service.runtimes.warming import warm_paths

spin_briefly()  # as `gradcam serve` does, before torch is imported

import argparse
import asyncio
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from bench.record import record
from cam import ClassTarget, ExplainedImage, Question, explain_batch
from cam.runtimes.compiled import FastPath
from cam.runtimes.openvino import HINTS, OpenVinoPath
from service.core.metrics import Metrics
from service.engine.engine import Engine
from service.loading.served_model import ServedModel, load
from service.models.catalog import EMBEDDED, ModelEntry

MODELS = ("efficientnet-lite0", "resnet50", "mobilenet_v3_large", "densenet121", "vgg16",
          "convnext_tiny", "swin_t", "vit_tiny")  # fmt: skip
BATCHES = (1, 16)
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in HINTS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of OpenVINO")
    parser.add_argument("--compile", action="store_true", help="compile PyTorch's, too")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in arguments.models:
        rows += compare(
            loaded(name), DTYPES[arguments.dtype], arguments.rounds, compiled=arguments.compile
        )
    columns = [key for key in rows[0] if key not in ("model", "batch", "difference")]
    table = Table("model", "batch", *columns, "explain ÷ OpenVINO's forward", "difference")
    for row in rows:
        times = [f"{row[key]:.1f}" if row[key] is not None else "" for key in columns]
        ratio = f"{row['openvino explain'] / row['openvino forward']:.2f}"
        table.add_row(row["model"], str(row["batch"]), *times, ratio, f"{row['difference']:.0e}")
    Console(width=160).print(table)
    if arguments.write:
        record(f"runtime-{arguments.dtype}", waiting=WAITING, rows=rows)


def loaded(name: str) -> ServedModel:
    if name == EMBEDDED.name:
        return load(EMBEDDED.model_copy(update={"mode": "exact"}))
    source = "timm:vit_tiny_patch16_224" if name == "vit_tiny" else f"torchvision:{name}"
    return load(ModelEntry(name=name, source=source, weights="none", mode="exact"))


def compare(
    model: ServedModel, dtype: torch.dtype, rounds: int, *, compiled: bool
) -> list[dict[str, Any]]:
    """Measure one model at every batch size."""
    size, sizes = model.preprocessing, list(BATCHES)
    generator = torch.Generator().manual_seed(0)
    all_images = torch.randn((max(BATCHES), 3, size.height, size.width), generator=generator)
    layer, head, reading = model.default, model.head, model.reading
    path = OpenVinoPath(model.module, layer, dtype=dtype, sizes=sizes, head=head, reading=reading)
    path.settle(all_images[:1])
    plain = own_forward(model.module, all_images[:1], dtype)
    fast = None
    if compiled:
        fast = FastPath(model.module, layer, dtype=dtype, sizes=sizes, head=head, reading=reading)
        fast.settle(all_images[:1])
    alone = asyncio.run(engine(model, path, rounds))
    return [
        {
            **measured(model, path, plain, fast, all_images[:batch], rounds),
            "engine": alone if batch == 1 else None,
        }
        for batch in BATCHES
    ]


def measured(
    model: ServedModel,
    path: OpenVinoPath,
    plain: Callable[[Any], Any],
    fast: FastPath | None,
    images: Tensor,
    rounds: int,
) -> dict[str, Any]:
    """Measure one model at one batch size."""
    batch = len(images)
    layout = torch.channels_last if model.channels_last else torch.contiguous_format
    laid_out = images.contiguous(memory_format=layout)
    asked = [Question((ClassTarget(),), "gradcam", (model.default,))] * batch

    def exact() -> list[Any]:
        head, reading = model.head, model.reading
        return list(explain_batch(model.module, laid_out, asked, head=head, reading=reading))

    runs: dict[str, Callable[[], Any]] = {
        "torch forward": lambda: forward(model.module, laid_out),
        "torch explain": exact,
        "openvino forward": lambda: plain(images.numpy()),
        "openvino explain": lambda: path.explain(images, asked),
    }
    if fast:
        runs["torch compiled explain"] = lambda: fast.explain(images, asked)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 2):
        for name, run in runs.items():
            started = perf_counter()
            run()
            if turn > 1:
                seconds[name].append(perf_counter() - started)
    return {
        "model": model.name,
        "batch": batch,
        **{name: statistics.median(each) / batch * 1000 for name, each in seconds.items()},
        "difference": max(map(difference, path.explain(images, asked), exact())),
    }


def forward(module: nn.Module, images: Tensor) -> None:
    with torch.inference_mode():
        module(images)


def own_forward(module: nn.Module, image: Tensor, dtype: torch.dtype) -> Callable[[Any], Any]:
    """Return OpenVINO's forward pass, without what a map needs, as its users compile it."""
    import openvino

    from cam.runtimes.openvino import converted

    options = {"INFERENCE_PRECISION_HINT": HINTS[dtype], "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.Core().compile_model(converted(module, image), "CPU", options)
    request = compiled.create_infer_request()
    return lambda given: request.infer([given], share_inputs=True)


def difference(one: Any, other: Any) -> float:
    assert isinstance(one, ExplainedImage)
    assert isinstance(other, ExplainedImage)
    (found,), (exact,) = one.explanations, other.explanations
    return float(np.abs(found.map - exact.map).max() / np.abs(exact.map).max())


async def engine(model: ServedModel, path: OpenVinoPath, rounds: int) -> float | None:
    """Return the milliseconds of an image alone through the engine: its median; None if the engine
    found that PyTorch is faster."""
    size = model.preprocessing
    pixels = np.random.default_rng(0).integers(0, 256, (size.height, size.width, 3), np.uint8)
    question = Question((ClassTarget(),), "gradcam", (model.default,))
    work = Explain(ModelInput.of(pixels), (question,))
    served = replace(model, exact=path.dtype == torch.float32)
    prepare = partial(warm_paths, served, [Offer(OPENVINO, path)], None)
    async with Engine(served, max_queue=4, metrics=Metrics(), fast_path=prepare) as running:
        await running.warm()
        if running.runtime != "openvino":
            return None
        seconds = []
        for _ in range(4 * rounds):
            started = perf_counter()
            await running.ask(work)
            seconds.append(perf_counter() - started)
    return statistics.median(seconds) * 1000


if __name__ == "__main__":
    main()
