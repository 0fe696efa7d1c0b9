"""A model that takes its time, so that a job can be watched."""

from __future__ import annotations

from torch import nn

from tests.cam.nets import Slow

SECONDS = 0.2
"""Of a forward pass."""


def leisurely() -> nn.Module:
    return Slow(SECONDS).eval()
