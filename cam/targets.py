"""What to explain: the scalar that is differentiated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from cam.errors import ClassOutOfRange, NotLogits, SelfContrast


@dataclass(frozen=True)
class ClassTarget:
    """The number y that is explained, made of one image's logits z.

    By default y = z_index. With `minus`, "why this class and not that": y = z_index − z_minus.
    With `against`, "what speaks against it": −y, whose gradient is the counterfactual one of
    Grad-CAM (Selvaraju et al. 2017, section 3.3). With `of = "probability"`, softmax
    probabilities stand in for logits: what raises the competitors counts, too.
    """

    index: int | None = None
    """The class; None for the predicted one."""
    minus: int | None = None
    """The class that it is contrasted with."""
    against: bool = False
    of: Literal["logit", "probability"] = "logit"

    def resolve(self, logits: Tensor) -> ClassTarget:
        """The same with its class filled in, given one image's logits (C,).

        Raises:
            ClassOutOfRange: if an index is not in 0 … C-1.
            SelfContrast: if a class would be contrasted with itself.
        """
        classes = len(logits)
        for index in (self.index, self.minus):
            if index is not None and not 0 <= index < classes:
                raise ClassOutOfRange(
                    f"class index {index} is out of range; the model has classes 0 to {classes - 1}"
                )
        found = int(logits.argmax()) if self.index is None else self.index
        if found == self.minus:
            said = "it is the predicted class" if self.index is None else "name another"
            raise SelfContrast(f"class {found} cannot be contrasted with itself; {said}")
        return replace(self, index=found)

    def score(self, logits: Tensor) -> Tensor:
        """y, a scalar, of one image's logits (C,); only of a resolved target."""
        values = logits.softmax(0) if self.of == "probability" else logits
        score = values[self.index]
        if self.minus is not None:
            score = score - values[self.minus]
        return -score if self.against else score


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
