"""Functions that `factory:` sources name."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor, nn

from tests.cam.nets import Small, small


def tiny() -> Small:
    return small(seed=4)


def no_module() -> str:
    return "no module"


def no_logits() -> nn.Module:
    return nn.Conv2d(3, 3, 1)


class Evil:
    """Unpickling it runs code."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('the pickle was run')",)


def evil_checkpoint(path: Path) -> None:
    torch.save({"weight": torch.ones(1), "evil": Evil()}, path)


class Slow(Small):
    """A forward pass takes half a second."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.5)
        return super().forward(x)


def slow() -> nn.Module:
    return Slow().eval()


class Fragile(Small):
    """Fails at white pictures."""

    def forward(self, x: Tensor) -> Tensor:
        if x.amin(dim=(1, 2, 3)).max() > 0.99:
            raise RuntimeError("too bright")
        return super().forward(x)


def fragile() -> nn.Module:
    return Fragile().eval()
