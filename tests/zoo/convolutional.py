"""Convolutional networks: classifiers and segmenters."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torchvision
from torch import Tensor, nn
from torch.nn.functional import interpolate

from tests.zoo.parts import Net, pooled, wrapped


class Small(nn.Module):
    """conv → relu → conv → relu → mean pooling → linear; 8 × 8 inputs, three classes."""

    def __init__(self, *, inplace: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.relu1 = nn.ReLU(inplace=inplace)
        self.conv2 = nn.Conv2d(4, 5, 3, padding=1, stride=2)
        self.relu2 = nn.ReLU(inplace=inplace)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.classified(self.second(self.first(x)))

    def first(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu1(self.conv1(x))
        return out

    def second(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu2(self.conv2(x))
        return out

    def classified(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.dropout(x.mean(dim=(2, 3))))
        return out


class OfModules(Small):
    """The same, of modules alone: it has a rule of LRP for each operation."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def classified(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.dropout(self.pool(x)))
        return out


class Fork(Small):
    """Two branches: conv1 is before both, conv2 and the head in one of them; a number besides,
    which is not the batch's."""

    def __init__(self) -> None:
        super().__init__()
        self.side = nn.Conv2d(4, 5, 1)
        self.scale = Net(lambda x: torch.tensor(2.0))

    def second(self, x: Tensor) -> Tensor:
        self.side(x)
        found = super().second(x)
        return found * self.scale(x)  # type: ignore[no-any-return]


class Around(Small):
    """`Small` with a function before it, which may change its images, and one of its logits."""

    def __init__(
        self,
        before: Callable[[Tensor], Any],
        after: Callable[[Tensor], Any],
    ) -> None:
        super().__init__()
        self.before, self.after = before, after

    def forward(self, x: Tensor) -> Any:
        changed = self.before(x)
        return self.after(super().forward(x if changed is None else changed))


def small(*, inplace: bool = False, seed: int = 0) -> Small:
    torch.manual_seed(seed)
    return Small(inplace=inplace).eval()


def around(
    before: Callable[[Tensor], Any] = lambda x: x,
    after: Callable[[Tensor], Any] = lambda logits: logits,
    *,
    seed: int = 0,
) -> Around:
    torch.manual_seed(seed)
    return Around(before, after).eval()


def segmenter() -> nn.Module:
    """Four classes, seeded."""
    torch.manual_seed(0)
    model: nn.Module = torchvision.models.segmentation.lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=4
    )
    return model.eval()


def normalising(net: nn.Module, *, in_place: bool = True) -> Net:
    """Normalises what it is given before a network: the caller's own tensor, or a new one."""
    return wrapped(net, before=lambda x: x.sub_(0.5).mul_(2) if in_place else (x - 0.5) * 2).eval()


def twice(change: Callable[[Tensor], Tensor]) -> Net:
    """The logits of the image, and twice those of a change of it, by the same layers."""

    def forward(x: Tensor, conv: nn.Module, relu: nn.Module, head: nn.Module) -> Any:
        first, second = (head(relu(conv(each)).mean((2, 3))) for each in (x, change(x)))
        return first + 2 * second

    torch.manual_seed(0)
    return Net(
        forward, conv=nn.Conv2d(3, 4, 3, padding=1), relu=nn.ReLU(), head=nn.Linear(4, 3)
    ).eval()


def skips(*, pair: bool = False) -> Net:
    """After `middle` the outputs of `first` and `side` are read, but not that of `unused`. The
    output of `pair` is not a tensor."""

    def forward(x: Tensor, **parts: nn.Module) -> Any:
        first = parts["first"](x)
        side = parts["side"](parts["unused"](first).relu())
        if pair:
            side, _ = parts["pair"](side)
        middle = parts["middle"](side)
        return parts["head"]((middle + first * side).relu().mean((2, 3)))

    return Net(
        forward,
        first=nn.Conv2d(3, 4, 3, padding=1),
        unused=nn.Conv2d(4, 4, 1),
        side=nn.Conv2d(4, 4, 1),
        pair=Net(lambda x: (x, x)),
        middle=nn.Conv2d(4, 4, 3, padding=1),
        head=nn.Linear(4, 3),
    ).eval()


def arranged(put: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Net:
    """The output of `layer` is multiplied by what an earlier module has returned for another
    arrangement of the same numbers."""

    def forward(x: Tensor, **parts: nn.Module) -> Any:
        x = parts["stem"](x)
        attended = parts["attention"](put(x))
        bias = parts["bias"](torch.arange(8))  # the same for every image
        mixed = parts["layer"](x) * (back(attended) + bias)
        return parts["head"](mixed.tanh().mean((2, 3)))

    torch.manual_seed(0)
    return Net(
        forward,
        stem=nn.Conv2d(3, 4, 3, padding=1),
        attention=nn.Tanh(),
        bias=nn.Embedding(8, 8),
        layer=nn.Conv2d(4, 4, 1),
        head=nn.Linear(4, 3),
    ).eval()


def unet(ending: Callable[[Tensor], Tensor] = lambda logits: logits) -> Net:
    """Two resolutions joined by a skip connection, then `out`, then whatever `ending` does."""

    def forward(
        x: Tensor, down: nn.Module, middle: nn.Module, up: nn.Module, out: nn.Module
    ) -> Tensor:
        fine = down(x)
        coarse = interpolate(middle(fine), scale_factor=2)
        return ending(out(up(torch.cat([fine, coarse], 1))))

    return Net(
        forward,
        down=nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()),
        middle=nn.Sequential(nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.ReLU()),
        up=nn.Sequential(nn.Conv2d(10, 5, 3, padding=1), nn.ReLU()),
        out=nn.Conv2d(5, 4, 1),
    )


def fcn() -> Net:
    """The scores of two resolutions are added and enlarged."""

    def forward(x: Tensor, **parts: nn.Module) -> dict[str, Tensor]:
        fine = parts["fine"](x)
        coarse = parts["score_coarse"](parts["coarse"](fine))
        scores = parts["score_fine"](fine) + interpolate(coarse, scale_factor=2)
        return {"out": interpolate(scores, x.shape[-2:], mode="bilinear")}

    return Net(
        forward,
        fine=nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU()),
        coarse=nn.Sequential(nn.Conv2d(4, 6, 3, 2, 1), nn.ReLU()),
        score_fine=nn.Conv2d(4, 3, 1),
        score_coarse=nn.Conv2d(6, 3, 1),
    )


def coder(channels: int = 3, stride: int = 1) -> nn.Module:
    """Returns pictures: of the input's channels at its size, or of others."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride, 1), nn.ReLU(), nn.Conv2d(8, channels, 3, 1, 1)
    ).eval()


def headless() -> nn.Module:
    """A backbone: its features are pooled, and there is no head."""
    torch.manual_seed(0)
    model: nn.Module = torchvision.models.resnet18(weights=None)
    model.fc = nn.Identity()
    return model.eval()


def of_parts(net: nn.Module, *parts: Callable[[Tensor], Tensor]) -> nn.Module:
    """A network that runs once for each of several parts of its input."""
    model = Net(lambda x, net: torch.stack([net(part(x)) for part in parts]).mean(0), net=net)
    return model.eval().requires_grad_(False)


def changed_between(
    change: Callable[[Tensor], Tensor], early: nn.Module, late: nn.Module, width: int
) -> nn.Module:
    """Its late layers get a change of what its early layers return, `width` channels."""
    model = Net(
        lambda x, early, late, head: head(late(change(early(x))).mean((2, 3))),
        early=early,
        late=late,
        head=nn.Linear(width, 5),
    )
    return model.eval().requires_grad_(False)


def six_convolutions(channels: int, stride: int) -> nn.Sequential:
    """The first two have a stride; twelve channels come out."""
    layers = [nn.Conv2d(channels, 12, 3, stride, 1), nn.ReLU(), nn.Conv2d(12, 12, 3, stride, 1)]
    for _ in range(4):
        layers += [nn.ReLU(), nn.Conv2d(12, 12, 3, 1, 1)]
    return nn.Sequential(*layers)


def deep(change: Callable[[Tensor], Tensor] = lambda x: x) -> nn.Module:
    """Two parts of six convolutions each, and a change of the features between them."""
    return changed_between(change, six_convolutions(3, 2), six_convolutions(12, 1), 12)


def turned_inside() -> Net:
    """Layers whose outputs are mirrored, turned, rows, the same for each image, or mixed."""

    def forward(x: Tensor, **parts: nn.Module) -> Any:
        flipped = parts["flipped"](parts["conv"](x).flip(3))
        a = parts["turned"](flipped.flip(3).transpose(2, 3)).transpose(2, 3)
        row = parts["row"](a.flatten(2))  # (B, 8, 64)
        a = a + parts["still"](torch.ones_like(a)) + parts["mixed"](row).view(a.shape)
        return parts["head"](a.mean((2, 3)))

    return Net(
        forward,
        conv=nn.Conv2d(3, 8, 4, 4),
        flipped=nn.Identity(),
        turned=nn.Identity(),
        row=nn.Conv1d(8, 8, 3, padding=1),
        still=nn.Identity(),
        mixed=nn.Linear(64, 64),
        head=nn.Linear(8, 3),
    )


def all_positive() -> nn.Module:
    """A network that looks for what is bright: all its weights are positive."""
    convolutions = [
        layer
        for before, after in pairwise((3, 8, 12, 16))
        for layer in (nn.Conv2d(before, after, 3, 2, 1), nn.ReLU())
    ]
    net = pooled(*convolutions, nn.Linear(16, 5))
    for weights in net.parameters():
        nn.init.uniform_(weights, 0, 0.1)
    return net


class UnsaidFrozenBatchNorm2d(Net):
    """As Hugging Face's DETR has it: its ε is in its code."""

    def __init__(self, frozen: nn.Module) -> None:
        super().__init__(self._normed, **dict(frozen.named_buffers()))

    @staticmethod
    def _normed(x: Tensor, weight: Tensor, bias: Tensor, **running: Tensor) -> Tensor:
        scale = weight * (running["running_var"] + 1e-5).rsqrt()
        shift = bias - running["running_mean"] * scale
        return x * scale[:, None, None] + shift[:, None, None]
