"""Models that misbehave at a picture of one shade, or at too many pictures."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from tests.cam.nets import Slow, Small, hook_count, small

SICK: Final = 255
"""The shade of gray that a model cannot bear."""
MOST: Final = 2
HANG_SECONDS: Final = 3600


def calm() -> nn.Module:
    return small(seed=4)


def late() -> nn.Module:
    """Takes a while to load."""
    time.sleep(0.7)
    return small(seed=4)


def slow() -> nn.Module:
    return Slow(0.1).eval()


class Hungry(Small):
    """Has memory for `MOST` pictures at a time."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > MOST:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return super().forward(x)


def hungry() -> nn.Module:
    torch.manual_seed(4)
    return Hungry().eval()


def _sick(x: Tensor) -> Tensor:
    """Which of the pictures are."""
    return x.amin(dim=(1, 2, 3)) > (SICK - 1) / 255


class Fragile(Small):
    """Fails at a sick picture, and with it the whole batch."""

    def forward(self, x: Tensor) -> Tensor:
        if _sick(x).any():
            raise RuntimeError("this is too bright for me")
        return super().forward(x)


def fragile() -> nn.Module:
    torch.manual_seed(4)
    return Fragile().eval()


class Unsound(Small):
    """A sick picture's logits, and so its gradient, are not numbers."""

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return logits * torch.where(_sick(x), torch.nan, 1.0)[:, None]


def unsound() -> nn.Module:
    torch.manual_seed(4)
    return Unsound().eval()


class Stuck(Small):
    """Never comes back from a sick picture."""

    def forward(self, x: Tensor) -> Tensor:
        if _sick(x).any():
            time.sleep(HANG_SECONDS)
        return super().forward(x)


def stuck() -> nn.Module:
    """Takes a while to build, as real ones do: so long there is no worker."""
    time.sleep(0.5)
    torch.manual_seed(4)
    return Stuck().eval()


def watched() -> nn.Module:
    """Tells, in a file, how many hooks there are on its modules."""
    model = small(seed=4)
    _watch(model)
    return model


class Leaky(Small):
    """What a careless service does at every request: a hook, a file and memory that stay."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[object] = []

    def forward(self, x: Tensor) -> Tensor:
        self.conv2.register_forward_hook(lambda module, args, out: None)
        self.kept.append(bytearray(os.urandom(50_000)))
        if len(self.kept) % 20 == 0:
            self.kept.append(Path(os.devnull).open())  # noqa: SIM115
            threading.Thread(target=time.sleep, args=(HANG_SECONDS,), daemon=True).start()
        return super().forward(x)


def leaky() -> nn.Module:
    torch.manual_seed(4)
    model = Leaky().eval()
    _watch(model)
    return model


def _watch(model: nn.Module) -> None:
    file = Path(os.environ["CHAOS_HOOKS"])

    def tell() -> None:
        while True:
            file.write_text(str(hook_count(model)))
            time.sleep(0.5)

    threading.Thread(target=tell, daemon=True, name="tell of hooks").start()
