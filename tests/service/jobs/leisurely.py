"""A model that takes its time, so that a job can be watched."""

from __future__ import annotations

import time

from torch import Tensor, nn

from tests.cam.nets import Small

SECONDS = 0.2
"""Of a forward pass."""


class Leisurely(Small):
    def forward(self, x: Tensor) -> Tensor:
        time.sleep(SECONDS)
        return super().forward(x)


def leisurely() -> nn.Module:
    return Leisurely().eval()
