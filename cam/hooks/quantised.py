"""Compute gradients through linear layers that were quantised dynamically."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle


def is_quantised(module: nn.Module) -> bool:
    """Return whether the module is a linear layer that `torch.ao.quantization.quantize_dynamic`
    has converted."""
    return "_packed_params" in vars(module)["_modules"] and hasattr(module, "_weight_bias")


def differentiated(modules: Iterable[nn.Module]) -> list[RemovableHandle]:
    """Let gradients pass through those of the modules that are quantised, until the hooks that are
    returned are removed."""
    return [each.register_forward_hook(_straight_through) for each in modules if is_quantised(each)]


def weights_of(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Return the weights (out, in), dequantised to float32, and the bias (out,), or None, of a
    quantised linear layer."""
    weights, bias = module._weight_bias()  # type: ignore[operator]
    return weights.dequantize(), None if bias is None else bias.detach()


def _straight_through(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    """Return the same output, with the gradient of the dequantised layer. This is a forward hook.

    The layer rounds its numbers, and the slope of rounding is 0 or not defined. The
    straight-through estimator uses the slope 1 instead (Bengio et al., "Estimating or Propagating
    Gradients Through Stochastic Neurons", 2013, section 4).
    """
    if not torch.is_grad_enabled() or not args[0].requires_grad:
        return None
    weights, _ = weights_of(module)
    straight = functional.linear(args[0], weights.to(args[0]))
    return output.detach() + (straight - straight.detach())
