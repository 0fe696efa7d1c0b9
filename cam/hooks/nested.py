"""Find and replace the tensor in the inputs or the output of a layer (tuple, list or mapping)."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor


def first_tensor(output: Any) -> tuple[Any, Tensor | None]:
    """Return the first floating-point tensor in a layer's output, preceded by its key or index.

    The key is None if the output is itself a tensor. The tensor is None if there is none.
    """
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


def in_words(output: Any) -> str:
    """Return the type of an output that is not a tensor, and the shapes of its tensors."""
    items = output.values() if isinstance(output, Mapping) else output
    if not isinstance(output, Mapping | tuple | list):
        items = ()
    shapes = [str(tuple(tensor.shape)) for tensor in items if isinstance(tensor, Tensor)]
    some = ", ".join(shapes[:3]) + (" and others" if len(shapes) > 3 else "")
    return f"a {type(output).__name__}" + (f" of tensors of shape {some}" if shapes else "")


def replaced(output: Any, where: Any, tensor: Tensor) -> Any:
    """Return a copy of `output` with the tensor at `where` replaced. The original container does
    not change."""
    if isinstance(output, Tensor):
        return tensor
    if isinstance(output, tuple):
        items = [*output[:where], tensor, *output[where + 1 :]]
        return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)
    changed = copy.copy(output)
    changed[where] = tensor
    return changed
