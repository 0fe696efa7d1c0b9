"""Ablation-CAM beside pytorch-grad-cam's: same model, layer, photo and channels, in one run.

    python -m bench.ablation [--rounds 3] [--channels 256]

ResNet-50 with seeded random weights, its last stage, CPU, float32. Both ablate the same number of
channels in chunks of 32; the two take turns, and the medians are compared.
"""

from __future__ import annotations

import argparse
import statistics
from time import perf_counter

import numpy as np
import torch
import torchvision
from pytorch_grad_cam import AblationCAM
from pytorch_grad_cam.ablation_layer import AblationLayer
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from rich.console import Console
from torch import Tensor, nn

from cam import ClassTarget, Question, explain_in_steps
from cam.passes.stepwise import finish

LAYER, WANTED, CHUNK = "layer4", 285, 32


class SomeChannels(AblationLayer):
    """The peer's layer, told how many channels to ablate: the first ones."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def activations_to_be_ablated(self, activations: object, ratio: float = 1.0) -> object:
        self.indices = np.arange(self.channels, dtype=np.int32)
        return self.indices


def ours(model: nn.Module, image: Tensor, channels: int) -> None:
    question = Question((ClassTarget(WANTED),), "ablationcam", (LAYER,), channels)
    finish(explain_in_steps(model, image[0], question, chunk=CHUNK))


def theirs(model: nn.Module, image: Tensor, channels: int) -> None:
    with AblationCAM(
        model=model,
        target_layers=[model.get_submodule(LAYER)],
        ablation_layer=SomeChannels(channels),
        batch_size=CHUNK,
    ) as cam:
        cam(image, [ClassifierOutputTarget(WANTED)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--channels", type=int, default=256)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = torchvision.models.resnet50().eval()
    image = torch.randn(1, 3, 224, 224)
    for run in (ours, theirs):  # the first forward passes of a process are slow
        run(model, image, CHUNK)
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(arguments.rounds):
        for name, run in (("ours", ours), ("theirs", theirs)):
            started = perf_counter()
            run(model, image, arguments.channels)
            seconds[name].append(perf_counter() - started)
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    Console().print(
        f"{arguments.channels} channels: ours {medians['ours']:.2f} s, pytorch-grad-cam "
        f"{medians['theirs']:.2f} s, ratio {medians['theirs'] / medians['ours']:.1f}"
    )


if __name__ == "__main__":
    main()
