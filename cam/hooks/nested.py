"""The tensor in what a layer takes or returns, which may be a tuple, a list or a mapping."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor


def first_tensor(output: Any) -> tuple[Any, Tensor | None]:
    """The first floating-point tensor in a layer's output and its key or index there."""
    if isinstance(output, Tensor):
        return None, output if output.is_floating_point() else None
    entries: Iterable[tuple[Any, Any]] = ()
    if isinstance(output, Mapping):
        entries = output.items()
    elif isinstance(output, tuple | list):
        entries = enumerate(output)
    for where, value in entries:
        if isinstance(value, Tensor) and value.is_floating_point():
            return where, value
    return None, None


def replaced(output: Any, where: Any, tensor: Tensor) -> Any:
    """`output` with the tensor at `where` replaced; the original container is left as it was."""
    if isinstance(output, Tensor):
        return tensor
    if isinstance(output, tuple):
        items = [*output[:where], tensor, *output[where + 1 :]]
        return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)
    changed = copy.copy(output)
    changed[where] = tensor
    return changed
