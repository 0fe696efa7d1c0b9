"""Functions that `factory:` sources name; some stand in other files of the zoo."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from tests.waiting import hang
from tests.zoo.by_hand import Headed, Paired, foreground, regressor  # noqa: F401
from tests.zoo.convolutional import (  # noqa: F401
    Small,
    coder,
    headless,
    segmenter,
    small,
)
from tests.zoo.detectors import detector, retinanet, yolo_like  # noqa: F401
from tests.zoo.hostile import (  # noqa: F401
    Slow,
    branching,
    fragile,
    hanging,
    hungry,
    leaky,
    lethal,
    stuck,
    stuck_once,
    unsound,
    watched,
    wide,
)
from tests.zoo.parts import Net
from tests.zoo.transformers import Tokens, vit  # noqa: F401

STEADY_SECONDS = 0.2
"""Seconds that a forward pass of `steady` takes."""


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


def late() -> nn.Module:
    """Takes a while to load."""
    time.sleep(0.7)
    return tiny()


def bulky() -> nn.Module:
    """On a busy machine, an image's own share of the computation is still small beside 100 ms."""
    return Slow(0.1).eval()


def steady() -> nn.Module:
    """The same weights in each process, or a batch would not go on."""
    torch.manual_seed(4)
    return Slow(STEADY_SECONDS).eval()


def slow() -> nn.Module:
    return Slow(0.5).eval()


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


def age() -> nn.Module:
    """The model returns 130 for a white picture, which is not a probability."""
    return regressor(1.5)


def pose() -> nn.Module:
    """The model returns 130, -80 and 70 for a white picture."""
    return regressor(1.5, -2, 0.5)


def hierarchical() -> nn.Module:
    """Of a white picture two pairs of probabilities, 0.8 and 0.2; 0.7 and 0.3: the second one of
    the children of the first."""

    def halves(z: Tensor) -> Tensor:
        parents, children = z[:, :2].exp(), z[:, 2:].exp()
        parents = parents / parents.sum(1, keepdim=True)
        children = children / children.sum(1, keepdim=True)
        return torch.cat([parents[:, 1:], parents[:, :1] * children], 1)

    return Headed(*(math.log(p) / 6 for p in (0.8, 0.2, 0.7, 0.3)), ending=Net(halves))


def sluggish() -> nn.Module:
    """Is never built."""
    hang()
    return slow()


def deadly() -> nn.Module:
    """Takes the process with it."""
    os._exit(9)


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


def _checked(check: Callable[[Tensor], Tensor], channels: int = 3) -> nn.Module:
    """A small classifier that checks its input first."""
    return Net(
        lambda x, layer, head: head(layer(check(x)).relu().mean((2, 3))),
        layer=nn.Conv2d(channels, 4, 3, padding=1),
        head=nn.Linear(4, 2),
    ).eval()


def gray() -> nn.Module:
    return _checked(lambda x: x, channels=1)


def sized() -> nn.Module:
    def of_48(x: Tensor) -> Tensor:
        assert x.shape[-1] == 48, "48 pixels"
        return x

    return _checked(of_48)


def picky() -> nn.Module:
    def refuse(x: Tensor) -> Tensor:
        raise ValueError("not today")

    return _checked(refuse)


def in_place() -> nn.Module:
    """Changes a sigmoid in place, as the Detect of YOLOv5 does."""

    def doubled(x: Tensor, layer: nn.Module, head: nn.Module) -> Tensor:
        said: Tensor = head(layer(x).mean((2, 3))).sigmoid()
        said[:, 0] = said[:, 0] * 2
        return said + 0

    return Net(doubled, layer=nn.Conv2d(3, 4, 3, padding=1), head=nn.Linear(4, 2)).eval()


def in_training() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def wrapper() -> nn.Module:
    """What Ultralytics' class looks like from outside."""
    outer = type("Model", (nn.Module,), {"__module__": "ultralytics.engine.model"})
    wrapped: nn.Module = type("YOLO", (outer,), {})()
    return wrapped
