"""Fold batch norms into the convolutions before them, as every compiler does for inference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.fusion import fuse_conv_bn_eval


def fold(model: nn.Module, image: Tensor, layer: str) -> int:
    """Fold each batch norm that reads a convolution's output alone into that convolution, in place.

    The pairs are those of one forward pass: a batch norm is folded if the tensor that it takes is
    the one that a convolution has returned, each ran once, and no other module took that tensor.
    What functions do with it is not seen, so that the result must be compared with the model.

    Args:
        model: in eval mode. It is changed.
        image: (1, C, H, W), of the model's dtype and on its device.
        layer: name of the layer whose output is needed. The convolution that makes it stays.

    Returns:
        The number of batch norms that were folded.
    """
    names = {module: name for name, module in model.named_modules()}
    needed = model.get_submodule(layer)
    with _watched(model, needed) as calls, torch.no_grad():
        model(image)
    readers: dict[int, list[nn.Module]] = {}
    times = Counter(module for module, _, _ in calls)
    for module, given, _ in calls:
        for tensor in given:
            readers.setdefault(id(tensor), []).append(module)
    kept = {id(returned) for module, _, returned in calls if module is needed}
    folded = 0
    for module, _, returned in calls:
        after = readers.get(id(returned), [])
        if (
            isinstance(module, nn.Conv2d)
            and not (module._forward_pre_hooks or parametrize.is_parametrized(module))
            and id(returned) not in kept
            and len(after) == 1
            and type(norm := after[0]) is nn.BatchNorm2d
            and norm.running_mean is not None
            and times[module] == times[norm] == 1
        ):
            dtype = module.weight.dtype
            fused = fuse_conv_bn_eval(deepcopy(module).float(), deepcopy(norm).float()).to(dtype)
            module.weight, module.bias = fused.weight, fused.bias
            _put(model, names[norm], nn.Identity())
            folded += 1
    return folded


@contextmanager
def _watched(
    model: nn.Module, also: nn.Module
) -> Iterator[list[tuple[nn.Module, tuple[Tensor, ...], Any]]]:
    """Yield a list to which the calls of the model's innermost modules, and of `also`, are added,
    each with the tensors that it took and what it returned. The list keeps them, so that no two
    have one id."""
    calls: list[tuple[nn.Module, tuple[Tensor, ...], Any]] = []

    def take(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        calls.append((module, tuple(each for each in args if isinstance(each, Tensor)), output))

    handles = [
        module.register_forward_hook(take)
        for module in model.modules()
        if module is also or not any(True for _ in module.children())
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module in the place of another one, with the latter's hooks."""
    parent, _, last = name.rpartition(".")
    former = model.get_submodule(name)
    module._forward_hooks = former._forward_hooks
    setattr(model.get_submodule(parent), last, module.eval())
