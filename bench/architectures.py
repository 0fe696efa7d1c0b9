"""Every classification model that torchvision lists, and some of timm's: explained or refused?

    python bench/architectures.py [--write docs/architectures.md] [NAME …]

Each is built with seeded random weights, asked for its default layer, and explained there for its
five most probable classes. A map is *wrong* if it is not finite, not of the layer's grid, or
constant for all five classes (random weights leave some classes without positive evidence).
"""

from __future__ import annotations

import argparse
import gc
from pathlib import Path
from time import perf_counter

import numpy as np
import timm
import torch
import torchvision
from rich.console import Console
from torch import Tensor, nn
from torchvision.models import inception_v3

from cam import CamError, default_layer, explain, survey

TIMM = (
    "vit_base_patch16_224",
    "deit3_small_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "vit_small_patch14_reg4_dinov2",
    "beit_base_patch16_224",
    "eva02_tiny_patch14_224",
    "swin_tiny_patch4_window7_224",
    "swinv2_tiny_window8_256",
    "maxvit_tiny_tf_224",
    "mixer_b16_224",
    "convnext_tiny",
    "convnextv2_tiny",
    "efficientnet_b0",
    "tf_efficientnet_lite0",
    "mobilenetv3_large_100",
    "resnet50",
    "regnety_016",
    "densenet121",
    "inception_v3",
    "xception41",
    "coatnet_0_rw_224",
    "pvt_v2_b0",
    "poolformer_s12",
    "levit_128",
    "efficientformer_l1",
    "mobilevit_s",
    "edgenext_small",
    "hrnet_w18",
    "repvgg_a0",
    "vgg11_bn",
    "ghostnet_100",
    "mambaout_tiny",
)


def build(library: str, name: str) -> tuple[nn.Module, int]:
    """The model and the side of its input."""
    model, side = created(library, name)
    for parameter in model.parameters():
        if parameter.ndim > 1 and not parameter.any():  # a head that starts at zero says nothing
            nn.init.normal_(parameter, std=0.02)
    return model, side


def created(library: str, name: str) -> tuple[nn.Module, int]:
    torch.manual_seed(0)
    if library == "timm":
        model = timm.create_model(name, pretrained=False)
        return model, int(model.pretrained_cfg["input_size"][-1])
    if name == "inception_v3":
        return inception_v3(init_weights=False), 299
    config = {"init_weights": False} if name == "googlenet" else {}
    model = torchvision.models.get_model(name, **config)
    weights = torchvision.models.get_model_weights(name).DEFAULT
    crop = weights.transforms().crop_size[0] if name.startswith(("vit", "maxvit")) else 224
    return model, int(getattr(model, "image_size", crop))


def verdict(model: nn.Module, side: int) -> tuple[str, str, str]:
    """How it went: explained, refused or wrong; the default layer; its output, or the reason."""
    model = model.eval().requires_grad_(False)
    image = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(1))
    try:
        layers = survey(model, image)
        name = default_layer(layers)
        layer = next(each for each in layers if each.name == name)
        if layer.shape is None or layer.grid is None:
            return "wrong", name, "a default layer without a grid"
        with torch.no_grad():
            output = model(image)
        logits: Tensor = output if isinstance(output, Tensor) else output[0]
        classes = logits[0].topk(5).indices.tolist()
        maps = [found.map for found in explain(model, image, target=classes, layer=name)]
    except CamError as error:
        return "refused", "", str(error)
    shape = " × ".join(map(str, layer.shape))
    grid = layer.grid
    if any(each.shape != (grid.height, grid.width) for each in maps):
        return "wrong", name, f"a map of {maps[0].shape}"
    if not all(np.isfinite(each).all() for each in maps):
        return "wrong", name, "not finite"
    if all(np.ptp(each) == 0 for each in maps):
        return "wrong", name, "constant maps"
    return "explained", name, f"{shape} ({grid.kind}): {grid.height} × {grid.width}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--write", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    known = [("torchvision", name) for name in torchvision.models.list_models(torchvision.models)]
    known += [("timm", name) for name in TIMM]
    console = Console(stderr=True)
    rows, counts = [], {"explained": 0, "refused": 0, "wrong": 0}
    for library, name in known:
        if arguments.names and name not in arguments.names:
            continue
        started = perf_counter()
        how, layer, what = verdict(*build(library, name))
        counts[how] += 1
        rows.append(f"| {library}:{name} | {how} | `{layer}` | {what} |")
        console.print(f"{library}:{name} {how} {layer} {what} {perf_counter() - started:.1f} s")
        gc.collect()
    total = ", ".join(f"{count} {how}" for how, count in counts.items())
    console.print(total)
    if arguments.write:
        arguments.write.write_text(
            "# Architectures\n\n"
            f"Made by `python bench/architectures.py --write {arguments.write}`: {total}.\n\n"
            "| model | | default layer | its output and the map |\n|---|---|---|---|\n"
            + "\n".join(rows)
            + "\n"
        )


if __name__ == "__main__":
    main()
