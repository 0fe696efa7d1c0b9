"""Models whose reasons are known, for audits."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from tests.service.features.audit.photos import square

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


class Squares(nn.Module):
    """A small network that tells a red square (class 0) from a green one (class 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(12, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        )
        self.last = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.last(self.features(x)).mean((2, 3)))
        return logits


def corner() -> nn.Module:
    return Corner()


def packed() -> nn.Module:
    model = Corner()
    model.add_module("head", Whole(model.head))
    return model


def squares() -> nn.Module:
    model = Squares()
    model.load_state_dict(_trained())
    return model.eval()


@cache
def _trained() -> dict[str, Tensor]:
    """Return the weights of `Squares` after some steps of training."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        model = Squares()
        pictures = np.stack([square(number) for number in range(1000, 1128)])
        images = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1
        classes = torch.arange(len(images)) % 2
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        for step in range(60):
            some = slice(32 * (step % 4), 32 * (step % 4 + 1))
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(images[some]), classes[some])
            torch.autograd.backward(loss)
            optimiser.step()
    return model.state_dict()


def ignoring() -> nn.Module:
    torch.manual_seed(1)
    return Ignoring()
