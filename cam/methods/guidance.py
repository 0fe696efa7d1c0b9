"""Let rectifiers pass back only positive gradients, for guided backpropagation.

    with GuidedRectifiers() as guided:
        logits = model(images)
        ...                                  # differentiate, also after the block
    guided.count                             # how many rectifiers ran

No module is replaced. Every call of a rectifier in this thread, as a module or as a function, sets
a *tensor gradient hook* on its output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

RECTIFIERS: Final = frozenset(
    {
        torch.relu,
        torch.relu_,
        Tensor.relu,
        Tensor.relu_,
        functional.relu,
        functional.relu_,
        functional.relu6,
    }
)
"""Functions that compute max(0, x), with or without an upper bound. Smooth activations (GELU,
SiLU) are left out: they have no gate."""


class GuidedRectifiers(TorchFunctionMode):
    """A mode in which the gradient at the output of each rectifier is set to 0 where it is negative
    (Springenberg et al., "Striving for Simplicity", ICLR workshop 2015, section 3.4)."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        """Number of rectifier calls so far."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if func in RECTIFIERS or (func is functional.hardtanh and _is_relu6(args, kwargs or {})):
            self.count += 1
            if output.requires_grad:
                output.register_hook(lambda gradient: gradient.clamp(min=0))
        return output


def _is_relu6(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a hard tanh has the lower bound 0, as in torch's ReLU6 (0 to 6)."""
    given = dict(zip(("input", "min_val", "max_val"), args, strict=False)) | dict(kwargs)
    return bool(given.get("min_val", -1.0) == 0)
