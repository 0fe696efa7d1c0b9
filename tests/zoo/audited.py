"""Networks whose reasons are known, for audits, and pictures for one of them."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.zoo.parts import Net

SIDE = 32
"""Side of the inputs in pixels; a position of the layer `features` covers 4 × 4 of them."""
CLASSES = 6


def corner() -> Net:
    """A classifier of the colour of the upper left quarter of the photo: the weights of all other
    positions are zero.

    The mean gradient of a channel says nothing about where the channel matters here, so Grad-CAM at
    `features` is wrong, and methods that multiply gradient and activation at each position are
    right.
    """
    side = SIDE // 4
    features = nn.Conv2d(3, CLASSES, 4, 4, bias=False)
    head = nn.Linear(CLASSES * side * side, CLASSES)
    with torch.no_grad():
        colours = torch.tensor(
            [[1, -1, -1], [-1, 1, -1], [-1, -1, 1], [1, 1, -1], [-1, 1, 1], [1, -1, 1]]
        )
        features.weight.copy_(colours[:, :, None, None] / 16 * torch.ones(4, 4))
        weights = torch.zeros(CLASSES, CLASSES, side, side)
        weights[:, :, :2, :2] = (4 * torch.eye(CLASSES) - 1)[:, :, None, None]
        head.weight.copy_(weights.flatten(1))
        head.bias.zero_()
    return Net(
        lambda x, features, relu, head: head(relu(features(x)).flatten(1)),
        features=features,
        relu=nn.ReLU(),
        head=head,
    )


class Whole(nn.Module):
    """A linear layer whose weights are whole numbers, as quantised ones are."""

    weight: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("weight", linear.weight.detach().to(torch.int8))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype))


def packed() -> Net:
    """The same, whose head's weights are whole numbers."""
    model = corner()
    head = model.head
    assert isinstance(head, nn.Linear)
    model.add_module("head", Whole(head))
    return model


def ignoring() -> Net:
    """A classifier that gives the same answer for each photo."""
    torch.manual_seed(1)
    return Net(
        lambda x, features, head: head(0 * features(x).mean((2, 3))),
        features=nn.Conv2d(3, 8, 4, 4),
        head=nn.Linear(8, CLASSES),
    )


def squares() -> nn.Module:
    """A small network that tells a red square (class 0) from a green one (class 1)."""
    model = _squares()
    model.load_state_dict(_trained())
    return model.eval()


def _squares() -> Net:
    return Net(
        lambda x, features, last, head: head(last(features(x)).mean((2, 3))),
        features=nn.Sequential(
            *(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(12, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        ),
        last=nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()),
        head=nn.Linear(16, 2),
    )


@cache
def _trained() -> dict[str, Tensor]:
    """Return the weights of `squares` after some steps of training."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        model = _squares()
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


def square(number: int) -> NDArray[np.uint8]:
    """Return a noisy grey picture with a red square if the number is even, else a green one, and
    with a larger white square, which says nothing of the class."""
    rng = np.random.default_rng(number)
    picture = rng.integers(60, 140, (32, 32, 3))
    across = rng.permutation(2) * 16  # the two squares are in different halves
    for size, left, colour in (
        (12, across[0], (255, 255, 255)),
        (8, across[1], (20, 220, 20) if number % 2 else (220, 20, 20)),
    ):
        top, left = rng.integers(0, 32 - size), left + rng.integers(0, 16 - size + 1)
        picture[top : top + size, left : left + size] = colour
    return picture.astype(np.uint8)
