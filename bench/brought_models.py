"""Models as people bring them: is the answer right, or refused with a true reason?

    python -m bench.brought_models [--kinds place meaning]

Small networks with seeded weights behind preprocessing of their own, with endings of many kinds,
without a head, with layers that run twice. The truth does not come from `cam`: Grad-CAM is computed
with autograd on the network inside and put on the input by `grid_sample`, and probabilities are
those of the model's own formula. `place`: where maps lie. `order`: positions that no placement
explains. `meaning`: what outputs mean. `layers`: which layer is explained.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import affine_grid, grid_sample, interpolate, normalize, pad

from cam import CamError, Explanation, default_layer, explain, survey

Outcome = Literal["right", "refused truly", "refused falsely", "crashed", "wrong"]
OUTCOMES: Final[tuple[Outcome, ...]] = (
    "right", "refused truly", "refused falsely", "crashed", "wrong",
)  # fmt: skip
SIDE: Final = 64
ALIKE: Final = 0.95
"""Least correlation of a map with the true one."""


@dataclass(frozen=True)
class Case:
    """One model and what is true of it."""

    kind: str
    name: str
    right: Callable[[], bool]
    """Explains the model and returns whether the answer is right."""
    refused: str | None = None
    """Words of the true reason, if the model cannot be explained."""


class Behind(nn.Module):
    """A network behind preprocessing, and before an ending."""

    def __init__(
        self, net: nn.Module, change: Callable[[Tensor], Tensor], end: Callable[[Tensor], Any]
    ) -> None:
        super().__init__()
        self.net, self.change, self.end = net, change, end
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Any:
        return self.end(self.net(self.change(x)))


def same(x: Tensor) -> Tensor:
    return x


def padded_net() -> nn.Sequential:
    """Convolutions with padding; the layer "4" has an eighth of the input's side."""
    widths = ((3, 8), (8, 12), (12, 16))
    parts = [part for one, two in widths for part in (nn.Conv2d(one, two, 3, 2, 1), nn.ReLU())]
    return _bright(nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)))


def patch_net() -> nn.Sequential:
    """Patches of 4 pixels, as a transformer's embedding, and two convolutions of 1 × 1."""
    parts = [nn.Conv2d(3, 8, 4, 4), nn.ReLU(), nn.Conv2d(8, 12, 1), nn.ReLU(), nn.Conv2d(12, 16, 1)]
    return _bright(nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)))


def _bright(net: nn.Sequential) -> nn.Sequential:
    """A network that looks for what is bright: all weights are positive."""
    torch.manual_seed(0)
    for weights in net.parameters():
        nn.init.uniform_(weights, 0, 0.1)
    return net


NETS: Final = {"convolutions": padded_net, "patches": patch_net}

# Name → change, input size, and the input's (top, left, bottom, right) that the network sees, with
# how it is turned: transposed, upside down, mirrored.
Place = tuple[Callable[[Tensor], Tensor], tuple[int, int], tuple[float, ...], str]
PLACES: Final[dict[str, Place]] = {
    "nothing": (same, (64, 64), (0, 0, 64, 64), ""),
    "resize": (lambda x: interpolate(x, (64, 64), mode="bilinear"), (80, 96), (0, 0, 80, 96), ""),
    "letterbox": (
        lambda x: pad(interpolate(x, (48, 64), mode="bilinear"), (0, 0, 8, 8)),
        (72, 96), (-12, 0, 84, 96), "",
    ),
    "resize and crop": (
        lambda x: interpolate(x, (80, 106), mode="bilinear")[..., 8:72, 21:85],
        (72, 96), (7.2, 19.02, 64.8, 76.98), "",
    ),
    "centre crop": (lambda x: x[..., 16:80, 16:80], (96, 96), (16, 16, 80, 80), ""),
    "crop by an eighth": (lambda x: x[..., 8:56, 8:56], (64, 64), (8, 8, 56, 56), ""),
    "small crop": (lambda x: x[..., 40:104, 60:124], (144, 144), (40, 60, 104, 124), ""),
    "normalise and crop": (
        lambda x: ((x - 0.1) / 0.9)[..., 8:72, :64],
        (80, 80), (8, 0, 72, 64), "",
    ),
    "pad": (lambda x: pad(x, (12, 12, 12, 12)), (40, 40), (-12, -12, 52, 52), ""),
    "pad below": (lambda x: pad(x, (0, 16, 0, 8)), (56, 48), (0, 0, 64, 64), ""),
    "mirror": (lambda x: x.flip(3), (64, 64), (0, 0, 64, 64), "m"),
    "upside down": (lambda x: x.flip(2), (64, 64), (0, 0, 64, 64), "u"),
    "transpose": (lambda x: x.mT, (64, 64), (0, 0, 64, 64), "t"),
    "rotate": (lambda x: x.rot90(1, (2, 3)), (64, 64), (0, 0, 64, 64), "tm"),
    "rotate by half": (lambda x: x.rot90(2, (2, 3)), (64, 64), (0, 0, 64, 64), "um"),
    "crop and mirror": (lambda x: x[..., 16:80, 16:80].flip(3), (96, 96), (16, 16, 80, 80), "m"),
}  # fmt: skip


def _shuffled(x: Tensor) -> Tensor:
    (one, two), (three, four) = (row.chunk(2, 3) for row in x.chunk(2, 2))
    return torch.cat([torch.cat([four, one], 3), torch.cat([two, three], 3)], 2)


ORDERS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "rolled down": lambda x: x.roll(24, 2),
    "rolled both ways": lambda x: x.roll((16, 16), (2, 3)),
    "rolled by half": lambda x: x.roll(32, 3),
    "windows": _shuffled,
}
DEPENDING: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "crop of the brightest": lambda x: _brightest(x),
    "mirrored by the photo": lambda x: (
        x[..., 8:56, 8:56].flip(3)
        if x[..., 32:].mean() > x[..., :32].mean()
        else x[..., 8:56, 8:56]
    ),
}


def _brightest(x: Tensor) -> Tensor:
    sums = nn.functional.avg_pool2d(x.mean(1, keepdim=True), 40, 8)[0, 0]
    row, column = divmod(int(sums.argmax()), sums.shape[1])
    return x[..., 8 * row :, 8 * column :][..., :40, :40]


def photo(height: int, width: int) -> Tensor:
    """Weak noise with a bright square off the middle."""
    x = 0.1 * torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(1))
    top, left = height // 2 - 12, width // 2 - 16
    x[..., top : top + 12, left : left + 12] += 3
    return x


def _true_map(net: nn.Sequential, place: Place, x: Tensor) -> Tensor:
    """Grad-CAM at the layer "4" of the network, without the relu, on the pixels of the input."""
    change, (height, width), (top, left, bottom, right), turn = place
    with torch.enable_grad():
        activation = net[:5](change(x)).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(net[5:](activation)[0, 1], activation)
    small = (gradient.mean((2, 3), keepdim=True) * activation.detach()).sum(1, keepdim=True)
    small = small.mT if "t" in turn else small
    small = small.flip(2) if "u" in turn else small
    small = small.flip(3) if "m" in turn else small
    # A pixel's place in the box, −1 … 1: affine along each axis.
    y, x_ = height / (bottom - top), width / (right - left)
    offsets = (height - top - bottom) / (bottom - top), (width - left - right) / (right - left)
    theta = torch.tensor([[[x_, 0, offsets[1]], [0, y, offsets[0]]]], dtype=torch.float32)
    grid = affine_grid(theta, [1, 1, height, width], align_corners=False)
    placed = grid_sample(small, grid, padding_mode="border", align_corners=False)
    return (placed * (grid.abs() <= 1).all(3)[:, None])[0, 0]


def _lies(name: str, make: Callable[[], nn.Sequential]) -> bool:
    place, net = PLACES[name], make()
    x = photo(*place[1])
    wanted = _true_map(net, place, x)
    (found,) = explain(Behind(net, place[0], same), x, target=1, layer="net.4", signed=True)
    shown = interpolate(torch.from_numpy(found.map)[None, None], place[1], mode="bilinear")[0, 0]
    both = torch.stack([shown.flatten(), wanted.flatten()])
    return float(torch.corrcoef(both)[0, 1]) >= ALIKE


def _explained(change: Callable[[Tensor], Tensor], make: Callable[[], nn.Sequential]) -> bool:
    explain(Behind(make(), change, same), photo(SIDE, SIDE), layer="net.4")
    return False  # its positions lie nowhere


def _soft(z: Tensor) -> Tensor:
    return z.softmax(1)


PROBABILITIES: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "softmax": _soft,
    "softmax, clamped": lambda z: _soft(z).clamp(1e-4, 1 - 1e-4),
    "weighted ensemble": lambda z: 0.3 * _soft(z) + 0.7 * _soft(2 * z),
    "renormalised": lambda z: _soft(z)[:, :4] / _soft(z)[:, :4].sum(1, keepdim=True),
    "exp / sum": lambda z: (z - z.amax(1, keepdim=True)).exp() / (
        z - z.amax(1, keepdim=True)
    ).exp().sum(1, keepdim=True),
    "hierarchy": lambda z: torch.cat(
        [z[:, :1].sigmoid() * z[:, 1:3].softmax(1), (-z[:, :1]).sigmoid() * z[:, 3:].softmax(1)], 1
    ),
    "ordinal": lambda z: (lambda c: torch.cat([1 - c[:, :1], c[:, :-1] - c[:, 1:], c[:, -1:]], 1))(
        z.sigmoid().cumprod(1)
    ),
    "sigmoids": lambda z: z.sigmoid(),
    "hard sigmoids": lambda z: nn.functional.hardsigmoid(z),
    "sigmoids, clamped": lambda z: z.sigmoid().clamp(1e-3, 1 - 1e-3),
    "one sigmoid": lambda z: z[:, :1].sigmoid(),
    "(B, C, 1, 1)": lambda z: _soft(z)[:, :, None, None],
}  # fmt: skip
LOGITS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "logits": same,
    "log-probabilities": lambda z: z.log_softmax(1),
    "temperature": lambda z: z / 7,
    "(B, C, 1, 1) logits": lambda z: z[:, :, None, None],
    "small logits": lambda z: 0.5 + 0.01 * z,
}
MIXED: Final[dict[str, tuple[Callable[[Tensor], Tensor], str]]] = {
    "percentages": (lambda z: 100 * _soft(z), "not in 0 … 1"),
    "softmax beside logits": (
        lambda z: torch.cat([_soft(z[:, :3]), z[:, 3:]], 1), "some of the model's outputs",
    ),
}  # fmt: skip


def _raw(end: Callable[[Tensor], Any]) -> tuple[Explanation, Tensor, int]:
    torch.manual_seed(3)
    net = padded_net()
    nn.init.normal_(net[-1].get_parameter("weight"), std=3)
    model, x = Behind(net, same, end), photo(SIDE, SIDE)
    (found,) = explain(model, x, target=0)
    return found, model(x).flatten(), 0


def _is_probability(end: Callable[[Tensor], Tensor]) -> bool:
    found, raw, index = _raw(end)
    wanted = float(1 - raw[0]) if len(raw) == 1 else float(raw[index])
    return found.probability is not None and abs(found.probability - wanted) < 1e-4


def _is_logit(end: Callable[[Tensor], Tensor]) -> bool:
    found, raw, index = _raw(end)
    wanted = float(raw.softmax(0)[index])
    return found.probability is not None and abs(found.probability - wanted) < 1e-4


def _has_meaning(end: Callable[[Tensor], Tensor]) -> bool:
    _raw(end)
    return False  # it has none


def _is_value(count: int) -> bool:
    net = padded_net()
    nn.init.normal_(net[-1].get_parameter("weight"), std=3)
    model, x = Behind(net, same, lambda z: 40 + z[:, :count]), photo(SIDE, SIDE)
    (found,) = explain(model, x, target=0, activation="none")
    return found.probability is None and abs(found.score - float(model(x)[0, 0])) < 1e-3


def _headless(name: str) -> bool:
    model, size = _FEATURES[name]()
    explain(model.eval(), torch.randn(1, 3, size, size), target=0)
    return False


def _timm(name: str, size: int) -> tuple[nn.Module, int]:
    import timm

    return timm.create_model(name, num_classes=0), size


def _vit() -> tuple[nn.Module, int]:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
        image_size=64, patch_size=16,
    )  # fmt: skip
    return ViTModel(config), 64


_FEATURES: Final[dict[str, Callable[[], tuple[nn.Module, int]]]] = {
    "timm resnet10t without a head": partial(_timm, "resnet10t", 64),
    "timm mobilenetv3 without a head": partial(_timm, "mobilenetv3_small_050", 64),
    "ViTModel": _vit,
    "ResNet-18 without its last part": lambda: (_without_the_last_part(1), 64),
    "ResNet-18 without its last two parts": lambda: (_without_the_last_part(2), 64),
    "embeddings of length 1": lambda: (
        nn.Sequential(padded_net()[:-1], nn.Linear(16, 32), Behind(nn.Identity(), same, normalize)),
        64,
    ),
}


def _without_the_last_part(count: int) -> nn.Module:
    from torchvision.models import resnet18

    return nn.Sequential(*list(resnet18().children())[:-count])


class Segmenter(nn.Module):
    """Features and a classifier of each pixel, enlarged or not."""

    def __init__(self, end: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1))
        self.out = nn.Conv2d(8, 4, 1)
        self.end = end

    def forward(self, x: Tensor) -> Any:
        return self.end(self.out(self.stem(x).relu()))


SEGMENTERS: Final[dict[str, Callable[[Tensor], Any]]] = {
    "logits": same,
    "enlarged": lambda z: interpolate(z, scale_factor=4, mode="bilinear"),
    "softmax": lambda z: z.softmax(1),
    "a dictionary": lambda z: {"out": z},
}


def _not_its_logits(end: Callable[[Tensor], Any]) -> bool:
    torch.manual_seed(0)
    model = Segmenter(end).eval()
    return default_layer(survey(model, photo(SIDE, SIDE))) != "out"


class Twice(nn.Module):
    """A network that runs on an image and on a changed one."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.change = padded_net(), change

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x) + self.net(self.change(x))
        return out


def _one_call(change: Callable[[Tensor], Tensor], layer: str, mirrored: bool) -> bool:
    (found,) = explain(Twice(change).eval(), photo(SIDE, SIDE), target=1, layer=layer)
    return bool(found.map.any()) and mirrored == bool(found.placement and found.placement.mirrored)


class Mixing(nn.Module):
    """The score of an image depends on the others of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = padded_net()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x - x.mean(0, keepdim=True) * (len(x) > 1))
        return out


def _alone() -> bool:
    model, two = Mixing().eval(), torch.cat([photo(SIDE, SIDE), photo(SIDE, SIDE).flip(3)])
    (lone,) = explain(model, two[:1], target=1, layer="net.4")
    first, _ = explain(model, two, target=1, layer="net.4")
    return bool(abs(first.map - lone.map).max() < 1e-5)


def _stochastic() -> bool:
    class Dropping(Behind):
        def forward(self, x: Tensor) -> Any:
            return nn.functional.dropout(super().forward(x), 0.5, training=True)

    (found,) = explain(Dropping(padded_net(), same, same), photo(SIDE, SIDE), target=1)
    return bool(found.warnings)


def _channels_last() -> bool:
    explain(padded_net().eval(), photo(SIDE, SIDE).movedim(1, 3), target=1)
    return False


def cases() -> Iterator[Case]:
    """Yield all cases."""
    for net, make in NETS.items():
        for name in PLACES:
            yield Case("place", f"{name}, {net}", partial(_lies, name, make))
        for name, change in ORDERS.items():
            reason = "no scale, shift or turn explains"
            yield Case("order", f"{name}, {net}", partial(_explained, change, make), reason)
        for name, change in DEPENDING.items():
            explained = partial(_explained, change, make)
            yield Case("order", f"{name}, {net}", explained, "depend")
    for name, end in PROBABILITIES.items():
        yield Case("meaning", name, partial(_is_probability, end))
    for name, end in LOGITS.items():
        yield Case("meaning", name, partial(_is_logit, end))
    for count in (1, 3):
        yield Case("meaning", f"regression of {count}", partial(_is_value, count))
    for name in _FEATURES:
        yield Case("meaning", name, partial(_headless, name), "SimilarityTarget")
    for name, (end, reason) in MIXED.items():
        yield Case("meaning", name, partial(_has_meaning, end), reason)
    for name, end in SEGMENTERS.items():
        yield Case("layers", f"segmenter, {name}", partial(_not_its_logits, end))
    flip: Callable[[Tensor], Tensor] = partial(torch.flip, dims=(3,))
    yield Case("layers", "two calls, the first", partial(_one_call, flip, "net.4#1", False))
    yield Case("layers", "two calls, the mirrored one", partial(_one_call, flip, "net.4#2", True))
    yield Case(
        "layers", "two calls, none named", partial(_one_call, flip, "auto", False), "several times"
    )
    yield Case("layers", "images that mix", _alone)
    yield Case("layers", "stochastic", _stochastic)
    yield Case("layers", "channels last", _channels_last, "channels")


def judged(case: Case) -> tuple[Outcome, str]:
    """Return how a case came out, and the reason of a refusal or a crash."""
    try:
        good = case.right()
    except CamError as error:
        if case.refused is None:
            return "refused falsely", str(error)
        return ("refused truly" if case.refused in str(error) else "refused falsely"), str(error)
    except Exception as error:  # that is what is looked for
        return "crashed", f"{type(error).__name__}: {error}"
    return ("right" if good else "wrong"), ""


def main() -> None:
    kinds = ("place", "order", "meaning", "layers")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=kinds)
    chosen = parser.parse_args().kinds
    console, counts = Console(), defaultdict[str, Counter[Outcome]](Counter)
    for case in cases():
        if case.kind in chosen:
            outcome, reason = judged(case)
            counts[case.kind][outcome] += 1
            if outcome not in ("right", "refused truly"):
                console.print(f"{case.kind}: {case.name}: {outcome} {reason}", markup=False)
    table = Table("kind", "models", *OUTCOMES)
    for kind, found in counts.items():
        table.add_row(kind, str(found.total()), *(str(found[each]) for each in OUTCOMES))
    every = sum(counts.values(), Counter[Outcome]())
    table.add_row("all", str(every.total()), *(str(every[each]) for each in OUTCOMES))
    console.print(table)


if __name__ == "__main__":
    main()
