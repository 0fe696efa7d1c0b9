"""Small networks whose numbers can be followed."""

from __future__ import annotations

import time
import traceback

import torch
import torchvision
from torch import Tensor, nn

DETECTING = ("odam", "drise")
"""The methods that explain boxes of detectors alone."""
MATRICES = ("rollout", "chefer", "agcam", "legrad", "gradeclip")
"""Those that read the matrices of attention."""
ATTENDING = (*MATRICES, "attnlrp")
"""Those that need a transformer."""


class Scale(nn.Module):
    """y = factor · x."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


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
        x = self.relu1(self.conv1(x))
        x = self.relu2(self.conv2(x))
        out: Tensor = self.head(self.dropout(x.mean(dim=(2, 3))))
        return out


class OfModules(Small):
    """The same, of modules alone: it has a rule of LRP for each operation."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu1(self.conv1(x))
        x = self.relu2(self.conv2(x))
        out: Tensor = self.head(self.dropout(self.pool(x)))
        return out


class Slow(Small):
    """A forward pass takes some seconds more, however many images it holds. The dozens of passes
    with which a service examines a model do not: every start would take half a minute."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        if not _is_examined():
            time.sleep(self.seconds)
        return super().forward(x)


def _is_examined() -> bool:
    """Whether the pass is one of a service that loads the model."""
    loading = "service.loading.served_model", "load"
    calls = (frame for frame, _ in traceback.walk_stack(None))
    return any((call.f_globals.get("__name__"), call.f_code.co_name) == loading for call in calls)


def order(count: int) -> Tensor:
    """An order of patches that nobody can guess."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))


class Tokens(nn.Module):
    """Patches of 8 pixels, other tokens among them, and a head on the mean of all. The patches lie
    row by row, column by column (`turned`), or in no order (`shuffled`)."""

    def __init__(
        self, *, extra: int = 0, at: str = "front", turned: bool = False, shuffled: bool = False
    ) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 16, 8, 8)
        self.other = nn.Parameter(torch.randn(1, extra, 16))
        self.block = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))
        self.head = nn.Linear(16, 5)
        self.at, self.turned, self.shuffled = at, turned, shuffled

    def forward(self, x: Tensor) -> Tensor:
        grid = self.embed(x)
        tokens = (grid.transpose(2, 3) if self.turned else grid).flatten(2).transpose(1, 2)
        if self.shuffled:
            tokens = tokens[:, order(tokens.shape[1])]
        count = {"front": 0, "middle": tokens.shape[1] // 2, "behind": tokens.shape[1]}[self.at]
        other = self.other.expand(len(x), -1, -1)
        tokens = torch.cat([tokens[:, :count], other, tokens[:, count:]], 1)
        out: Tensor = self.head(self.block(tokens).mean(1))
        return out


def small(*, inplace: bool = False, seed: int = 0) -> Small:
    torch.manual_seed(seed)
    return Small(inplace=inplace).eval()


def as_after_training(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give each norm statistics and weights as a training leaves them: those of a new one change
    nothing, which hides faults."""
    generator = torch.Generator().manual_seed(seed)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(norm.running_mean, 0, 0.3, generator)  # type: ignore[arg-type]
            nn.init.uniform_(norm.running_var, 0.5, 2, generator)  # type: ignore[arg-type]
        if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d | nn.LayerNorm) and (
            norm.weight is not None
        ):
            nn.init.uniform_(norm.weight, 0.5, 1.5, generator)
            nn.init.normal_(norm.bias, 0, 0.3, generator)
    return model.eval()


def images(count: int = 2, *, seed: int = 1, size: int = 8) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def hook_count(model: nn.Module) -> int:
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) + len(module._backward_hooks)
        for module in model.modules()
    )


def segmenter() -> nn.Module:
    """Four classes, seeded."""
    torch.manual_seed(0)
    model: nn.Module = torchvision.models.segmentation.lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=4
    )
    return model.eval()


def detector() -> nn.Module:
    """Finds six boxes of four classes in anything, surely none of them right."""
    torch.manual_seed(0)
    model: nn.Module = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=5,
        min_size=96,
        max_size=96,
        box_score_thresh=0.0,
        box_detections_per_img=6,
    )
    return model.eval()


class Headed(nn.Module):
    """Outputs W · (the means of the image's channels), with no bias, and then `ending` of them.

    Of an image whose first channel has the mean 1 and whose others are 0 they are `ending` of W's
    first column.
    """

    def __init__(self, *weights: float, ending: nn.Module | None = None) -> None:
        super().__init__()
        self.layer = nn.Identity()
        self.head = nn.Linear(3, len(weights), bias=False)
        self.ending = ending or nn.Identity()
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor(weights)[:, None] * torch.tensor([1.0, 2, 3]))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.ending(self.head(self.layer(x).mean(dim=(2, 3))))
        return out


class Paired(Headed):
    """Returns its features, (B, 3), beside its logits."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        features = self.layer(x).mean(dim=(2, 3))
        return features, self.ending(self.head(features))


class Foreground(nn.Module):
    """One logit at each pixel: the first channel less a half."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)[:, :1] - 0.5
        return out
