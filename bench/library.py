"""What an explanation costs beside a prediction, and beside four other tools.

    python -m bench.library [--models resnet50 …] [--batches 8] [--layers last] [--rounds 9]
                            [--compile resnet50 …] [--device cpu] [--write NAME]

Grad-CAM of the predicted class, images of 224 × 224, seeded random weights (EfficientNet-Lite0: its
real ones). In each round every contender takes its turn once; medians over the rounds, as a
multiple of the plain eager float32 forward pass of the same batch, and in images a second.

- forward: the model in inference mode, as it comes; in channels-last layout; in bfloat16
- exact: `explain_batch`, float32, eager, channels-last, as the service runs it
- fast: `FastPath`, bfloat16; compiled where `--compile` names the model
- grad-cam, torchcam, captum, torchxai: each as its README shows it, float32, no parameter frozen
  (as they come). captum predicts nothing: it gets the predicted classes for nothing. torchxai takes
  one image at a time.
"""

from __future__ import annotations

import argparse
import copy
import resource
import statistics
import warnings
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
import torchvision
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch._inductor import config as inductor

from bench.record import record
from cam import ClassTarget, Question, default_layer, explain_batch, survey
from cam.errors import MethodUnsuited
from cam.methods.head import PooledHead, pooled_head
from cam.runtimes.compiled import FastPath
from service.loading.served_model import load
from service.models.catalog import EMBEDDED

MIDDLE = {
    "resnet50": "layer2",
    "vgg16": "features.16",
    "densenet121": "features.denseblock2",
    "mobilenet_v3_large": "features.8",
    "convnext_tiny": "features.3",
    "vit_b_16": "encoder.layers.encoder_layer_5.ln_1",
    "swin_t": "features.3",
    EMBEDDED.name: "blocks.3",
}
TOKENS = ("vit_b_16", "swin_t")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MIDDLE))
    parser.add_argument("--batches", nargs="*", type=int, default=[8])
    parser.add_argument("--layers", nargs="*", default=["last"], choices=["last", "middle"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--compile", nargs="*", default=["resnet50"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--write", help="a name for bench/results/NAME.json")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: list[dict[str, Any]] = []
    for name in arguments.models:
        for batch in arguments.batches:
            for where in arguments.layers:
                compiled = name in arguments.compile
                found = compare(name, batch, where, arguments.rounds, arguments.device, compiled)
                rows.append(found)
                show(found)
    if arguments.write:
        record(arguments.write, rows=rows)


def compare(
    name: str, batch: int, where: str, rounds: int, device: str, compiled: bool
) -> dict[str, Any]:
    """Seconds of every contender: medians and quartiles."""
    model = build(name).to(device)
    images = torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(1)).to(device)
    layer = default_layer(survey(model, images[:1])) if where == "last" else MIDDLE[name]
    contenders = ours(model, images, layer, compiled) | peers(name, model, images, layer)
    seconds: dict[str, list[float]] = {each: [] for each in contenders}
    failures: dict[str, str] = {}
    for turn in range(rounds + 1):  # the first warms up
        for each, run in contenders.items():
            if each in failures:
                continue
            started = perf_counter()
            try:
                run()
                if device != "cpu":
                    torch.accelerator.synchronize()
            except Exception as error:
                failures[each] = f"{type(error).__name__}: {error}".splitlines()[0][:100]
                continue
            if turn:
                seconds[each].append(perf_counter() - started)
    plain = statistics.median(seconds["forward"])
    return {
        "model": name,
        "batch": batch,
        "layer": layer,
        "device": device,
        "compiled": compiled,
        "rounds": rounds,
        "contenders": {
            each: {
                "median_s": round(statistics.median(values), 5),
                "fastest_s": round(min(values), 5),
                "images_per_s": round(batch / statistics.median(values), 2),
                "of_forward": round(statistics.median(values) / plain, 3),
            }
            for each, values in seconds.items()
            if values
        },
        "failures": failures,
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == EMBEDDED.name:
        return load(EMBEDDED).module
    model: nn.Module = torchvision.models.get_model(name, weights=None)
    if name == "vit_b_16":  # torchvision leaves its head at zero: nothing would depend on anything
        nn.init.normal_(model.get_parameter("heads.head.weight"), std=0.02)
    return model.eval()


def ours(
    model: nn.Module, images: Tensor, layer: str, compiled: bool
) -> dict[str, Callable[[], Any]]:
    questions = [Question((ClassTarget(),), "gradcam", (layer,))] * len(images)
    plain = copy.deepcopy(model).requires_grad_(False)
    last = copy.deepcopy(plain).to(memory_format=torch.channels_last)
    half = copy.deepcopy(last).to(torch.bfloat16)
    size = [len(images)]
    head = head_of(last, images[:1], layer)
    fast = FastPath(plain, layer, dtype=torch.bfloat16, sizes=size, compile=compiled, head=head)
    found = {
        "forward": lambda: forward(plain, images),
        "forward, channels-last": lambda: forward(last, laid_out(images)),
        "forward, bfloat16": lambda: forward(half, laid_out(images.bfloat16())),
        "exact": lambda: [*explain_batch(last, laid_out(images), questions, head=head)],
        "fast" if compiled else "fast, not compiled": lambda: [*fast.explain(images, questions)],
    }
    if compiled:
        run = frozen(half, laid_out(images.bfloat16()))
        found["forward, bfloat16, compiled"] = lambda: run(laid_out(images.bfloat16()))
    return found


def peers(name: str, model: nn.Module, images: Tensor, layer: str) -> dict[str, Callable[[], Any]]:
    from captum.attr import LayerGradCam
    from pytorch_grad_cam import GradCAM
    from torchcam.methods import GradCAM as TorchCam
    from torchxai.methods import GradCAM as TorchXai

    model = copy.deepcopy(model).requires_grad_(True)
    target = model.get_submodule(layer)
    grid = int((images.shape[-1] // 16) if name == "vit_b_16" else images.shape[-1] // 32)

    def reshape(output: Tensor) -> Tensor:
        if output.ndim == 4:
            return output.permute(0, 3, 1, 2)
        return output[:, 1:].reshape(len(output), grid, grid, -1).permute(0, 3, 1, 2)

    with torch.no_grad():
        classes = model(images).argmax(1)
    transform = reshape if name in TOKENS else None

    def grad_cam() -> Any:
        with GradCAM(model=model, target_layers=[target], reshape_transform=transform) as cam:
            return cam(input_tensor=images, targets=None)

    def torch_cam() -> Any:
        with TorchCam(model, layer) as cam:
            scores = model(images)
            return cam(scores.argmax(1).tolist(), scores)

    def captum() -> Any:
        return LayerGradCam(model, target).attribute(images, target=classes)

    def torch_xai() -> Any:
        explainer = TorchXai(model, target_layer=target)
        return [explainer(image) for image in images]

    found = {"grad-cam": grad_cam, "torchxai": torch_xai}
    if name not in TOKENS:  # neither reshapes tokens
        found |= {"torchcam": torch_cam, "captum": captum}
    return found


def forward(model: Callable[[Tensor], Any], images: Tensor) -> Any:
    with torch.inference_mode():
        return model(images)


def frozen(model: nn.Module, images: Tensor) -> Callable[[Tensor], Any]:
    """The model compiled for inference alone, as fast as the compiler makes it."""
    compiled: Callable[[Tensor], Any] = torch.no_grad()(torch.compile(model, dynamic=False))
    with inductor.patch(freezing=True):
        compiled(images)
    return compiled


def head_of(model: nn.Module, image: Tensor, layer: str) -> PooledHead | None:
    (grid,) = (each.grid for each in survey(model, image) if each.name == layer)
    assert grid
    try:
        return pooled_head(model, image, layer, grid)
    except MethodUnsuited:
        return None


def laid_out(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)


def show(found: dict[str, Any]) -> None:
    title = f"{found['model']}, batch {found['batch']}, at {found['layer']}, {found['device']}"
    table = Table("", "median, ms", "images/s", "÷ forward", title=title, title_justify="left")
    for each, values in found["contenders"].items():
        table.add_row(
            each,
            f"{values['median_s'] * 1000:.1f}",
            f"{values['images_per_s']:.1f}",
            f"{values['of_forward']:.2f}",
        )
    for each, why in found["failures"].items():
        table.add_row(each, why, "", "")
    Console().print(table)


if __name__ == "__main__":
    main()
