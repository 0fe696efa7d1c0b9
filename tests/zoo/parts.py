"""What toy networks are made of, and what tests ask of any network."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn


class Net(nn.Module):
    """A network of named parts: what it returns is a function of its input and of these parts.

    Args:
        parts: modules, parameters, and tensors, which become buffers.
    """

    def __init__(self, function: Callable[..., Any], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, nn.Module | nn.Parameter):
                setattr(self, name, part)
            else:
                self.register_buffer(name, part)

    def forward(self, x: Tensor) -> Any:
        return self.function(x, **self._modules, **self._parameters, **self._buffers)

    if TYPE_CHECKING:  # a part has its own type

        def __getattr__(self, name: str) -> Any: ...


def scored(score: Callable[..., Tensor], *, other: float = 0, **parts: nn.Module | Tensor) -> Net:
    """Two logits: a score (B,), a function of the images and of the parts, and `other` times it."""

    def logits(x: Tensor, /, **parts: Any) -> Tensor:
        y = score(x, **parts)
        return torch.stack([y, other * y], 1)

    return Net(logits, **parts)


def at_layer(function: Callable[[Tensor], Any]) -> Net:
    """A function of the output of `layer`, which is the image itself."""
    return Net(lambda x, layer: function(layer(x)), layer=nn.Identity())


def wrapped(
    net: nn.Module,
    *,
    before: Callable[[Tensor], Tensor] = lambda x: x,
    after: Callable[[Any], Any] = lambda said: said,
) -> Net:
    """A network with preprocessing of its own before it, and what is made of its output."""
    return Net(lambda x, net: after(net(before(x))), net=net)


def means(x: Tensor) -> Tensor:
    """The mean of each channel."""
    return x.mean((2, 3))


def scale(factor: float) -> Net:
    """y = factor · x."""
    return Net(lambda x: factor * x)


def pooled(*layers: nn.Module) -> nn.Sequential:
    """The layers but for the last one, the mean of each channel, and the last layer."""
    *body, head = layers
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


def order(count: int) -> Tensor:
    """An order of patches that nobody can guess."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))


def images(count: int = 2, *, seed: int = 1, size: int = 8) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def hook_count(model: nn.Module) -> int:
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) + len(module._backward_hooks)
        for module in model.modules()
    )


def as_after_training(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give each norm statistics and weights as a training leaves them: those of a new one change
    nothing, which hides faults."""
    generator = torch.Generator().manual_seed(seed)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(norm.running_mean, 0, 0.3, generator)  # type: ignore[arg-type]
            nn.init.uniform_(norm.running_var, 0.5, 2, generator)  # type: ignore[arg-type]
        if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d | nn.LayerNorm) and (
            norm.weight is not None
        ):
            nn.init.uniform_(norm.weight, 0.5, 1.5, generator)
            nn.init.normal_(norm.bias, 0, 0.3, generator)
    return model.eval()


def seen_by(model: nn.Module) -> list[Tensor]:
    """The images of each pass of a model, from now on."""
    seen: list[Tensor] = []
    model.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach().clone()))
    return seen
