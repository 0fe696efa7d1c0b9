"""Do the peers draw the same maps?

    python -m bench.parity [--write docs/parity.md] [NAME …] [--methods METHOD …]

Every method that cam and a peer (grad-cam, torchcam, captum) have in common, on seven models, at
cam's default layer, with seeded random weights and, of efficientnet-lite0, real weights and photos.
The peers' maps of pixels are in `bench/parity_pixels.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_grad_cam
import skimage.data
import torch
import torchcam.methods
import torchvision
from captum.attr import LayerGradCam
from numpy.typing import NDArray
from PIL import Image
from pytorch_grad_cam.base_cam import BaseCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torchcam.methods.core import _CAM

from bench.parity_pixels import BUDGETS as PIXEL_BUDGETS
from bench.parity_pixels import PIXELS
from cam import METHODS, CamError, Layer, default_layer, explain, survey
from cam.drawing.heatmap import minmax
from cam.methods.pixels import NOISE
from service.loading.served_model import load
from service.models.catalog import EMBEDDED

RANDOM = ("resnet50", "vgg16", "densenet121", "convnext_tiny", "vit_b_16", "swin_t")
MODELS = (*RANDOM, EMBEDDED.name)
CLASSES = (1, 285, 967)
SMALL = 96
"""The side of inputs that a model sees once for each channel of a layer."""
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
    "segeigencam": pytorch_grad_cam.SegEigenCAM,
    "kpcacam": pytorch_grad_cam.KPCA_CAM,
    "fem": pytorch_grad_cam.FEM,
}
STEPS = {
    "scorecam": pytorch_grad_cam.ScoreCAM,
    "ablationcam": pytorch_grad_cam.AblationCAM,
}
TORCHCAM = {
    "gradcam": torchcam.methods.GradCAM,
    "gradcam++": torchcam.methods.GradCAMpp,
    "layercam": torchcam.methods.LayerCAM,
    "xgradcam": torchcam.methods.XGradCAM,
    "scorecam": torchcam.methods.ScoreCAM,
    "iscam": torchcam.methods.ISCAM,
}
COMPONENTS = ("eigencam", "eigengradcam", "kpcacam")
SIGNED = ("integratedgradients", "expectedgradients", "occlusion")
"""Compared with both their sides, not rectified."""
BUDGETS = {**PIXEL_BUDGETS, "smoothgradcam++": 4, "iscam": 10 * 2048}
"""cam's and the peers' alike; IS-CAM's is enough for all channels."""
SCOPE = f"""\
How the tools were asked. Methods of one or two passes at the layer see two inputs and three \
classes (one where the class makes no difference). All others see one input, for its predicted \
class. Methods that run the model for each channel use all channels, and see an input of {SMALL} \
× {SMALL} pixels. Maps of pixels are compared as pixels, and those of {", ".join(SIGNED)} with \
both their signs. The peer leaves the sign of components ({", ".join(COMPONENTS)}) to chance; the \
nearer sign counts. The noise of smoothgrad and smoothgradcam++ is the same on both sides: the \
peers draw it from torch's generator, which has the same seed as cam's own. integratedgradients \
takes 8 steps, with the gradient in the middle of each (`riemann_middle`). With 10 steps, two \
positions would differ in the last bit, and rectifiers near 0 turn that into 9e-4. \
expectedgradients takes 8 draws, which are cam's own on both sides, from the background that is \
used if none is declared. occlusion takes 7 × 7 windows and probabilities. For shapleycam, the \
peer gets a model whose parameters are not frozen (otherwise it fails where the head is linear); \
for cam, it gets the name of the head; for guidedgradcam, `interpolate_mode="bilinear"`. These \
methods are not compared: sscam, because torchcam draws its noise in another order, for all \
channels at once, and adds it to channels that are already scaled; refinecam, because the peer \
resizes each layer's map to the photo before it multiplies; rise, rollout, chefer, agcam, legrad \
and gradeclip, because no peer has them; attnlrp, because its peer cannot be imported together \
with transformers 5.
"""
OMITTED = {
    "scorecam * vit_b_16": "there are 768 channels, each takes a pass, and the model takes no "
    "smaller input: more than a minute.",
    "ablationcam * vit_b_16": "the same.",
    "iscam torchcam [!e]*": "ten passes for each channel: more than a minute of all models but "
    "efficientnet-lite0.",
    "gradcam captum vit_b_16": "the peer takes the mean over the wrong dimension of tokens.",
}
"""Patterns of "method peer model": what is not asked, and why."""

REASONS = {
    "gradcam++ grad-cam *": "it adds 1e-6 to the denominator 2G² + G³ ΣA, which outweighs 2G² as "
    "soon as |G| < 1e-3.",
    "gradcam++ torchcam *": "it divides a copy of α, and the result is not used, so α is never "
    "divided: channels are weighted by Σ G² relu(G).",
    "eigencam grad-cam *": "it centres each channel before the decomposition; the paper does not.",
    "fem grad-cam *": "it sums the activations, weighted by each channel's share of positions over "
    "the threshold; the paper sums the channels' means at those positions.",
    "xgradcam * vit_b_16": "rounding. cam runs what is below the layer without gradients, and "
    "there torch takes a fused attention (`torch.backends.mha`), whose results are off by some "
    "2e-6; Σ A_k, by which the method divides, nearly cancels behind a LayerNorm and magnifies "
    "that. With that attention switched off the maps agree to 7e-6.",
    "scorecam grad-cam *": "it enlarges channels so that the corners of the grids coincide; cam, "
    "like the paper's authors, so that the edges of the pixels coincide.",
    "scorecam torchcam *": "it scales a channel to 0 … 1 before it enlarges it. The paper scales "
    "it after that, because an enlarged channel no longer reaches 0 and 1.",
    "iscam torchcam *": "the same.",
    "ablationcam grad-cam *": "if the layer's minimum is not 0, it sets a channel not to 0 but to "
    "ten million below the minimum, and each further channel of a batch to ten million less "
    "than the one before. (For a negative score, which no predicted class here has, its map is "
    "inverted: cam divides by |y|.)",
    "smoothgradcam++ torchcam *": "it sums the activations of the last noisy copy and not those of "
    "the photo, weighted by that copy's gradient and not by D¹; it has Σ_ab D³ A where the "
    "paper has D³ Σ_ab A; and it adds 1e-8 to a denominator of the size of G².",
    "fullgrad grad-cam *": "it scales each channel to 0 … 1 separately; cam, like the paper's "
    "authors, scales each layer.",
    "fullgrad grad-cam efficientnet-lite0": "in addition, it knows only the biases of `Conv2d` and "
    "`BatchNorm2d`. This model's normalisations are subclasses of these, so it distributes the "
    "score over the pixels only.",
    "guided* * densenet121": "the model's last rectifier is a function, not a module: the peer "
    "does not guide it.",
    "guided* * efficientnet-lite0": "its rectifiers are `ReLU6`, which the peer does not guide: "
    "it takes the plain gradient.",
    "finercam grad-cam resnet50": "it adds 1e-9 to the sum of the rivals' probabilities. For an "
    "improbable class of this model, whose random logits are far apart, this sum is even "
    "smaller, so the score and the map vanish. cam divides before a number underflows.",
    "* grad-cam densenet121": "this concerns methods that take the layer's activations. The model "
    "applies a ReLU in place to the layer's output, of which the peer keeps no copy, so it "
    "takes relu(A) with the gradient at A.",
    "* torchcam densenet121": "because of the same ReLU, it takes relu(A) with the gradient at "
    "relu(A). captum and cam copy A.",
}
"""Patterns of "method peer model": why those maps may differ."""

Ask = Callable[["Scene", int], NDArray[np.float32]]
"""What a peer makes of a class: maps (n, h, w), neither normalised nor resized."""


@dataclass(frozen=True, eq=False)
class Scene:
    """What cam and the peers are asked about."""

    model: nn.Module
    images: Tensor
    layer: Layer
    classes: tuple[int, ...]

    @property
    def target(self) -> nn.Module:
        return self.model.get_submodule(self.layer.name)

    def fresh(self) -> Tensor:
        """The images, to be differentiated with respect to."""
        return self.images.clone().requires_grad_()


@dataclass
class Cell:
    worst: float = 0.0
    compared: int = 0
    constant: int = 0
    """Pairs of two constant maps: there is nothing to compare."""
    refused: str = ""
    """By cam: its sentence."""
    failed: str = ""
    """The peer: the first line of its error."""

    def __str__(self) -> str:
        if self.refused or self.failed:
            return "refused" if self.refused else "peer fails"
        mark = "✓" if self.worst <= TOLERANCE else "✗"
        return f"{mark} {self.worst:.1e}" if self.compared else "constant"


Rows = list[tuple[str, str]]
"""(method, peer), the table's."""
Cells = dict[tuple[str, str, str], Cell]
"""(method, peer, model) → how it went; nothing where the peer was not asked."""


def build(name: str) -> tuple[nn.Module, Tensor]:
    """The model and its two inputs."""
    if name == EMBEDDED.name:
        served = load(EMBEDDED.model_copy(update={"device": "cpu"}))
        photos = (skimage.data.chelsea(), skimage.data.coffee())
        views = [served.preprocessing.apply(Image.fromarray(each), "squash") for each in photos]
        pixels = np.stack([view.pixels for view in views])
        return served.module, served.normalise(pixels).contiguous()
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, weights=None)
    for parameter in model.parameters():
        if parameter.ndim > 1 and not parameter.any():  # a head that starts at zero says nothing
            nn.init.normal_(parameter, std=0.02)
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    return model.eval().requires_grad_(False), images


def scene_of(method: str, whole: Scene) -> Scene:
    """What is asked: see `SCOPE`. No cell should take much more than a minute."""
    known = METHODS[method]
    if not known.class_specific:
        return replace(whole, classes=whole.classes[:1])
    if known.at == "layer" and not known.cost.startswith("N"):
        return whole
    image = whole.images[:1]
    if known.at == "layer" and known.cost == "N forwards" and not reshaping(whole.layer):
        image = interpolate(image, size=(SMALL, SMALL), mode="bilinear", antialias=True)
    with torch.no_grad():
        best = int(whole.model(image).argmax())
    return replace(whole, images=image, classes=(best,))


def ours(method: str, scene: Scene) -> dict[int, NDArray[np.float32]]:
    """Class → maps (n, h, w).

    Raises:
        CamError: if the method is refused.
    """
    wanted = scene.classes
    found = explain(
        scene.model,
        scene.images,
        target=list(wanted),
        method=method,
        layer=scene.layer.name,
        budget=BUDGETS.get(method),
        signed=method in SIGNED,
    )
    return {
        index: np.stack([each.map for each in found[number :: len(wanted)]])
        for number, index in enumerate(wanted)
    }


def reshaping(layer: Layer) -> Callable[[Tensor], Tensor] | None:
    """What a peer has to be told of a layer that does not put its channels first."""
    grid = layer.grid
    if grid is None or grid.kind == "channels first":
        return None
    cells = (grid.height, grid.width, -1)
    return lambda out: out[:, grid.prefix :].reshape(len(out), *cells).permute(0, 3, 1, 2)


@lru_cache(len(CLASSES))
def grad_cam_pass(scene: Scene, index: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What it takes of the layer with the same hooks for all its methods of one pass: the output
    and its gradient."""
    with pytorch_grad_cam.GradCAM(scene.model, [scene.target], reshaping(scene.layer)) as taker:
        taker.activations_and_grads(scene.fresh())[:, index].sum().backward()
        kept = taker.activations_and_grads
        return kept.activations[0].numpy(), kept.gradients[0].numpy()


def grad_cam(peer: type[BaseCAM], scene: Scene, index: int) -> NDArray[np.float32]:
    """Before it rectifies, normalises and resizes."""
    targets = [ClassifierOutputTarget(index)] * len(scene.images)
    with peer(scene.model, [scene.target], reshaping(scene.layer)) as cam:
        return cam.get_cam_image(
            scene.images, scene.target, targets, *grad_cam_pass(scene, index), False
        )


class Unscaled(BaseCAM):
    """A peer whose maps stay as they are: not rectified, normalised or resized."""

    def compute_cam_per_layer(
        self, images: Tensor, targets: list[ClassifierOutputTarget], eigen_smooth: bool
    ) -> NDArray[np.float32]:
        kept = self.activations_and_grads
        taken = [kept.activations[0], kept.gradients[0] if kept.gradients else None]
        if self.detach:
            taken = [None if each is None else each.numpy() for each in taken]
        layer = self.target_layers[0]
        found = self.get_cam_image(images, layer, targets, *taken, eigen_smooth)
        # On release it would detach what it holds in place, which torch refuses for views.
        kept.activations, kept.gradients = [], []
        return found

    def aggregate_multi_layers(self, maps: NDArray[np.float32]) -> NDArray[np.float32]:
        return maps


def grad_cam_steps(peer: type[BaseCAM], scene: Scene, index: int) -> NDArray[np.float32]:
    """Of methods that pass through the model in their own way."""
    unscaled = type(peer.__name__, (Unscaled, peer), {})
    targets = [ClassifierOutputTarget(index)] * len(scene.images)
    with unscaled(scene.model, [scene.target], reshaping(scene.layer)) as cam:
        return cam(scene.images, targets)


def shapley_cam(scene: Scene, index: int) -> NDArray[np.float32]:
    """It differentiates the gradient, which depends on nothing if all parameters are frozen and
    what follows the layer is linear."""
    scene.model.requires_grad_(True)
    try:
        return grad_cam_steps(pytorch_grad_cam.ShapleyCAM, scene, index)
    finally:
        scene.model.requires_grad_(False)


def finer_cam(scene: Scene, index: int) -> NDArray[np.float32]:
    """It finds the rivals itself."""
    base = type("Base", (Unscaled, pytorch_grad_cam.GradCAM), {})
    reshape = reshaping(scene.layer)
    with pytorch_grad_cam.FinerCAM(scene.model, [scene.target], reshape, base) as cam:
        return cam(scene.fresh(), target_idx=index)


def torch_cam(peer: type[_CAM], scene: Scene, index: int, **options: Any) -> NDArray[np.float32]:
    reshape = reshaping(scene.layer)
    with peer(scene.model, scene.layer.name, reshape_transform=reshape, **options) as cam:
        scores = scene.model(scene.fresh())
        return cam(index, scores, normalized=False)[0].detach().numpy()


def torch_cams_cam(scene: Scene, index: int) -> NDArray[np.float32]:
    """Told the head: it finds one only where there is no other linear layer."""
    modules = scene.model.named_modules()
    *_, head = (name for name, module in modules if isinstance(module, nn.Linear))
    return torch_cam(torchcam.methods.CAM, scene, index, fc_layer=head)


def smooth_grad_cam(scene: Scene, index: int) -> NDArray[np.float32]:
    """It draws its noise from torch's own generator, which the seed makes the same as cam's."""
    torch.manual_seed(0)
    sigma = NOISE * float(scene.images.max() - scene.images.min())
    samples = BUDGETS["smoothgradcam++"]
    peer = torchcam.methods.SmoothGradCAMpp
    return torch_cam(peer, scene, index, num_samples=samples, std=sigma)


def captums_grad_cam(scene: Scene, index: int) -> NDArray[np.float32]:
    peer = LayerGradCam(scene.model, scene.target)
    return peer.attribute(scene.fresh(), index, relu_attributions=True)[:, 0].detach().numpy()


ASKS: dict[tuple[str, str], Ask] = {
    **{(method, "grad-cam"): partial(grad_cam, peer) for method, peer in GRAD_CAM.items()},
    **{(method, "grad-cam"): partial(grad_cam_steps, peer) for method, peer in STEPS.items()},
    ("shapleycam", "grad-cam"): shapley_cam,
    ("finercam", "grad-cam"): finer_cam,
    **{(method, "torchcam"): partial(torch_cam, peer) for method, peer in TORCHCAM.items()},
    ("cam", "torchcam"): torch_cams_cam,
    ("smoothgradcam++", "torchcam"): smooth_grad_cam,
    ("gradcam", "captum"): captums_grad_cam,
    **PIXELS,
}
PEERS = ("grad-cam", "torchcam", "captum")
ROWS = sorted(ASKS, key=lambda row: PEERS.index(row[1]))


def difference(method: str, mine: NDArray[np.float32], theirs: NDArray[np.float32]) -> float | None:
    """Between two maps (h, w); None where both are constant."""
    found = []
    for sign in (1, -1) if method in COMPONENTS else (1,):
        one, other = mine, sign * theirs.astype(np.float32)
        if method not in SIGNED:
            one, other = np.maximum(one, 0), np.maximum(other, 0)
        if np.ptp(one) > 0 or np.ptp(other) > 0:
            found.append(float(np.abs(minmax(one) - minmax(other)).max()))
    return min(found, default=None)


def compare(name: str, rows: Rows, cells: Cells) -> str:
    """Fills in the cells of a model; the layer."""
    model, images = build(name)
    layers = survey(model, images[:1])
    layer = next(each for each in layers if each.name == default_layer(layers))
    whole = Scene(model, images, layer, CLASSES)
    for method in dict.fromkeys(method for method, _ in rows):
        peers = [peer for each, peer in rows if each == method]
        asked = [each for each in peers if not matching(OMITTED, f"{method} {each} {name}")]
        if asked:
            scene = scene_of(method, whole)
            try:
                mine = ours(method, scene)
            except CamError as error:
                cells.update({(method, peer, name): Cell(refused=str(error)) for peer in asked})
                continue
            cells.update(
                {(method, peer, name): cell_of(method, peer, scene, mine) for peer in asked}
            )
    return layer.name


def cell_of(method: str, peer: str, scene: Scene, mine: dict[int, NDArray[np.float32]]) -> Cell:
    cell = Cell()
    for index in scene.classes:
        try:
            with redirect_stderr(StringIO()):  # progress bars, and warnings of hooks
                theirs = ASKS[method, peer](scene, index)
        except Exception as error:  # whatever it is, the table says so
            return Cell(failed=first_line(error))
        for pair in zip(mine[index], theirs, strict=True):
            found = difference(method, *pair)
            cell.constant += found is None
            cell.compared += found is not None
            cell.worst = max(cell.worst, found or 0.0)
    return cell


def first_line(error: BaseException) -> str:
    """Of the error that came first: a peer's tidying up may raise another."""
    while error.__context__:
        error = error.__context__
    return (str(error) or type(error).__name__).splitlines()[0]


def matching(patterns: Iterable[str], key: str) -> list[str]:
    return [pattern for pattern in patterns if fnmatchcase(key, pattern)]


def notes(cells: Cells, layers: dict[str, str]) -> list[str]:
    """Paragraphs, then a reason for each disagreement."""
    named = {" ".join(key): cell for key, cell in cells.items()}
    compared = [cell for cell in cells.values() if cell.compared]
    failing = [key for key, cell in named.items() if cell.worst > TOLERANCE]
    refused, failed = told(named, "refused"), told(named, "failed")
    where = ", ".join(f"{name} `{layer}`" for name, layer in layers.items())
    versions = ", ".join(f"{each} {version(each)}" for each in ("torch", "torchvision", *PEERS))
    counts = (
        f"{len(compared) - len(failing)} of {len(compared)} cells agree (✓, ≤ {TOLERANCE:.0e}), "
        f"{len(failing)} differ (✗); in {sum(bool(cell.refused) for cell in cells.values())} more "
        f"cam refuses the method, in {sum(bool(cell.failed) for cell in cells.values())} the peer "
        f"fails. {sum(cell.compared for cell in compared)} pairs of maps were compared; in "
        f"{sum(cell.constant for cell in cells.values())} more both were constant: there is no "
        "evidence for the class.\n"
    )
    lines = [
        counts,
        f"Layers: {where}. Versions: {versions}.\n",
        SCOPE,
        "Why some differ (method, peer, model):\n",
    ]
    lines += [
        f"- `{pattern}`: {reason}"
        for pattern, reason in REASONS.items()
        if any(fnmatchcase(each, pattern) for each in failing)
    ]
    lines += [f"- `{each}`: not explained." for each in failing if not matching(REASONS, each)]
    for title, found in (("Refused by cam", refused), ("The peer fails", failed)):
        lines += [f"\n{title} (method, peer, model):\n", *found] if found else []
    lines += ["\nA dash, not asked:\n", *(f"- `{key}`: {why}" for key, why in OMITTED.items())]
    return lines


def told(cells: dict[str, Cell], what: str) -> list[str]:
    """The sentences of cells of that kind, each once."""
    found: dict[str, list[str]] = {}
    for key, cell in cells.items():
        if sentence := getattr(cell, what):
            found.setdefault(sentence, []).append(f"`{key}`")
    return [f"- {', '.join(keys)}: {sentence.rstrip('.')}." for sentence, keys in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(MODELS), metavar="NAME")
    parser.add_argument("--methods", nargs="+", default=["*"], metavar="METHOD")
    parser.add_argument("--write", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    cells: Cells = {}
    rows = [row for row in ROWS if any(fnmatchcase(row[0], each) for each in arguments.methods)]
    shown = track(arguments.names, console=Console(stderr=True))
    layers = {name: compare(name, rows, cells) for name in shown}
    heads = ["method", "peer", *layers]
    cells_of = [[*row, *(str(cells.get((*row, name), "—")) for name in layers)] for row in rows]
    lines = notes(cells, layers)
    table = Table(*heads)
    for each in cells_of:
        table.add_row(*each)
    console = Console()
    console.width = max(console.width, 130)  # of a table folded to 80 no number is whole
    console.print(table)
    console.print("\n".join(lines), markup=False, highlight=False)
    if arguments.write:
        arguments.write.write_text(
            f"# Parity\n\nMade by `python -m bench.parity --write {arguments.write}`: the greatest "
            "difference between cam's maps and a peer's, rectified and min-max normalised before "
            "they are resized, in float32, over all inputs and classes asked.\n\n"
            + "".join(
                f"| {' | '.join(row)} |\n" for row in (heads, ["---"] * len(heads), *cells_of)
            )
            + "\n"
            + "\n".join(lines)
            + "\n"
        )


if __name__ == "__main__":
    main()
