"""What an explanation costs beside a prediction on an accelerator.

    python -m bench.gpu [--models resnet50 …] [--batches 1 8 32 128] [--rounds 7]
                        [--within SECONDS] [--write]
    python -m bench.gpu --device cpu --models resnet18 --batches 1 2 --rounds 1

Each model has seeded random weights and 224 × 224 images, and is explained by Grad-CAM at its
default layer: eager in float32 and bfloat16, by the fast path in bfloat16 (CUDA graphs on a CUDA
device), and by the fast path that is compiled ahead of time. Each explanation stands beside the
forward pass of the same kind, taken in turns: the fast path beside the forward pass that is not
compiled, the compiled one beside the forward pass of `torch.compile`; the times are
medians, with the device's queue empty before and after each. Without an accelerator nothing is
measured, unless a device is named.
"""

from __future__ import annotations

import argparse
import copy
import gc
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from bench.record import record
from cam import ClassTarget, Question
from cam.passes.compiled_path import CompiledPath
from cam.passes.onepass import explain_batch
from cam.runtimes.compiled import FastPath
from cam.runtimes.packaged import PackagedPath
from service.loading.served_model import ServedModel, load
from service.models.catalog import ModelEntry

MODELS = (
    "torchvision:resnet50", "torchvision:densenet121", "torchvision:efficientnet_b0",
    "torchvision:mobilenet_v3_large", "torchvision:regnet_y_8gf", "torchvision:convnext_tiny",
    "torchvision:swin_t", "torchvision:vit_b_16", "timm:vit_tiny_patch16_224", "timm:resnetv2_50",
)  # fmt: skip
BATCHES = (1, 8, 32, 128)
DOCUMENT = Path(__file__).parent.parent / "docs" / "performance.md"
BEGIN, END = "<!-- bench.gpu -->\n", "<!-- end of bench.gpu -->\n"
"""Lines of the document between which the table stands."""
EAGER, FAST, COMPILED = ("float32", "bfloat16"), ("fast",), ("compiled",)
COLUMNS = (*EAGER, *FAST, *COMPILED)
Run = Callable[[], object]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", help="such as cuda:1; by default the accelerator")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--batches", nargs="*", type=int, default=list(BATCHES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--within", type=float, default=math.inf, help="seconds to begin more in")
    parser.add_argument("--write", action="store_true", help="results, and the document's table")
    arguments = parser.parse_args()
    found = arguments.device or torch.accelerator.current_accelerator(check_available=True)
    if found is None:
        print("There is no accelerator: torch finds only the CPU, and nothing was measured.")
        return 0
    device, rows = torch.device(found), []
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    console = Console(stderr=True)
    for rows in measured(arguments, device):
        console.print(rows[-1], highlight=False)
        if arguments.write:  # what is there already counts, whatever comes next
            record(f"gpu-{name.lower().replace(' ', '-')}", device=name, rows=rows)
            document(rows, name)
    show(rows, name)
    return 0


def measured(arguments: argparse.Namespace, device: torch.device) -> Iterator[list[dict[str, Any]]]:
    """Yield what has been measured, one row for each model and batch size, after each of them. What
    is compiled comes last, because compiling takes most of the time, and large batches come first.
    """
    until = perf_counter() + arguments.within
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    models: dict[str, ServedModel] = {}
    for kinds in (EAGER, FAST, COMPILED):
        for named in arguments.models:
            source = named if ":" in named else f"torchvision:{named}"
            for batch in sorted(arguments.batches, reverse=True):
                if perf_counter() > until:
                    return
                model = models.get(source) or loaded(source, device)
                models[source] = model
                row = rows.setdefault((source, batch), {"model": source, "batch": batch})
                images = torch.randn(
                    batch, 3, model.preprocessing.height, model.preprocessing.width
                )
                for kind in kinds:
                    row[kind] = tried(model, images.to(device), kind, arguments.rounds)
                yield [*rows.values()]


def loaded(source: str, device: torch.device) -> ServedModel:
    return load(
        ModelEntry(
            name="m", source=source, weights="none", device=str(device), mode="exact", max_batch=1
        )
    )


def tried(model: ServedModel, images: Tensor, kind: str, rounds: int) -> dict[str, float] | str:
    """Return what `compared` finds, or why it finds nothing: a device without memory, or a compiler
    that fails."""
    try:
        return compared(model, images, kind, rounds)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
    finally:
        gc.collect()
        if images.device.type != "cpu":
            torch.accelerator.memory.empty_cache()


def compared(model: ServedModel, images: Tensor, kind: str, rounds: int) -> dict[str, float]:
    """Return the milliseconds of a forward pass and of an explanation of a batch, and their ratio:
    the median of the rounds' ratios."""
    questions = [Question((ClassTarget(),), "gradcam", (model.default,))] * len(images)
    head, reading = model.head, model.reading
    dtype = torch.float32 if kind == "float32" else torch.bfloat16
    module = _recast(model.module, dtype)
    given = images.to(dtype).contiguous(memory_format=torch.channels_last)
    forward: Callable[[Tensor], object] = module
    if kind in FAST + COMPILED:
        path = _path(model, images, kind)
        if kind in COMPILED:
            forward = torch.compile(module, dynamic=False)
        explain: Run = lambda: list(path.explain(images, questions))  # noqa: E731
    else:
        explain = lambda: list(  # noqa: E731
            explain_batch(module, given, questions, head=head, reading=reading)
        )
    runs: list[Run] = [lambda: _forward(forward, given), explain]
    seconds: list[list[float]] = []
    for turn in range(rounds + 3):
        each = [_seconds(run, images.device) for run in runs]
        if turn > 2:
            seconds.append(each)
    return {
        "forward": 1000 * statistics.median(each[0] for each in seconds),
        "explain": 1000 * statistics.median(each[1] for each in seconds),
        "ratio": statistics.median(each[1] / each[0] for each in seconds),
        "images a second": len(images) / statistics.median(each[1] for each in seconds),
    }


def _path(model: ServedModel, images: Tensor, kind: str) -> CompiledPath:
    """Return a fast path that is ready for batches of the images' size, and say why it is not
    compiled or recorded if it is not.

    Raises:
        RuntimeError: if the model cannot be compiled ahead of time.
    """
    path: CompiledPath = FastPath(
        model.module,
        model.default,
        dtype=torch.bfloat16,
        sizes=[len(images)],
        compile=kind in FAST,
        head=model.head,
        reading=model.reading,
    )
    if kind in COMPILED:
        if model.head is None:
            raise RuntimeError("the head is not linear behind the mean of a layer")
        assert isinstance(path, FastPath)
        files = {len(images): path.package(images.shape)}
        path = PackagedPath(
            files, path.layer, dtype=path.dtype, head=model.head, reading=model.reading
        )
    if (why := path.settle(images[:1])) and kind in FAST:
        print(f"{model.source}: the fast path is not {path.way}: {why}", file=sys.stderr)
    return path


def _recast(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    found = copy.deepcopy(module)
    return found.to(dtype=dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]


def _forward(module: Callable[[Tensor], Any], images: Tensor) -> None:
    with torch.inference_mode():
        module(images)


def _seconds(run: Run, device: torch.device) -> float:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    started = perf_counter()
    run()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return perf_counter() - started


def cell(found: dict[str, float] | str | None) -> str:
    if found is None:
        return "not measured"
    if isinstance(found, str):
        return found.partition(":")[0]
    return f"{found['ratio']:.2f} ({found['images a second']:.0f}/s)"


def show(rows: list[dict[str, Any]], name: str) -> None:
    table = Table("model", "batch", *COLUMNS, title=f"explain ÷ forward on {name}")
    for row in rows:
        table.add_row(row["model"], str(row["batch"]), *(cell(row.get(each)) for each in COLUMNS))
    Console(width=140).print(table)


def document(rows: list[dict[str, Any]], name: str) -> None:
    """Write the table into the document, in place of the last one."""
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    lines = [
        f"`python -m bench.gpu --write` on {name}: explain ÷ forward (explained images a second).",
        "",
        f"| model | batch | {' | '.join(COLUMNS)} |",
        f"|---|---|{'---|' * len(COLUMNS)}",
    ]
    for row in rows:
        cells = [row["model"], str(row["batch"]), *(cell(row.get(each)) for each in COLUMNS)]
        lines.append(f"| {' | '.join(cells)} |")
    DOCUMENT.write_text(before + BEGIN + "\n" + "\n".join(lines) + "\n\n" + END + after)


if __name__ == "__main__":
    sys.exit(main())
