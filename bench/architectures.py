"""Models of torchvision, timm and transformers: explained, in the right place, or refused?

    python -m bench.architectures [--write docs/architectures.md] [--shard 1/2] [NAME …]

Each model is built with seeded random weights, looked at (`cam.survey`) and explained at its
default layer. Then a bright, rough patch is put at sixteen places of a photo, and at every layer
that `survey` calls explainable the output must move where the patch is. The places, the photo and
the judgement are not those by which `cam.positions.locate` finds the grids.

Feature maps whose shape leaves no doubt and that move nowhere in particular (random weights let the
last layers of some models see everything a little) are counted apart, not as placed, and so are
those of fewer than 25 positions, where `cam.positions.locate` believes the shape. Tokens that do
so, and maps that move where the patch would be in a mirrored or turned image, are misplaced.

A model is *wrong* if a map is not finite, not of the layer's grid, or constant for all targets
(random weights leave some classes without positive evidence), if a layer is misplaced, or if an
attention method that is said to work does not. What is refused has its reason in the table.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
import skimage.data
import timm
import torch
import torchvision
import transformers
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor, nn
from torch.nn.functional import interpolate

from cam import CamError, ClassTarget, Layer, Target, default_layer, explain, survey
from cam.drawing.placement import Box
from cam.hooks.calls import Modules
from cam.hooks.grids import Grid, grid_of_map
from cam.methods.abilities import unsuited
from cam.positions.judgement import TELLING

TIMM = """
    bat_resnext26ts beit_base_patch16_224 botnet26t_256 caformer_s18 cait_xxs24_224
    cait_xxs36_224 coat_lite_tiny coat_tiny coatnet_0_rw_224 coatnet_rmlp_nano_rw_224
    coatnext_nano_rw_224 convformer_s18 convit_small convit_tiny convmixer_1024_20_ks9_p14
    convmixer_768_32 convnext_atto convnext_atto_rms convnext_nano convnext_tiny convnextv2_tiny
    cpubone_nano cpubone_t0 crossvit_15_240 crossvit_9_240 crossvit_tiny_240 cs3darknet_focus_s
    cs3darknet_s cs3edgenet_x cspnext_s cspnext_tiny cspresnet50 cspresnext50 darknet17
    davit_small davit_tiny deit3_small_patch16_224 deit_tiny_distilled_patch16_224
    deit_tiny_patch16_224 densenet121 dla46_c dla46x_c dm_nfnet_f0 dpn48b dpn68 eca_nfnet_l0
    ecaresnet26t edgenext_small edgenext_x_small edgenext_xx_small efficientformer_l1
    efficientformer_l3 efficientformerv2_s0 efficientformerv2_s1 efficientnet_b0
    efficientnet_lite1 efficientvim_m1 efficientvim_m1_dist efficientvit_b0 efficientvit_b1
    efficientvit_m0 efficientvit_m1 ese_vovnet19b_slim eva02_tiny_patch14_224 fasternet_t0
    fasternet_t1 fastvit_t12 fastvit_t8 fbnetc_100 focalnet_tiny_lrf focalnet_tiny_srf
    gcvit_xtiny gcvit_xxtiny gernet_s ghostnet_050 ghostnet_100 ghostnetv3_050 gmixer_12_224
    gmlp_s16_224 gmlp_ti16_224 halonet_h1 haloregnetz_b hardcorenas_a hardcorenas_b hgnetv2_b0
    hgnetv2_b1 hiera_small_224 hiera_tiny_224 hieradet_small hrnet_w18 hrnet_w18_small
    hrnet_w18_small_v2 iformer_s iformer_t inception_next_atto inception_next_tiny inception_v3
    inception_v4 lambda_resnet26t lamhalobotnet50ts_256 lcnet_050 lcnetv2_base lcnetv2_small
    legacy_seresnet18 levit_128 levit_128s lowformer_b0 lowformer_b1 mambaout_femto
    mambaout_tiny maxvit_nano_rw_256 maxvit_pico_rw_256 maxvit_rmlp_pico_rw_256
    maxvit_tiny_tf_224 maxxvit_rmlp_nano_rw_256 mixer_b16_224 mixnet_s mnasnet_small
    mobilenetv1_100 mobilenetv2_100 mobilenetv3_large_100 mobilenetv3_small_050
    mobilenetv4_conv_small mobilenetv4_hybrid_medium mobileone_s0 mobileone_s1 mobilevit_s
    mobilevit_xxs mobilevitv2_050 mobilevitv2_100 mvitv2_small mvitv2_tiny nest_tiny
    nextvit_base nextvit_small nf_regnet_b0 nf_regnet_b1 nf_resnet26 pit_ti_224 pit_xs_224
    poolformer_s12 poolformerv2_s12 pvt_v2_b0 pvt_v2_b1 rdnet_tiny regnetx_002 regnety_002
    regnety_016 regnetz_b16 repghostnet_050 repvgg_a0 repvgg_b0 repvit_m0_9 repvit_m1
    res2net50_26w_4s res2next50 resmlp_12_224 resnest14d resnest26d resnet10t resnet18 resnet26
    resnet26t resnet33ts resnet50 resnetaa34d resnetblur18 resnetrs50 resnetv2_18 resnetv2_50
    resnext26ts rexnet_100 rexnetr_100 samvit_base_patch16_224 sebotnet33ts_256 sehalonet33ts
    selecsls42b semnasnet_075 sequencer2d_s seresnet18 shvit_s1 skresnet18 spnasnet_100
    starnet_s1 swiftformer_xs swin_s3_tiny_224 swin_tiny_patch4_window7_224
    swinv2_cr_tiny_ns_224 swinv2_tiny_window8_256 test_byobnet test_convnext test_efficientnet
    test_mambaout test_nfnet test_resnet test_vit test_vit2 tf_efficientnet_lite0
    tf_efficientnetv2_b0 tiny_vit_5m_224 tinynet_a tinynet_e tnt_s_legacy_patch16_224
    tnt_s_patch16_224 tresnet_m twins_pcpvt_small twins_svt_small vgg11 vgg11_bn visformer_tiny
    vit_base_patch16_224 vit_little_patch16_reg4_gap_256 vit_relpos_small_patch16_224
    vit_relpos_small_patch16_rpn_224 vit_small_patch14_reg4_dinov2 vit_small_patch16_18x2_224
    vit_small_patch16_dinov3 vit_small_resnet26d_224 vit_srelpos_small_patch16_224
    vit_tiny_patch16_224 vit_tiny_patch16_dinov3_qkvb vit_tiny_r_s16_p8_224
    vit_wee_patch16_reg1_gap_256 vit_xsmall_patch16_clip_224 vitamin_small_224 volo_d1_224
    xception41 xcit_nano_12_p16_224 xcit_tiny_12_p16_224
""".split()  # noqa: SIM905  # 229 names are read as text
DETECTORS = (
    "fasterrcnn_resnet50_fpn", "fasterrcnn_mobilenet_v3_large_320_fpn", "maskrcnn_resnet50_fpn",
    "keypointrcnn_resnet50_fpn", "retinanet_resnet50_fpn", "fcos_resnet50_fpn", "ssd300_vgg16",
    "ssdlite320_mobilenet_v3_large",
)  # fmt: skip
SEGMENTERS = ("fcn_resnet50", "deeplabv3_mobilenet_v3_large", "deeplabv3_resnet50",
              "lraspp_mobilenet_v3_large")  # fmt: skip
SMALL = {
    "image_size": 128, "num_labels": 10, "hidden_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
}  # fmt: skip
TRANSFORMERS: dict[str, Callable[[], nn.Module]] = {
    "vit": lambda: transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL)),
    "deit": lambda: transformers.DeiTForImageClassification(transformers.DeiTConfig(**SMALL)),
    "beit": lambda: transformers.BeitForImageClassification(transformers.BeitConfig(**SMALL)),
    "dinov2": lambda: transformers.Dinov2ForImageClassification(
        transformers.Dinov2Config(**SMALL, patch_size=16)
    ),
    "dinov2_with_registers": lambda: transformers.Dinov2WithRegistersForImageClassification(
        transformers.Dinov2WithRegistersConfig(**SMALL, patch_size=16)
    ),
    "swin": lambda: transformers.SwinForImageClassification(
        transformers.SwinConfig(image_size=128, embed_dim=24, depths=(1, 1, 1), num_heads=(2, 2, 2))
    ),
    "convnext": lambda: transformers.ConvNextForImageClassification(
        transformers.ConvNextConfig(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1])
    ),
    "segformer": lambda: transformers.SegformerForSemanticSegmentation(
        transformers.SegformerConfig()
    ),
    "mobilevit": lambda: transformers.MobileViTForImageClassification(
        transformers.MobileViTConfig(image_size=128)
    ),
    "hiera": lambda: transformers.HieraForImageClassification(
        transformers.HieraConfig(embed_dim=32, depths=[1, 1, 2, 1], image_size=[224, 224])
    ),
}
PLACES = 16
TARGETS = 5
Where = Literal["there", "elsewhere", "nowhere"]
Place = tuple[float, float, float, float]
"""Top, left, height and width of a patch, as shares of the part of the image that a layer sees."""
ATTENTION = ("rollout", "chefer", "legrad")


@dataclass(frozen=True)
class Verdict:
    """How it went with one model."""

    how: str
    """explained, refused or wrong."""
    layer: str = ""
    what: str = ""
    placed: int = 0
    """Explainable layers, all of them in the right place."""
    attention: str = ""


def build(library: str, name: str) -> tuple[nn.Module, int]:
    """The model, in eval mode, and the side of its input."""
    torch.manual_seed(0)
    model, side = created(library, name)
    for parameter_name, parameter in model.named_parameters():
        if parameter.any():
            continue
        # A head that starts at zero says nothing, and a branch whose last normalisation starts at
        # zero (LeViT's, most residual ones) lets no layer after it see more than the first did.
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.02)
        elif not parameter_name.endswith("bias"):
            nn.init.ones_(parameter)
    return model.eval().requires_grad_(False), side


def created(library: str, name: str) -> tuple[nn.Module, int]:
    if library == "timm":
        model = timm.create_model(name, pretrained=False)
        return model, int(model.pretrained_cfg["input_size"][-1])
    if library == "transformers":
        model = TRANSFORMERS[name]()
        side = getattr(model.config, "image_size", 128)
        return model, int(side[0] if isinstance(side, list | tuple) else side)
    none = {"weights": None, "weights_backbone": None}
    if name in DETECTORS:
        sizes = {} if name.startswith("ssd") else {"min_size": 224, "max_size": 224}
        # A detector that knows nothing is sure of nothing.
        least = "box_score_thresh" if "rcnn" in name else "score_thresh"
        return torchvision.models.get_model(name, **none, **sizes, **{least: 0.0}), 224
    if name in SEGMENTERS:
        return torchvision.models.get_model(name, **none), 224
    if name == "inception_v3":
        return torchvision.models.inception_v3(init_weights=False), 299
    config = {"init_weights": False} if name == "googlenet" else {}
    model = torchvision.models.get_model(name, **config)
    weights = torchvision.models.get_model_weights(name).DEFAULT
    crop = weights.transforms().crop_size[0] if name.startswith(("vit", "maxvit")) else 224
    return model, int(getattr(model, "image_size", crop))


def photo(side: int) -> Tensor:
    pixels = torch.from_numpy(skimage.data.astronaut().copy()).permute(2, 0, 1)[None] / 127.5 - 1
    return interpolate(pixels, size=(side, side), mode="bilinear", antialias=True)


def verdict(model: nn.Module, side: int) -> Verdict:
    image = photo(side)
    try:
        layers = survey(model, image)
        name = default_layer(layers)
        layer = next(each for each in layers if each.name == name)
        if layer.shape is None or layer.grid is None:
            return Verdict("wrong", name, "a default layer without a grid")
        targets = targets_of(model, image)
        maps = [each.map for each in explain(model, image, target=targets, layer=name)]
    except CamError as error:
        return Verdict("refused", what=str(error))
    grid = layer.grid
    if any(each.shape != (grid.height, grid.width) for each in maps):
        return Verdict("wrong", name, f"a map of {maps[0].shape}")
    if not all(np.isfinite(each).all() for each in maps):
        return Verdict("wrong", name, "not finite")
    if all(np.ptp(each) == 0 for each in maps):
        return Verdict("wrong", name, "constant maps")
    usable = [each for each in layers if each.explainable]
    lost = misplaced(model, image, usable)
    shapes = {each.name: (1, *(each.shape or ())) for each in layers}
    last = {each.name for each in usable if each.grid and each.grid.kind == "channels last"}
    clear = {
        name: grid_of_map(
            (shapes[name][0], shapes[name][3], *shapes[name][1:3])
            if name in last
            else shapes[name],
            (side, side),
        )
        for name in lost
    }
    unclear = [
        name
        for name, elsewhere in lost.items()
        if (known := clear[name]) and (not elsewhere or known.height * known.width < TELLING)
    ]
    away = [name for name in lost if name not in unclear]
    if away:
        return Verdict("wrong", name, f"{len(away)} of {len(usable)} layers misplaced: {away[:3]}")
    attention = attending(model, image, name, grid)
    if attention.startswith("wrong"):
        return Verdict("wrong", name, attention)
    shape = " × ".join(map(str, layer.shape))
    what = f"{shape} ({grid.kind}): {grid.height} × {grid.width}"
    if unclear:
        what += f"; {len(unclear)} layers that do not tell"
    parts = sum(bool(each.grid and each.grid.placement) for each in usable)
    if parts:
        what += f"; {parts} layers see a part of the image"
    return Verdict("explained", name, what, len(usable) - len(unclear), attention)


def targets_of(model: nn.Module, image: Tensor) -> list[Target]:
    """The best classes or boxes."""
    with torch.no_grad():
        output: Any = model(image)
    if isinstance(output, list):
        boxes = output[0]["boxes"].tolist()[:TARGETS]
        return [ClassTarget(box=tuple(box)) for box in boxes] or [ClassTarget()]
    if isinstance(output, dict | transformers.utils.ModelOutput):
        output = output["logits"] if "logits" in output else output["out"]
    logits: Tensor = output if isinstance(output, Tensor) else output[0]
    if logits.ndim == 4:
        return [ClassTarget()]
    return [
        ClassTarget(index)
        for index in logits[0].topk(min(TARGETS, logits.shape[1])).indices.tolist()
    ]


def misplaced(model: nn.Module, image: Tensor, layers: list[Layer]) -> dict[str, bool]:
    """The layers whose outputs do not move where a patch of the image is changed, and whether they
    move elsewhere: where it would be in a mirrored or turned image."""
    side = image.shape[-1]
    rng = torch.Generator().manual_seed(7)
    size = max(side // 7, 1)
    tops = (torch.linspace(0.06, 0.94, PLACES) * (side - size)).round().int().tolist()
    configuration = torch.randperm(PLACES, generator=rng).tolist()
    corners = [(top, tops[turn]) for top, turn in zip(tops, configuration, strict=True)]
    outputs: dict[str, Tensor] = {}
    moved: dict[str, list[Tensor]] = {layer.name: [] for layer in layers}
    grids = {layer.name: layer.grid for layer in layers}

    def keep(name: str, module: nn.Module, args: Any, output: Tensor) -> None:
        grid = grids[name]
        assert grid
        if name in outputs:
            change = grid.apply(output.float()) - outputs[name]
            moved[name].append(change.square().sum(1)[0].sqrt())
        else:
            outputs[name] = grid.apply(output.float()).clone()

    modules = Modules(model)
    with torch.no_grad(), ExitStack() as scope:
        for name in grids:
            scope.callback(modules[name].register_forward_hook(partial(keep, name)).remove)
        model(image.clone())
        for top, left in corners:
            changed = image.clone()
            patch = 2.0 + 1.5 * torch.randn(1, image.shape[1], size, size, generator=rng)
            changed[:, :, top : top + size, left : left + size] += patch
            model(changed)
    found = {}
    for name, each in moved.items():
        seen = [seen_at(grids[name], corner, size, side) for corner in corners]
        inside = [turn for turn, place in enumerate(seen) if place] if each else []
        if inside:
            places = [place for place in seen if place]
            found[name] = follows([each[turn] for turn in inside], places)
    return {name: where == "elsewhere" for name, where in found.items() if where != "there"}


def seen_at(grid: Grid | None, corner: tuple[int, int], size: int, side: int) -> Place | None:
    """Where a patch of the image lies on the part of it that a layer sees: its top, left, height
    and width, as shares of the part; None if its middle lies outside."""
    assert grid
    box = grid.placement.box if grid.placement else Box(0, 0, side, side)
    height, width = box.bottom - box.top, box.right - box.left
    top, left = (corner[0] - box.top) / height, (corner[1] - box.left) / width
    place = top, left, size / height, size / width
    return place if 0 <= top + place[2] / 2 <= 1 and 0 <= left + place[3] / 2 <= 1 else None


def follows(moved: list[Tensor], patches: list[Place]) -> Where:
    """Whether what moves is where the patches are: most positions that move most lie within one
    position of the patch, or the middle of what moves follows it on both axes, or each patch is
    nearer to what it moves than in 99 % of random pairings. (Random weights let the last layers of
    some models see everything a little.)"""
    values = torch.stack(moved).double().numpy()
    total = values.sum((1, 2))
    # What is strided over moves nothing: the other patches tell.
    moving = total > 0
    if moving.sum() < 3:
        return "there"
    values = values[moving] / total[moving, None, None]
    patches = [patch for patch, each in zip(patches, moving.tolist(), strict=True) if each]
    contrast = values - values.mean(0)
    height, width = values.shape[1:]
    near = 0
    found = []
    for each, (top, left, high, wide) in zip(contrast, patches, strict=True):
        row, column = np.unravel_index(int(each.argmax()), each.shape)
        y, x = (row + 0.5) / height, (column + 0.5) / width
        found.append((y, x))
        near += (top - 1.5 / height <= y <= top + high + 1.5 / height) and (
            left - 1.5 / width <= x <= left + wide + 1.5 / width
        )
    if near >= math.ceil(2 / 3 * len(patches)):
        return "there"
    weights = contrast.clip(min=0)
    weights /= weights.sum((1, 2), keepdims=True)
    rows = (weights.sum(2) * np.arange(height)).sum(1)
    columns = (weights.sum(1) * np.arange(width)).sum(1)
    places = np.array([(top + high / 2, left + wide / 2) for top, left, high, wide in patches])
    measured = [
        np.corrcoef(middle, truth)[0, 1]
        for middle, truth, cells in zip((rows, columns), places.T, (height, width), strict=True)
        if cells > 1
    ]
    points = np.array(found)
    if min(measured) >= 0.7 or paired(points, places, 0.01):
        return "there"
    turned = (
        np.where(mirror, 1 - points, points)[:, axes]
        for mirror in ((0, 0), (0, 1), (1, 0), (1, 1))
        for axes in ([0, 1], [1, 0])
    )
    return "elsewhere" if any(paired(each, places, 0.0001) for each in turned) else "nowhere"


def paired(found: NDArray[np.float64], wanted: NDArray[np.float64], p: float) -> bool:
    """Whether the points (n, 2) lie nearer to those wanted than in all but a share p of other
    orders of these."""
    # However far away what moves may be, it counts as a third of the side.
    away = np.linalg.norm(found[:, None] - wanted[None], axis=2).clip(max=1 / 3)
    rng, indices = np.random.default_rng(0), np.arange(len(found))
    orders = rng.permuted(np.tile(indices, (round(10 / p), 1)), axis=1)
    others = away[indices, orders].mean(1)
    return bool(np.mean(others <= away[indices, indices].mean()) <= p)


def attending(model: nn.Module, image: Tensor, layer: str, grid: Grid) -> str:
    """Which attention methods work; "wrong: …" if one does not although it is said to, or the other
    way round."""
    cannot = unsuited(model, image, layer, grid)
    works = []
    for method in ATTENTION:
        try:
            (found,) = explain(model, image, method=method, layer=layer)
        except CamError as error:
            if method not in cannot:
                return f"wrong: {method} is said to work, but {error}"
            continue
        if method in cannot:
            return f"wrong: {method} works, but is refused: {cannot[method]}"
        if not np.isfinite(found.map).all() or np.ptp(found.map) == 0:
            return f"wrong: the map of {method} is constant or not finite"
        works.append(method)
    return ", ".join(works)


def known() -> list[tuple[str, str]]:
    return [
        *(("torchvision", name) for name in torchvision.models.list_models(torchvision.models)),
        *(("torchvision", name) for name in (*SEGMENTERS, *DETECTORS)),
        *(("transformers", name) for name in TRANSFORMERS),
        *(("timm", name) for name in TIMM),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--shard", default="1/1", help="which part of how many, such as 1/2")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="adds rows as they come, goes on")
    parser.add_argument("--write", type=Path, metavar="FILE", help="a document of the rows")
    arguments = parser.parse_args()
    part, parts = map(int, arguments.shard.split("/"))
    console = Console(stderr=True)
    rows: dict[str, str] = {}
    if arguments.rows and arguments.rows.exists():
        rows = {line.split(" | ")[0]: line for line in arguments.rows.read_text().splitlines()}
    for turn, (library, name) in enumerate(known()):
        key = f"| {library}:{name}"
        if key in rows or turn % parts != part - 1:
            continue
        if arguments.names and name not in arguments.names:
            continue
        started = perf_counter()
        try:
            found = verdict(*build(library, name))
        except Exception as error:  # one model must not stop the others
            found = Verdict("wrong", what=f"crashed with {type(error).__name__}: {error}")
        rows[key] = (
            f"{key} | {found.how} | `{found.layer}` | {found.what} | {found.placed} | "
            f"{found.attention} |"
        )
        if arguments.rows:
            with arguments.rows.open("a") as file:
                file.write(rows[key] + "\n")
        console.print(rows[key], f"{perf_counter() - started:.1f} s", highlight=False)
        gc.collect()
    counts = {how: sum(f" | {how} | " in row for row in rows.values()) for how in
              ("explained", "refused", "wrong")}  # fmt: skip
    layers = sum(int(row.split(" | ")[-2]) for row in rows.values())
    total = ", ".join(f"{count} {how}" for how, count in counts.items())
    console.print(f"{total}; {layers} layers placed")
    if arguments.write:
        arguments.write.write_text(
            "# Architectures\n\n"
            f"Made by `python -m bench.architectures --write {arguments.write}`: "
            f"{len(rows)} of the {len(known())} models that it lists: {total}. At each of the "
            f"{layers} layers that are called explainable, a patch that is changed in a "
            'photo moves the map\'s positions there. (Layers "that do not tell" are not counted: '
            "with random weights, each of their positions sees a little of the whole photo.)\n\n"
            "| model | | default layer | its output and the map | layers | attention methods |\n"
            "|---|---|---|---|---|---|\n" + "\n".join(rows[key] for key in sorted(rows)) + "\n"
        )
    sys.exit(counts["wrong"] > 0)


if __name__ == "__main__":
    main()
