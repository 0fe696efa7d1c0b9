"""Models of batches: the same weights in each process, or a batch would not go on."""

from __future__ import annotations

import time
from typing import ClassVar

from torch import Tensor, nn

from tests.cam.nets import Slow, Small, small


class Stuck(Small):
    """The first white picture keeps it for seconds; no other one does."""

    gone: ClassVar[bool] = False

    def forward(self, x: Tensor) -> Tensor:
        if not Stuck.gone and x.amin(dim=(1, 2, 3)).max() > 0.99:
            Stuck.gone = True
            time.sleep(4)
        return super().forward(x)


def _seeded(model: Small) -> nn.Module:
    model.load_state_dict(small(seed=4).state_dict())
    return model.eval()


def steady() -> nn.Module:
    return _seeded(Slow(0.2))


def stuck() -> nn.Module:
    return _seeded(Stuck())
