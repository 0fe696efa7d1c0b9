"""Do other tools give a map the same scores? The command is `python -m bench.evaluation parity`.

On identical images, maps and random numbers: the greatest difference of what `cam.evaluate` says
from what a peer says. The maps are random and smooth, and no two of their values are equal; metrics
that make maps again get Grad-CAM's at the default layer. ROAD adds no noise on either side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, partial
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from bench import evaluation_peers as peers
from bench.evaluation_scenes import PHOTOS, Map, loaded, photos, smooth_map, tell_apart
from cam import Explanation, default_layer, evaluate, explain, survey
from cam.drawing.heatmap import minmax
from cam.drawing.placement import resize
from cam.evaluation import road
from cam.evaluation.imputation import impute
from cam.evaluation.metrics import FINE_STEP, PERCENTAGES, MetricOptions, step_of
from cam.evaluation.perturbation import squares
from service.models.catalog import EMBEDDED

TOLERANCE = 1e-5
SHARED = (50.0, 70.0, 90.0)
"""Percentages of 224 × 224 pixels of which Quantus removes as many pixels as the others."""
EVEN = 28
"""A number of steps that divides 224 × 224 pixels."""
SIDE = 56
"""Height and width of a square of infidelity, of 224."""


@dataclass(frozen=True, eq=False)
class Scene:
    """What cam and the peers are asked about."""

    model: nn.Module
    images: Tensor
    """One image, (1, 3, H, W)."""
    index: int
    values: Map
    """A random map (H, W)."""
    explanation: Explanation

    @property
    def explained(self) -> Map:
        """The explanation's map at the size of the image, scaled to 0 … 1."""
        return self.enlarged(self.explanation.map)

    def enlarged(self, small: Map) -> Map:
        height, width = self.images.shape[-2:]
        return minmax(resize(small, height, width))

    def explain(self, images: Tensor) -> Map:
        """Return the map of another image (1, 3, H, W), as the layer gives it."""
        made = self.explanation
        (found,) = explain(
            self.model,
            images,
            target=self.index,
            method=made.method,
            layer=made.layer,
            signed=made.signed,
        )
        return found.map


@cache
def score(scene: Scene, metric: str, *, again: bool = False, **chosen: Any) -> float:
    """Return cam's score of the random map; of the explanation if maps have to be made again."""
    found = evaluate(
        scene.model,
        scene.images[0],
        scene.explanation if again else scene.values,
        target=None if again else scene.index,
        metrics=[metric],
        options=MetricOptions(**chosen, baselines=()),
    )[metric]
    assert found.value is not None, found.warning
    return found.value


Value = float | NDArray[np.float32]
Say = Callable[[Scene], Value]


@dataclass(frozen=True)
class Row:
    name: str
    peer: str
    ours: Say
    theirs: Say


@cache
def grad_cam_road(scene: Scene) -> dict[str, float]:
    asked = (scene.model, scene.images, scene.index, scene.values)
    return peers.grad_cam_road(*asked, percentages=PERCENTAGES)


@cache
def adcc(scene: Scene) -> dict[str, float]:
    return peers.adcc(
        scene.model,
        scene.images,
        scene.index,
        scene.explained,
        lambda images: scene.enlarged(scene.explain(images)),
    )


@cache
def grad_cam_alike(scene: Scene) -> dict[str, float]:
    masked = scene.images * torch.from_numpy(scene.explained)
    return peers.grad_cam_alike(scene.explained, scene.enlarged(scene.explain(masked)))


def grad_cam_arcc(scene: Scene) -> float:
    return peers.grad_cam_arcc(
        scene.model,
        scene.images,
        scene.index,
        scene.explained,
        lambda images: scene.enlarged(scene.explain(images)),
    )


@cache
def torchcam_areas(scene: Scene, steps: int, *, blur: bool) -> dict[str, float]:
    asked = (scene.model, scene.images, [scene.index], scene.values[None])
    return peers.torchcam_areas(*asked, steps=steps, blur=blur)


def curves() -> list[Row]:
    found = []
    for metric in ("deletion", "insertion"):
        insert = metric == "insertion"
        for steps, name in ((30, "30 steps"), ("fine", f"steps of {FINE_STEP} pixels")):

            def rise(scene: Scene, insert: bool = insert, steps: Any = steps) -> float:
                step = step_of(MetricOptions(steps=steps), scene.values.size)
                asked = (scene.model, scene.images, scene.index, scene.values)
                return peers.rise(*asked, step=step, insert=insert)

            ours = partial(score, metric=metric, steps=steps)
            found.append(Row(f"{metric}, {name}", "RISE's code", ours, rise))

        def flipped(scene: Scene, insert: bool = insert) -> float:
            step = step_of(MetricOptions(steps=30), scene.values.size)
            asked = (scene.model, scene.images, [scene.index], scene.values[None])
            return peers.quantus_areas(*asked, step=step, insert=insert)[0]

        ours = partial(score, metric=metric, steps=30)
        found.append(Row(f"{metric}, 30 steps", "quantus", ours, flipped))
        for steps in (30, EVEN):

            def areas(scene: Scene, metric: str = metric, steps: int = steps) -> float:
                return torchcam_areas(scene, steps, blur=metric == "insertion")[metric]

            ours = partial(score, metric=metric, steps=steps)
            found.append(Row(f"{metric}, {steps} steps", "torchcam", ours, areas))
    return found


def roads() -> list[Row]:
    found = [
        Row(
            metric,
            "grad-cam",
            partial(score, metric=metric),
            lambda scene, metric=metric: grad_cam_road(scene)[metric],  # type: ignore[misc]
        )
        for metric in ("road_morf", "road_lerf", "road")
    ]
    for shares in (SHARED, PERCENTAGES):

        def quantus(scene: Scene, shares: tuple[float, ...] = shares) -> float:
            asked = (scene.model, scene.images, scene.index, scene.values)
            return peers.quantus_road_probability(*asked, percentages=shares)

        name = f"road_morf, {', '.join(f'{each:g}' for each in shares)} %"
        ours = partial(score, metric="road_morf", percentages=shares)
        found.append(
            Row(name.replace("10, 20, 30, 40, 50, 60, 70, 80", "10 …"), "quantus", ours, quantus)
        )
    for peer, way in (("grad-cam", peers.grad_cam_imputed), ("quantus", peers.quantus_imputed)):

        def imputed(scene: Scene, way: Any = way) -> Value:
            found: Value = np.stack([way(scene.images, mask) for mask in removed(scene)])
            return found

        found.append(Row("imputed pixels, 10, 50, 90 %", peer, our_imputed, imputed))
    return found


def removed(scene: Scene) -> list[NDArray[np.bool_]]:
    return [scene.values >= 1 - share for share in (0.1, 0.5, 0.9)]


def our_imputed(scene: Scene) -> Value:
    masks = torch.from_numpy(np.stack(removed(scene)))
    return impute(scene.images[0], masks).numpy()


def masked() -> list[Row]:
    found = []
    for metric in ("confidence_drop", "confidence_increase"):
        for peer, way in (("torchcam", peers.torchcam_masked), ("grad-cam", peers.grad_cam_masked)):

            def theirs(scene: Scene, metric: str = metric, way: Any = way) -> float:
                asked = (scene.model, scene.images, scene.index, scene.values)
                return float(way(*asked)[metric])

            found.append(Row(metric, peer, partial(score, metric=metric), theirs))
    for peer, known, metrics in (
        (
            "ADCC's code",
            adcc,
            ("adcc", "coherency", "complexity", "confidence_drop", "confidence_increase"),
        ),
        ("grad-cam", grad_cam_alike, ("coherency", "complexity")),
    ):
        for metric in metrics:

            def same(scene: Scene, metric: str = metric, known: Any = known) -> float:
                return float(known(scene)[metric])

            ours = partial(score, metric=metric, again=True)
            found.append(Row(f"{metric}, Grad-CAM", peer, ours, same))
    ours = partial(score, metric="arcc", again=True)
    return [*found, Row("arcc, Grad-CAM", "grad-cam", ours, grad_cam_arcc)]


def perturbed() -> list[Row]:
    def small(scene: Scene) -> Map:
        return scene.values / np.float32(SIDE**2)

    def infidelity(scene: Scene, *, normalize: bool) -> float:
        options = MetricOptions()
        rng = np.random.default_rng(options.seed)
        height, width = scene.images.shape[-2:]
        masks = squares(options.squares, height, width, rng)
        values = scene.values if normalize else small(scene)
        asked = (scene.model, scene.images, scene.index, values, masks)
        return peers.captum_infidelity(*asked, normalize=normalize)

    def unscaled(scene: Scene) -> float:
        found = evaluate(
            scene.model,
            scene.images[0],
            small(scene),
            target=scene.index,
            metrics=["infidelity"],
            options=MetricOptions(scale_free=False, baselines=()),
        )["infidelity"]
        assert found.value is not None
        return found.value

    def sensitivity(scene: Scene) -> float:
        options = MetricOptions()
        generator = torch.Generator().manual_seed(options.seed)
        shape = (options.samples, *scene.images.shape[1:])
        noise = (2 * torch.rand(shape, generator=generator) - 1) * options.radius
        return peers.captum_sensitivity(scene.images, scene.explain, noise)

    scaled = partial(score, metric="infidelity")
    again = partial(score, metric="sensitivity", again=True)
    return [
        Row("infidelity", "captum", scaled, partial(infidelity, normalize=True)),
        Row("infidelity, not scaled", "captum", unscaled, partial(infidelity, normalize=False)),
        Row("sensitivity, Grad-CAM", "captum", again, sensitivity),
    ]


ROWS = [*curves(), *roads(), *masked(), *perturbed()]
PEERS = ("captum", "grad-cam", "quantus", "torchcam")

SCOPE = """\
How they were asked. The photos are {photos} of `skimage.data`, squashed to 224 × 224; the class \
is the predicted one. The map is random and smooth (7 × 7 numbers, enlarged), and its values are \
ranks. No two are equal, so no tool has to choose an order. Rows with "Grad-CAM" score the signed \
Grad-CAM map at the default layer. `cam.explain` makes it again on both sides, so these rows \
compare the scores and not the maps. A number is |cam − peer|, divided by the peer's value where \
that is above 1. resnet50 and vit_b_16 have random weights. Their heads are shifted and scaled \
until the photos have a mean probability of one half; before, it is 1, or 1 / 1000, for any \
image. The code of the authors of RISE and of ADCC is not a package, and is written here by hand. \
The imputation of ROAD adds no noise on either side. The squares of infidelity and the noise of \
sensitivity are those of cam for the seed 0. In the row "infidelity, not scaled" the map is \
divided by the number of pixels in a square.
"""

REASONS = {
    "*, 30 steps torchcam *": "30 steps of 1673 pixels are 14 pixels more than an image "
    "has. torchcam weighs the last, shorter step by its share of the pixels. cam, like the authors "
    "of RISE, gives all steps the same weight. With 28 steps of 1792 pixels the two agree.",
    "road_morf, 10 * quantus *": "at 10, 20, 30, 40, 60 and 80 % quantus removes one pixel fewer "
    "from 224 × 224 pixels: int(n p / 100). pytorch-grad-cam and cam remove what is not below the "
    "percentile. At 50, 70 and 90 % all three remove the same pixels, and agree.",
    "imputed pixels* * *": "cam solves the equations iteratively in float32, to a residual of 1e-7 "
    "of the right-hand side. The peers solve them directly in float64. The pixels are in units of "
    "the preprocessed image, to which ROAD otherwise adds noise of σ = 0.01.",
    "arcc* grad-cam efficientnet-lite0": "its ROAD removes all pixels that equal the threshold, "
    "and this map has equal ones: at 20 and 80 % it removes 184 and 71 pixels more.",
    "confidence_drop grad-cam *": "its drop is the difference of the probabilities. The authors of "
    "the metric divide that by the probability of the whole image.",
}
"""Patterns of "row peer model": why those scores differ."""

CONVENTIONS = """\
What these versions of the peers do in their own way:

- quantus, `ROAD`, reports accuracy: the share of images whose predicted class is the given one.
  It reports no probability. The accuracy is that of the first batch alone
  (`evaluation_scores[0]`); images after the first `batch_size` are ignored. A colour image with a
  map of one channel raises IndexError, because the indices count the values of three channels and
  the imputation counts pixels. Here only the first channel has the map, and the probabilities are
  taken from the model. There is only one order, the most relevant pixels first.
- quantus, `PixelFlipping`: `features_in_step` counts the values of all channels, but an assertion
  wants it to divide the number of pixels, so 30 steps of 224 × 224 pixels are refused. Here the
  assertion is lifted. The curve has no point for the whole image; here it is added. The default
  substrate "black" is the least value of the preprocessed image, not 0. There is no insertion;
  here the values of the image are put back into the blurred image. The area (`return_auc`) is not
  divided by the number of steps, and needs `np.trapz`, which numpy 2.4 no longer has.
- grad-cam, ROAD: `percentile` is the percentage that is kept. All pixels that equal the threshold
  are removed. If 30 % of a rectified map are zeros, every percentile up to 30 removes the whole
  image, without a warning. For the least relevant pixels it takes `1 - map` in float32, which
  makes small values equal. cam always removes the stated number of pixels, and takes equal ones
  in random order.
- grad-cam, coherency: it adds 1e-8 to the product of the standard deviations, so a constant map
  has a coherency of 0.5. In cam it is 0.
- torchcam adds 1e-7 to the denominator of the drop, and takes logits unless it is told to take
  probabilities. Insertion and deletion have the same substrate; here it is asked twice.
- captum, `infidelity` with `normalize=True`: it computes a square as a sum of three terms in
  float32, which cancel, so a value near 0 can be negative. If a map is repeated for three
  channels, the heat is counted three times. This changes only the value that is not scaled.
- captum, `sensitivity_max`, calls the function first with a tuple and then with tensors. If the
  function returns a tensor for the tuple, captum iterates over the batch.
- The code of ADCC takes the probability of the whole image, and the map of the masked image, for
  the predicted class, whatever class is asked about. It divides by 0 where a part of the mean is
  0; in cam the mean is then 0, its limit.
"""


@dataclass
class Cell:
    worst: float = 0.0
    failed: str = ""
    """The peer: the first line of its error."""

    def __str__(self) -> str:
        if self.failed:
            return "peer fails"
        return f"{'✓' if self.worst <= TOLERANCE else '✗'} {self.worst:.1e}"


Cells = dict[tuple[str, str, str], Cell]
"""(row, peer, model) → how it went."""


def run(names: Sequence[str], count: int, patterns: Sequence[str], *, write: Path | None) -> None:
    """Compare, show the table, and write the document."""
    rows = [row for row in ROWS if any(fnmatchcase(row.name, each) for each in patterns)]
    cells: Cells = {}
    for name in names:
        for scene in track(scenes(name, count), name, console=Console(stderr=True)):
            for row in rows:
                cell = cells.setdefault((row.name, row.peer, name), Cell())
                compare(row, scene, cell)
    heads = ["metric", "peer", *names]
    lines = [
        [row.name, row.peer, *(str(cells[row.name, row.peer, name]) for name in names)]
        for row in rows
    ]
    text = notes(cells, count)
    table = Table(*heads)
    for each in lines:
        table.add_row(*each)
    console = Console()
    console.width = max(console.width, 130)
    console.print(table)
    console.print(text, markup=False, highlight=False)
    if write:
        marked = [heads, ["---"] * len(heads), *lines]
        write.write_text(
            "# Parity of scores\n\n"
            f"Made by `python -m bench.evaluation parity --write {write}`: the greatest difference "
            "between what `cam.evaluate` and other tools say of the same map, in float32.\n\n"
            + "".join(f"| {' | '.join(each)} |\n" for each in marked)
            + f"\n{text}"
        )


def scenes(name: str, count: int) -> list[Scene]:
    served = loaded(name)
    model, images = served.module, photos(served, count)
    if name != EMBEDDED.name:
        tell_apart(model, images)
    layer = default_layer(survey(model, images[:1]))
    found = []
    for number, image in enumerate(images):
        (explanation,) = explain(model, image[None], method="gradcam", layer=layer, signed=True)
        with torch.no_grad():
            index = int(model(image[None]).argmax())
        height, width = image.shape[-2:]
        values = smooth_map(height, width, seed=number)
        found.append(Scene(model, image[None], index, values, explanation))
    return found


def compare(row: Row, scene: Scene, cell: Cell) -> None:
    with patch.object(road, "NOISE", 0.0):
        ours = np.asarray(row.ours(scene), np.float64)
    try:
        with redirect_stderr(StringIO()), redirect_stdout(StringIO()):
            theirs = np.asarray(row.theirs(scene), np.float64)
    except Exception as error:  # whatever it is, the table says so
        cell.failed = f"{type(error).__name__}: {error}".splitlines()[0]
        return
    apart = np.abs(ours - theirs) / np.maximum(np.abs(theirs), 1)
    cell.worst = max(cell.worst, float(apart.max()))


def notes(cells: Cells, count: int) -> str:
    """Return the paragraphs below the table."""
    named = {" ".join(key): cell for key, cell in cells.items()}
    failed = {key: cell.failed for key, cell in named.items() if cell.failed}
    apart = [key for key, cell in named.items() if cell.worst > TOLERANCE and key not in failed]
    versions = ", ".join(f"{each} {version(each)}" for each in ("torch", "torchvision", *PEERS))
    told = ", ".join(f"`{each}`" for each in PHOTOS[:count])
    counts = (
        f"{len(named) - len(apart) - len(failed)} of {len(named)} cells agree "
        f"(✓, ≤ {TOLERANCE:.0e}), {len(apart)} differ (✗). Versions: {versions}.\n"
    )
    lines = [counts, SCOPE.format(photos=told)]
    reasons = [
        f"- `{pattern}`: {reason}"
        for pattern, reason in REASONS.items()
        if any(fnmatchcase(each, pattern) for each in apart)
    ]
    unknown = [
        f"- `{each}`: not explained."
        for each in apart
        if not any(fnmatchcase(each, pattern) for pattern in REASONS)
    ]
    if reasons or unknown:
        lines += ["Why some differ (metric, peer, model):\n", *reasons, *unknown, ""]
    if failed:
        lines += ["The peer fails:\n", *(f"- `{key}`: {why}" for key, why in failed.items()), ""]
    return "\n".join([*lines, CONVENTIONS])
