"""In which memory layout a model is faster: told by trying."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor, nn

from cam.hooks.inference import evaluating

MARGIN = 0.95
"""Another layout must be at least so much faster: less is noise."""


def laid_out(model: nn.Module, image: Tensor, *, batch: int = 4, rounds: int = 3) -> bool:
    """Put `model` in the layout in which it is faster; convolutions often like their channels last,
    depthwise ones in full precision often do not. What it computes is the same to rounding.

    Args:
        image: (1, C, H, W), on the model's device and in its dtype.

    Returns:
        Whether that is channels-last: then images should be, too.
    """
    if not any(isinstance(module, nn.Conv2d) for module in model.modules()):
        return False
    images = image.expand(batch, *image.shape[1:]).contiguous()
    try:
        plain = _seconds(model, images, rounds)
        _to(model, torch.channels_last)
        last = _seconds(model, images.contiguous(memory_format=torch.channels_last), rounds)
    except torch.OutOfMemoryError:
        _to(model, torch.contiguous_format)
        if batch == 1:
            raise
        return laid_out(model, image, batch=batch // 2, rounds=rounds)
    if last <= MARGIN * plain:
        return True
    _to(model, torch.contiguous_format)
    return False


def _seconds(model: nn.Module, images: Tensor, rounds: int) -> float:
    """The fastest of some forward passes, the first not counted."""

    def work() -> None:
        model(images)
        if images.device.type != "cpu":
            torch.accelerator.synchronize(images.device)

    with evaluating(model), torch.inference_mode():
        return fastest(work, rounds)


def fastest(work: Callable[[], object], rounds: int = 3) -> float:
    """Seconds of the fastest of some runs, the first not counted."""
    found = []
    for _ in range(rounds + 1):
        started = perf_counter()
        work()
        found.append(perf_counter() - started)
    return min(found[1:])


def lay_out(model: nn.Module, *, channels_last: bool) -> None:
    """Put `model` in one of the two layouts."""
    _to(model, torch.channels_last if channels_last else torch.contiguous_format)


def _to(model: nn.Module, layout: torch.memory_format) -> None:
    model.to(memory_format=layout)
