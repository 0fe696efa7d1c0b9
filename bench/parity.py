"""Do the peers draw the same maps?

    python bench/parity.py [--write docs/parity.md] [NAME …]

Every method that cam and a peer (grad-cam, torchcam, captum) have in common, on seven models, at
cam's default layer, with seeded random weights and, of efficientnet-lite0, real weights and photos.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytorch_grad_cam
import skimage.data
import torch
import torchcam.methods
import torchvision
from captum.attr import LayerGradCam
from numpy.typing import NDArray
from PIL import Image
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from cam import METHODS, Layer, default_layer, explain, survey
from cam.heatmap import minmax
from service.catalog import EMBEDDED
from service.registry import load

RANDOM = ("resnet50", "vgg16", "densenet121", "convnext_tiny", "vit_b_16", "swin_t")
MODELS = (*RANDOM, EMBEDDED.name)
CLASSES = (1, 285, 967)
TOLERANCE = 1e-4

GRAD_CAM = {
    "gradcam": pytorch_grad_cam.GradCAM,
    "gradcam++": pytorch_grad_cam.GradCAMPlusPlus,
    "hirescam": pytorch_grad_cam.HiResCAM,
    "elementwise": pytorch_grad_cam.GradCAMElementWise,
    "layercam": pytorch_grad_cam.LayerCAM,
    "xgradcam": pytorch_grad_cam.XGradCAM,
    "eigencam": pytorch_grad_cam.EigenCAM,
    "eigengradcam": pytorch_grad_cam.EigenGradCAM,
    "kpcacam": pytorch_grad_cam.KPCA_CAM,
    "fem": pytorch_grad_cam.FEM,
}
TORCHCAM = {
    "gradcam": torchcam.methods.GradCAM,
    "gradcam++": torchcam.methods.GradCAMpp,
    "layercam": torchcam.methods.LayerCAM,
    "xgradcam": torchcam.methods.XGradCAM,
}
COMPONENTS = ("eigencam", "eigengradcam", "kpcacam")

REASONS = {
    "gradcam++ grad-cam *": "it adds 1e-6 to the denominator 2G² + G³ ΣA, which outweighs 2G² as "
    "soon as |G| < 1e-3.",
    "gradcam++ torchcam *": "it divides a copy of α and so never divides: channels are weighted by "
    "Σ G² relu(G).",
    "eigencam grad-cam *": "it centres each channel before the decomposition; the paper does not.",
    "fem grad-cam *": "it sums the activations, weighted by each channel's share of positions over "
    "the threshold; the paper sums the channels' means at those positions.",
    "xgradcam grad-cam vit_b_16": "rounding. cam runs what is below the layer without gradients, "
    "and there torch takes a fused attention, whose results are off by some 2e-6; Σ A_k, by which "
    "the method divides, nearly cancels behind a LayerNorm and magnifies that.",
    "* grad-cam densenet121": "the model applies a ReLU in place to the layer's output, of which "
    "the peer keeps no copy: it takes relu(A) with the gradient at A.",
    "* torchcam densenet121": "the same ReLU: it takes relu(A) with the gradient at relu(A). "
    "captum and cam copy A.",
}
"""Patterns of "method peer model": why those maps may differ."""

Maps = dict[tuple[str, int], NDArray[np.float32]]
"""(method, class) → maps (n, h, w) at the layer's resolution."""


@dataclass
class Cell:
    worst: float = 0.0
    compared: int = 0
    constant: int = 0
    """Pairs of two constant maps: there is nothing to compare."""

    def __str__(self) -> str:
        mark = "✓" if self.worst <= TOLERANCE else "✗"
        return f"{mark} {self.worst:.1e}" if self.compared else "constant"


Cells = dict[tuple[str, str, str], Cell]
"""(method, peer, model) → how it went; nothing where the peer was not asked."""


def classes_of(method: str) -> tuple[int, ...]:
    """One stands for all where the class makes no difference."""
    return CLASSES if METHODS[method].class_specific else CLASSES[:1]


def build(name: str) -> tuple[nn.Module, Tensor]:
    """The model and its two inputs."""
    if name == EMBEDDED.name:
        served = load(EMBEDDED.model_copy(update={"device": "cpu"}))
        photos = (skimage.data.chelsea(), skimage.data.coffee())
        views = [served.preprocessing.apply(Image.fromarray(each), "squash") for each in photos]
        return served.module, torch.stack([view.tensor for view in views])
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, weights=None)
    for parameter in model.parameters():
        if parameter.ndim > 1 and not parameter.any():  # a head that starts at zero says nothing
            nn.init.normal_(parameter, std=0.02)
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    return model.eval().requires_grad_(False), images


def ours(model: nn.Module, images: Tensor, layer: Layer) -> Maps:
    maps: Maps = {}
    for method in METHODS:
        wanted = classes_of(method)
        found = explain(model, images, target=list(wanted), method=method, layer=layer.name)
        for number, index in enumerate(wanted):
            maps[method, index] = np.stack([each.map for each in found[number :: len(wanted)]])
    return maps


def grad_cams(model: nn.Module, images: Tensor, layer: Layer) -> Maps:
    """Before it rectifies, normalises and resizes. What its methods make of an output and its
    gradient is asked of each; the two it takes with the same hooks for all, so once is enough."""
    maps: Maps = {}
    target = model.get_submodule(layer.name)
    reshape = reshaping(layer)
    for index in CLASSES:
        targets = [ClassifierOutputTarget(index)] * len(images)
        with pytorch_grad_cam.GradCAM(model, [target], reshape) as taker:
            outputs = taker.activations_and_grads(images.clone().requires_grad_())
            sum(each(output) for each, output in zip(targets, outputs, strict=True)).backward()
            activations = taker.activations_and_grads.activations[0].numpy()
            gradients = taker.activations_and_grads.gradients[0].numpy()
        for method, peer in GRAD_CAM.items():
            if index in classes_of(method):
                with peer(model, [target], reshape) as cam:
                    maps[method, index] = cam.get_cam_image(
                        images, target, targets, activations, gradients, False
                    )
    return maps


def reshaping(layer: Layer) -> Callable[[Tensor], Tensor] | None:
    """What grad-cam has to be told of a layer that does not put its channels first."""
    grid = layer.grid
    if grid is None or grid.kind == "channels first":
        return None
    cells = (grid.height, grid.width, -1)
    return lambda out: out[:, grid.prefix :].reshape(len(out), *cells).permute(0, 3, 1, 2)


def torchcams(model: nn.Module, images: Tensor, layer: Layer) -> Maps:
    maps: Maps = {}
    for method, peer in TORCHCAM.items():
        with peer(model, layer.name) as cam:
            scores = model(images.clone().requires_grad_())
            for index in CLASSES:
                found = cam(index, scores, normalized=False, retain_graph=True)
                maps[method, index] = found[0].numpy()
    return maps


def captums(model: nn.Module, images: Tensor, layer: Layer) -> Maps:
    peer = LayerGradCam(model, model.get_submodule(layer.name))
    maps: Maps = {}
    for index in CLASSES:
        found = peer.attribute(images.clone().requires_grad_(), index, relu_attributions=True)
        maps["gradcam", index] = found[:, 0].detach().numpy()
    return maps


PEERS = {"grad-cam": grad_cams, "torchcam": torchcams, "captum": captums}
ROWS = [(method, "grad-cam") for method in GRAD_CAM]
ROWS += [(method, "torchcam") for method in TORCHCAM]
ROWS += [("gradcam", "captum")]


def difference(method: str, mine: NDArray[np.float32], theirs: NDArray[np.float32]) -> float | None:
    """Between two maps (h, w); None where both are constant."""
    found = []
    for sign in (1, -1) if method in COMPONENTS else (1,):
        one, other = np.maximum(mine, 0), np.maximum(sign * theirs.astype(np.float32), 0)
        if np.ptp(one) > 0 or np.ptp(other) > 0:
            found.append(float(np.abs(minmax(one) - minmax(other)).max()))
    return min(found, default=None)


def compare(name: str, cells: Cells) -> str:
    """Fills in the cells of a model; the layer."""
    model, images = build(name)
    layers = survey(model, images[:1])
    layer = next(each for each in layers if each.name == default_layer(layers))
    mine = ours(model, images, layer)
    for peer, ask in PEERS.items():
        if peer != "grad-cam" and reshaping(layer):
            continue
        for (method, index), theirs in ask(model, images, layer).items():
            cell = cells.setdefault((method, peer, name), Cell())
            for pair in zip(mine[method, index], theirs, strict=True):
                found = difference(method, *pair)
                cell.constant += found is None
                cell.compared += found is not None
                cell.worst = max(cell.worst, found or 0.0)
    return layer.name


def notes(cells: Cells, layers: dict[str, str]) -> list[str]:
    """Paragraphs, then a reason for each disagreement."""
    compared = [cell for cell in cells.values() if cell.compared]
    failing = [" ".join(key) for key, cell in cells.items() if cell.worst > TOLERANCE]
    where = ", ".join(f"{name} `{layer}`" for name, layer in layers.items())
    versions = ", ".join(f"{each} {version(each)}" for each in ("torch", "torchvision", *PEERS))
    counts = (
        f"{len(compared) - len(failing)} of {len(compared)} cells agree (✓, ≤ {TOLERANCE:.0e}). "
        f"{sum(cell.compared for cell in compared)} pairs of maps were compared; in "
        f"{sum(cell.constant for cell in cells.values())} more both were constant: there is no "
        "evidence for the class. A cell has up to six pairs, or two where the class makes no "
        f"difference. The sign of components ({', '.join(COMPONENTS)}) is left to chance by the "
        "peer: the nearer one counts. A dash: not asked, because the layer's output is tokens.\n"
    )
    lines = [
        counts,
        f"Layers: {where}. Versions: {versions}.\n",
        "Why some differ (method, peer, model):\n",
    ]
    for pattern, reason in REASONS.items():
        if any(fnmatchcase(each, pattern) for each in failing):
            lines.append(f"- `{pattern}`: {reason}")
    for each in failing:
        if not any(fnmatchcase(each, pattern) for pattern in REASONS):
            lines.append(f"- `{each}`: not explained.")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(MODELS), metavar="NAME")
    parser.add_argument("--write", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    cells: Cells = {}
    layers = {
        name: compare(name, cells) for name in track(arguments.names, console=Console(stderr=True))
    }
    heads = ["method", "peer", *layers]
    rows = [[*row, *(str(cells.get((*row, name), "—")) for name in layers)] for row in ROWS]
    lines = notes(cells, layers)
    table = Table(*heads)
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.width = max(console.width, 130)  # of a table folded to 80 no number is whole
    console.print(table)
    console.print("\n".join(lines), markup=False, highlight=False)
    if arguments.write:
        arguments.write.write_text(
            f"# Parity\n\nMade by `python bench/parity.py --write {arguments.write}`: the greatest "
            "difference between cam's maps and a peer's, rectified and min-max normalised at the "
            "layer's resolution, in float32, over two inputs and three classes.\n\n"
            + "".join(f"| {' | '.join(row)} |\n" for row in (heads, ["---"] * len(heads), *rows))
            + "\n"
            + "\n".join(lines)
            + "\n"
        )


if __name__ == "__main__":
    main()
