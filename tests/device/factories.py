"""Models for the tests of the engine on a device, which `factory:` sources name."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from tests.cam.nets import Small

LARGEST = 4
"""Number of images for which `Wide` has memory."""


class Wide(Small):
    """Has no memory for more than `LARGEST` images: on an accelerator the device's own allocator
    refuses, on a CPU the module raises what it would raise."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > LARGEST:
            if x.device.type == "cpu":
                raise torch.OutOfMemoryError("no memory is left")
            free, _ = torch.cuda.mem_get_info(x.device)
            torch.empty(2 * free, dtype=torch.uint8, device=x.device)
        return super().forward(x)


class Hanging(Small):
    """Computes for `seconds` if the photo is white: in a kernel, if the device has kernels."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        if bool((x > 2).all()):
            if x.device.type == "cuda":
                # Cycles at 3 GHz: at a lower clock the kernel takes longer.
                torch.cuda._sleep(int(self.seconds * 3e9))  # type: ignore[no-untyped-call]
            else:
                time.sleep(self.seconds)
        return super().forward(x)


def wide() -> nn.Module:
    torch.manual_seed(4)
    return Wide()


def hanging() -> nn.Module:
    torch.manual_seed(4)
    return Hanging(6)
