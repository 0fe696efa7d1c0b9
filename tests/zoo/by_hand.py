"""Networks whose probabilities and maps can be computed by hand."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.zoo.parts import Net, at_layer, means, scored

Numbers = NDArray[np.float64]


class Weighed(nn.Module):
    """One logit: the sum of the pixels, each times its weight.

    So the probability is 1 / (1 + e^−z), the gradient at every pixel is its weight, and the map of
    hirescam at `layer` is max(0, weight · pixel), summed over the channels.
    """

    def __init__(self, weights: Numbers) -> None:
        super().__init__()
        self.layer = nn.Identity()
        self.weights = nn.Parameter(torch.from_numpy(weights.astype(np.float32)))
        self.batches: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.batches.append(x.detach().clone())
        out: Tensor = (self.layer(x) * self.weights).sum((1, 2, 3))
        return out[:, None]

    @property
    def seen(self) -> Numbers:
        """The images that the model has seen, (n, C, H, W)."""
        return torch.cat(self.batches).numpy().astype(np.float64)

    @property
    def passes(self) -> int:
        return sum(len(each) for each in self.batches)

    def chance(self, image: Numbers) -> float:
        """Return the probability, computed without torch."""
        weights = self.weights.detach().numpy().astype(np.float64)
        return float(1 / (1 + np.exp(-(weights * image).sum())))

    def heat(self, image: Numbers) -> Numbers:
        """Return the map of hirescam at `layer`, computed without torch."""
        weights = self.weights.detach().numpy().astype(np.float64)
        found: Numbers = (weights * image).sum(0).clip(min=0)
        return found


class Chain(Weighed):
    """Two layers, of which the second has half the resolution and its own map."""

    def __init__(self) -> None:
        super().__init__(drawn(1, 3, 3, low=0.1, high=1))
        self.pool = nn.AvgPool2d(2)
        self.halved = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        self.batches.append(x.detach().clone())
        out: Tensor = (self.halved(self.pool(self.layer(x))) * self.weights).sum((1, 2, 3))
        return out[:, None]


def drawn(*shape: int, seed: int = 0, low: float = -0.5, high: float = 0.5) -> Numbers:
    """Return float32 numbers from `low` to `high`, as float64."""
    found = np.random.default_rng(seed).uniform(low, high, shape)
    return found.astype(np.float32).astype(np.float64)


def weighed(*shape: int, seed: int = 0, low: float = -0.5, high: float = 0.5) -> Weighed:
    return Weighed(drawn(*shape, seed=seed, low=low, high=high)).eval()


def picture(*shape: int, seed: int = 1) -> Numbers:
    """Return an image without a pixel of 0."""
    return drawn(*shape, seed=seed, low=0.1, high=1)


def tensor(image: Numbers) -> Tensor:
    return torch.from_numpy(image.astype(np.float32))


class Headed(nn.Module):
    """Outputs W · (the means of the image's channels), with no bias, and then `ending` of them.

    Of an image whose first channel has the mean 1 and whose others are 0 they are `ending` of W's
    first column.
    """

    def __init__(self, *weights: float, ending: nn.Module | None = None) -> None:
        super().__init__()
        self.layer = nn.Identity()
        self.head = nn.Linear(3, len(weights), bias=False)
        self.ending = ending or nn.Identity()
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor(weights)[:, None] * torch.tensor([1.0, 2, 3]))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.ending(self.head(self.layer(x).mean(dim=(2, 3))))
        return out


class Paired(Headed):
    """Returns its features, (B, 3), beside its logits."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        features = self.layer(x).mean(dim=(2, 3))
        return features, self.ending(self.head(features))


def foreground() -> Net:
    """One logit at each pixel: the first channel less a half."""
    return at_layer(lambda a: a[:, :1] - 0.5)


def of_the_tutorials(seen: dict[str, Tensor]) -> Net:
    """The network of the hooks tutorials: it keeps what its hooks should see."""

    def forward(x: Tensor, fc1: nn.Module, fc2: nn.Module) -> Tensor:
        seen["fc1.input"] = x = x.mean((2, 3))
        seen["fc1.output"] = x = fc1(x)
        seen["fc2.input"] = x = x.relu()
        seen["fc2.output"] = x = fc2(x)
        return x

    return Net(forward, fc1=nn.Linear(3, 4), fc2=nn.Linear(4, 2))


def forked() -> Net:
    """Logits that depend on `seen`, are multiplied by 0 after `silent`, and ignore `unused`."""

    def forward(x: Tensor, seen: nn.Module, silent: nn.Module, unused: nn.Module) -> Tensor:
        unused(x)
        out: Tensor = (seen(x) + 0 * silent(x)).square().mean((2, 3))
        return out

    return Net(forward, seen=nn.Identity(), silent=nn.Identity(), unused=nn.Identity())


def identity() -> Net:
    """Logits are the means of three feature maps, which are the image's channels."""
    return at_layer(means)


def rectified(weights: list[float], biases: list[float], *, step: int = 1) -> Net:
    """Feature maps relu(w x + b) of each step-th pixel, and the sum of their means."""
    conv = nn.Conv2d(1, len(weights), 1)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor(weights)[:, None, None, None])
        conv.bias.copy_(torch.tensor(biases))  # type: ignore[union-attr]
    return scored(
        lambda x, conv: means(conv(x[..., ::step, ::step]).relu()).sum(1), other=-1, conv=conv
    )


def regressor(*weights: float) -> Headed:
    """Values 40 + 10 w x̄ of an image whose first channel's mean is x̄."""
    return Headed(*weights, ending=Net(lambda z: 40 + 10 * z))


def seeing() -> Net:
    """Its layers' outputs are the image; its logits are the mean colours."""
    return Net(
        lambda x, stem, again: means(again(stem(x))), stem=nn.Identity(), again=nn.Identity()
    )


def blobs(*, first: float = 3.0, second: float = 2.0, bias: float = -5.0) -> Net:
    """Two blobs speak for class 0: its score is 3 · (pixels of the first) + 2 · (pixels of the
    second) − 5, the scores of classes 1 and 2 are 0 and 10 · (the pixel in the corner)."""
    layer, head = nn.Conv2d(1, 1, 1, bias=False), nn.Linear(36, 3)
    weights = torch.zeros(3, 6, 6)
    weights[0, 0:2, 0:2], weights[0, 4:6, 4:6], weights[2, 0, 5] = first, second, 10
    with torch.no_grad():
        layer.weight.fill_(1)
        head.weight.copy_(weights.flatten(1))
        head.bias.copy_(torch.tensor([bias, 0, 0]))
    return Net(lambda x, layer, head: head(layer(x).flatten(1)), layer=layer, head=head)
