"""How much the fast maps are like the exact ones, and whether they explain the same class.

    python -m bench.fidelity [--models resnet50 …] [--compile] [--device cpu] [--write NAME]

Crops of real photos; seeded random weights (EfficientNet-Lite0: its real ones). Grad-CAM of the
class that the exact model predicts: Pearson's correlation of the two maps, median and worst; how
often both predict the same class; and where not, how far apart the two logits are, in units of the
rounding of bfloat16 at their size.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import numpy as np
import skimage.data
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from bench.library import MIDDLE, build, head_of
from bench.record import record
from cam import ClassTarget, ExplainedImage, Question, default_layer, explain_batch, survey
from cam.runtimes.compiled import FastPath
from cam.runtimes.fidelity import likeness, roundings_apart

CROPS = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MIDDLE))
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--write", help="a name for bench/results/NAME.json")
    arguments = parser.parse_args()
    rows = []
    table = Table("model", "images", "median", "worst", "same class", "widest miss, roundings")
    for name in arguments.models:
        found = compare(name, arguments.compile, arguments.device)
        rows.append(found)
        table.add_row(
            name,
            str(found["images"]),
            f"{found['median']:.4f}",
            f"{found['worst']:.4f}",
            str(found["same_class"]),
            f"{found['widest_miss']:.2f}",
        )
    Console().print(table)
    if arguments.write:
        record(arguments.write, rows=rows)


def compare(name: str, compiled: bool, device: str) -> dict[str, Any]:
    model = build(name).to(device).requires_grad_(False)
    images = crops().to(device)
    layer = default_layer(survey(model, images[:1]))
    head = head_of(model, images[:1], layer)
    fast = FastPath(
        model, layer, dtype=torch.bfloat16, sizes=[len(images)], compile=compiled, head=head
    )
    exact = explain(model, images, [None] * len(images), layer)
    classes = [int(each.logits.argmax()) for each in exact]
    questions = [Question((ClassTarget(index),), "gradcam", (layer,)) for index in classes]
    quick = fast.explain(images, questions)
    likenesses = [likeness(one, other) for one, other in zip(quick, exact, strict=True)]
    alike = [each for each in likenesses if each is not None]  # two flat maps tell nothing
    misses = []
    for one, other in zip(quick, exact, strict=True):
        assert isinstance(one, ExplainedImage)
        if (said := one.logits.argmax()) != other.logits.argmax():
            apart = roundings_apart(torch.from_numpy(other.logits), torch.tensor(said), fast.dtype)
            misses.append(float(apart))
    return {
        "model": name,
        "layer": layer,
        "compiled": compiled,
        "images": len(images),
        "median": statistics.median(alike),
        "worst": min(alike),
        "same_class": len(images) - len(misses),
        "widest_miss": max(misses, default=0.0),
    }


def explain(
    model: nn.Module, images: Tensor, classes: list[int | None], layer: str
) -> list[ExplainedImage]:
    questions = [Question((ClassTarget(index),), "gradcam", (layer,)) for index in classes]
    answers = explain_batch(model, images, questions)
    assert all(isinstance(each, ExplainedImage) for each in answers)
    return [each for each in answers if isinstance(each, ExplainedImage)]


def crops() -> Tensor:
    """Parts of five photos, each in several sizes, as a model sees them: (30, 3, 224, 224)."""
    rng = np.random.default_rng(0)
    found = []
    for photo in ("chelsea", "coffee", "astronaut", "rocket", "stereo_motorcycle"):
        picture = getattr(skimage.data, photo)()
        pixels = picture[0] if isinstance(picture, tuple) else picture
        image = Image.fromarray(pixels).convert("RGB")
        for _ in range(CROPS):
            side = int(min(image.size) * rng.uniform(0.5, 1))
            left, top = (int(rng.integers(0, length - side + 1)) for length in image.size)
            part = image.crop((left, top, left + side, top + side)).resize((224, 224))
            values = torch.from_numpy(np.asarray(part).copy()).permute(2, 0, 1) / 127.5 - 1
            found.append(values)
    return torch.stack(found)


if __name__ == "__main__":
    main()
