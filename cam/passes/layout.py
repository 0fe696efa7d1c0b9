"""Measure in which memory layout a model runs faster."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor, nn

from cam.hooks.inference import evaluating

MARGIN = 0.95
"""Largest share of the contiguous layout's time at which channels-last counts as faster. A smaller
gain may be noise."""


def laid_out(model: nn.Module, image: Tensor, *, batch: int = 4, rounds: int = 3) -> bool:
    """Put `model` in the memory layout in which it is faster.

    Convolutions are often faster with channels last; depthwise convolutions in full precision often
    are not. The model's output is the same in both layouts except for rounding.

    Args:
        image: (1, C, H, W), on the model's device and in its dtype.

    Returns:
        Whether the chosen layout is channels-last. If it is, images should have it, too.
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
    """Return the seconds of the fastest of `rounds` forward passes, after one warm-up pass."""

    def work() -> None:
        model(images.clone())
        if images.device.type != "cpu":
            torch.accelerator.synchronize(images.device)

    with evaluating(model), torch.inference_mode():
        return fastest(work, rounds)


def fastest(work: Callable[[], object], rounds: int = 3) -> float:
    """Return the seconds of the fastest of `rounds` runs, after one warm-up run."""
    times = []
    for _ in range(rounds + 1):
        started = perf_counter()
        work()
        times.append(perf_counter() - started)
    return min(times[1:])


def lay_out(model: nn.Module, *, channels_last: bool) -> None:
    """Put `model` in the channels-last or the contiguous memory layout."""
    _to(model, torch.channels_last if channels_last else torch.contiguous_format)


def _to(model: nn.Module, layout: torch.memory_format) -> None:
    model.to(memory_format=layout)
