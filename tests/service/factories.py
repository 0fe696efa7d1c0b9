"""Functions that `factory:` sources name."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torchvision
from torch import Tensor, nn

from tests.cam.detectors.nets import retinanet, yolo_like
from tests.cam.nets import (
    Foreground,
    Headed,
    Paired,
    Slow,
    Small,
    Tokens,
    detector,
    segmenter,
    small,
)
from tests.waiting import hang

__all__ = ["detector", "segmenter"]


def tiny() -> Small:
    return small(seed=4)


def quantised(change: float = 0.0) -> nn.Module:
    """The linear layer has 8-bit weights, of which one is changed."""
    model = small(seed=4)
    with torch.no_grad():
        model.head.weight[0, 0] += change
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao is old
        made: nn.Module = torch.ao.quantization.quantize_dynamic(  # type: ignore[no-untyped-call]
            model, {nn.Linear}, dtype=torch.qint8
        )
    return made


def quantised_otherwise() -> nn.Module:
    return quantised(change=0.1)


def no_module() -> str:
    return "no module"


def no_logits() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 3, 1), nn.Flatten(2))


class Evil:
    """Unpickling it runs code."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('the pickle was run')",)


def evil_checkpoint(path: Path) -> None:
    torch.save({"weight": torch.ones(1), "evil": Evil()}, path)


def bulky() -> nn.Module:
    """On a busy machine, an image's own share of the computation is still small beside 100 ms."""
    return Slow(0.1).eval()


def slow() -> nn.Module:
    return Slow(0.5).eval()


class Fragile(Small):
    """Fails at white pictures."""

    def forward(self, x: Tensor) -> Tensor:
        if x.amin(dim=(1, 2, 3)).max() > 0.99:
            raise RuntimeError("too bright")
        return super().forward(x)


def fragile() -> nn.Module:
    return Fragile().eval()


def vit() -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = torchvision.models.VisionTransformer(
        image_size=64, patch_size=16, num_layers=3, num_heads=2, hidden_dim=32, mlp_dim=64
    )
    nn.init.normal_(model.get_parameter("heads.head.weight"), std=0.1)
    return model


def binary() -> nn.Module:
    """Of a white picture one logit of −9."""
    return Headed(-1.5)


def multilabel() -> nn.Module:
    """Of a white picture five logits whose sigmoids are 0.51."""
    return Headed(*[math.log(0.51 / 0.49) / 6] * 5)


def softmaxed() -> nn.Module:
    """Of a white picture probabilities of 0.51 and 0.49."""
    return Headed(math.log(0.51) / 6, math.log(0.49) / 6, ending=nn.Softmax(1))


def paired() -> nn.Module:
    """Its three features beside four logits."""
    return Paired(1, -2, 3, 4)


class Above(nn.Module):
    """40 + 10 z."""

    def forward(self, z: Tensor) -> Tensor:
        return 40 + 10 * z


def age() -> nn.Module:
    """The model returns 130 for a white picture, which is not a probability."""
    return Headed(1.5, ending=Above())


def pose() -> nn.Module:
    """The model returns 130, -80 and 70 for a white picture."""
    return Headed(1.5, -2, 0.5, ending=Above())


def hierarchical() -> nn.Module:
    """Of a white picture two pairs of probabilities, 0.8 and 0.2; 0.7 and 0.3: the second one of
    the children of the first."""

    class Hierarchy(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            parents, children = z[:, :2].exp(), z[:, 2:].exp()
            parents = parents / parents.sum(1, keepdim=True)
            children = children / children.sum(1, keepdim=True)
            return torch.cat([parents[:, 1:], parents[:, :1] * children], 1)

    return Headed(*(math.log(p) / 6 for p in (0.8, 0.2, 0.7, 0.3)), ending=Hierarchy())


def headless() -> nn.Module:
    """A backbone: its features are pooled, and there is no head."""
    torch.manual_seed(0)
    model: nn.Module = torchvision.models.resnet18(weights=None)
    model.fc = nn.Identity()
    return model


def foreground() -> nn.Module:
    return Foreground()


def sluggish() -> nn.Module:
    """Is never built."""
    hang()
    return slow()


def deadly() -> nn.Module:
    """Takes the process with it."""
    os._exit(9)


def lethal() -> nn.Module:
    """Ends the process as an exception that nobody catches does, at a white picture."""

    class Lethal(Small):
        def forward(self, x: Tensor) -> Tensor:
            if x.amin(dim=(1, 2, 3)).max() > 2:
                os._exit(1)
            return super().forward(x)

    return Lethal().eval()


def turned() -> nn.Module:
    """Tokens column by column behind another one: nobody can find out where they lie."""
    return Tokens(extra=1, shuffled=True)


def pyramid_detector() -> nn.Module:
    return retinanet()


def yolo() -> nn.Module:
    return yolo_like("yolov8")


def scripted() -> nn.Module:
    module: nn.Module = torch.jit.script(tiny())
    return module


def frozen() -> nn.Module:
    module: nn.Module = torch.jit.freeze(torch.jit.script(tiny()))
    return module


def optimised() -> nn.Module:
    module: nn.Module = torch.jit.optimize_for_inference(torch.jit.script(tiny()))
    return module


def exported() -> nn.Module:
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(tiny(), (torch.rand(2, 3, 8, 8),), dynamic_shapes=(batch,))
    module: nn.Module = program.module()
    return module


def warning() -> nn.Module:
    """Warns as torch does, while it is built."""
    warnings.warn("torch would say this", UserWarning, stacklevel=2)
    return tiny()


def raising() -> nn.Module:
    raise ZeroDivisionError("division by zero")


def stating() -> tuple[nn.Module, dict[str, object]]:
    """A model of pictures as OpenCV reads them, as Caffe's were."""
    stated = {"input_size": 24, "resize": 30, "channel_order": "bgr", "value_range": "0-255"}
    return small(), {**stated, "mean": (104, 117, 123), "std": (1, 1, 1)}


def stating_nonsense() -> tuple[nn.Module, dict[str, object]]:
    return small(), {"sizes": 24}


def stating_too_small() -> tuple[nn.Module, dict[str, object]]:
    return small(), {"input_size": 1}


def forking() -> nn.Module:
    """A process that has been forked holds every file of this one open."""
    if os.fork() == 0:
        hang()
        os._exit(0)
    return Small().eval()


class Branching(Small):
    """Its operations depend on the numbers of the image."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.mean() > 0 else -x)


def branching() -> nn.Module:
    return Branching()


class _Checked(nn.Module):
    """A small classifier that checks or changes its input first."""

    def __init__(self, check: Callable[[Tensor], Tensor], channels: int = 3) -> None:
        super().__init__()
        self.check = check
        self.layer = nn.Conv2d(channels, 4, 3, padding=1)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        features = self.layer(self.check(x)).relu()
        said: Tensor = self.head(features.mean((2, 3)))
        return said


def _of_48(x: Tensor) -> Tensor:
    if x.shape[-1] != 48:
        raise AssertionError("48 pixels")
    return x


def _not_today(x: Tensor) -> Tensor:
    raise ValueError("not today")


class _InPlace(_Checked):
    """Changes a sigmoid in place, as the Detect of YOLOv5 does."""

    def forward(self, x: Tensor) -> Tensor:
        said: Tensor = self.head(self.layer(x).mean((2, 3))).sigmoid()
        said[:, 0] = said[:, 0] * 2
        return said + 0


def gray() -> nn.Module:
    return _Checked(lambda x: x, channels=1).eval()


def sized() -> nn.Module:
    return _Checked(_of_48).eval()


def picky() -> nn.Module:
    return _Checked(_not_today).eval()


def in_place() -> nn.Module:
    return _InPlace(lambda x: x).eval()


def in_training() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def coder() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1))


def wrapper() -> nn.Module:
    """What Ultralytics' class looks like from outside."""
    outer = type("Model", (nn.Module,), {"__module__": "ultralytics.engine.model"})
    wrapped: nn.Module = type("YOLO", (outer,), {})()
    return wrapped
