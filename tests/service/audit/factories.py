"""Models whose reasons are known, for audits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SIDE = 32
"""Side of the inputs in pixels; a position of the layer `features` covers 4 × 4 of them."""
CLASSES = 6


class Corner(nn.Module):
    """A classifier of the colour of the upper left quarter of the photo: the weights of all other
    positions are zero.

    The mean gradient of a channel says nothing about where the channel matters here, so Grad-CAM at
    `features` is wrong, and methods that multiply gradient and activation at each position are
    right.
    """

    def __init__(self) -> None:
        super().__init__()
        side = SIDE // 4
        self.features = nn.Conv2d(3, CLASSES, 4, 4, bias=False)
        self.relu = nn.ReLU()
        self.head = nn.Linear(CLASSES * side * side, CLASSES)
        with torch.no_grad():
            colours = torch.tensor(
                [[1, -1, -1], [-1, 1, -1], [-1, -1, 1], [1, 1, -1], [-1, 1, 1], [1, -1, 1]]
            )
            self.features.weight.copy_(colours[:, :, None, None] / 16 * torch.ones(4, 4))
            weights = torch.zeros(CLASSES, CLASSES, side, side)
            weights[:, :, :2, :2] = (4 * torch.eye(CLASSES) - 1)[:, :, None, None]
            self.head.weight.copy_(weights.flatten(1))
            self.head.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.relu(self.features(x)).flatten(1))
        return logits


class Whole(nn.Module):
    """A linear layer whose weights are whole numbers, as quantised ones are."""

    weight: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("weight", linear.weight.detach().to(torch.int8))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype))


class Ignoring(nn.Module):
    """A classifier that gives the same answer for each photo."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 8, 4, 4)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(0 * self.features(x).mean((2, 3)))
        return logits


def corner() -> nn.Module:
    return Corner()


def packed() -> nn.Module:
    model = Corner()
    model.add_module("head", Whole(model.head))
    return model


def ignoring() -> nn.Module:
    torch.manual_seed(1)
    return Ignoring()
