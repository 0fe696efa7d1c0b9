"""What to explain: the scalar that is differentiated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from cam.errors import ClassOutOfRange, NotLogits


@dataclass(frozen=True)
class ClassTarget:
    """The pre-softmax logit of class `index`; of the predicted class where it is None."""

    index: int | None = None

    def resolve(self, logits: Tensor) -> int:
        """The class meant, given one image's logits (C,).

        Raises:
            ClassOutOfRange: if the index is not in 0 … C-1.
        """
        classes = len(logits)
        if self.index is None:
            return int(logits.argmax())
        if not 0 <= self.index < classes:
            raise ClassOutOfRange(
                f"class index {self.index} is out of range; "
                f"the model has classes 0 to {classes - 1}"
            )
        return self.index


def logits_of(output: Any) -> Tensor:
    """The (batch, classes) logits in a model's output: the tensor itself, its `.logits`, its
    "logits" or "out" entry, or the first item of a tuple.

    Raises:
        NotLogits: if none of these is a floating-point tensor of two dimensions.
    """
    found = output
    if isinstance(found, Mapping):
        found = found.get("logits", found.get("out"))
    elif hasattr(found, "logits"):
        found = found.logits
    elif isinstance(found, tuple | list) and found:
        found = found[0]
    if not isinstance(found, Tensor) or not found.is_floating_point() or found.ndim != 2:
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(output).__name__
        raise NotLogits(f"the model's output is {shape}, not logits of shape (batch, classes)")
    return found
