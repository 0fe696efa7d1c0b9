"""What four more classes cost: one request for five beside one for one, at the default layer.

    python bench/classes.py [--rounds 30]

ResNet-50 with seeded random weights and the embedded model, batch 1, CPU; the two take turns, and
the medians are compared.
"""

from __future__ import annotations

import argparse
import statistics
from time import perf_counter

import torch
import torchvision
from rich.console import Console
from rich.table import Table

from cam import default_layer, explain, survey
from service.catalog import EMBEDDED
from service.registry import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    models = {
        "resnet50": torchvision.models.resnet50().eval().requires_grad_(False),
        EMBEDDED.name: load(EMBEDDED).module,
    }
    image = torch.randn(1, 3, 224, 224)
    table = Table("model", "layer", "predict, ms", "one class", "five classes", "ratio")
    for name, model in models.items():
        layer = default_layer(survey(model, image))
        seconds: dict[int, list[float]] = {0: [], 1: [], 5: []}
        for _ in range(rounds + 3):
            for classes in seconds:
                started = perf_counter()
                if classes:
                    explain(model, image, target=list(range(classes)), layer=layer)
                else:
                    with torch.inference_mode():
                        model(image)
                seconds[classes].append(perf_counter() - started)
        none, one, five = (statistics.median(each[3:]) * 1000 for each in seconds.values())
        ratio = f"{five / one:.2f}"
        table.add_row(name, layer, f"{none:.1f}", f"{one:.1f}", f"{five:.1f}", ratio)
    Console().print(table)


if __name__ == "__main__":
    main()
