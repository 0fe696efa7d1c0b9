"""How a model's output is read: where its logits are, and how they become probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

import torch
from torch import Tensor
from torch.autograd.graph import Node

from cam.errors import NotLogits, UnsuitedActivation

Activation = Literal["softmax", "sigmoid", "none"]
"""Function that turns logits into probabilities: `softmax` over the classes; `sigmoid` of each
class separately; `none` if the outputs are probabilities already."""

KNOWN: Final = ("logits", "out")
"""Names of the logits in libraries: the first in Hugging Face and timm, the second in torchvision's
segmenters."""
RESHAPING: Final = frozenset(
    {"Alias", "AsStrided", "Clone", "Expand", "Index", "Permute", "ReshapeAlias", "Select", "Slice"}
    | {"Split", "Squeeze", "T", "ToCopy", "Transpose", "Unbind", "UnsafeView", "Unsqueeze", "View"}
)
"""Operations that only select, reorder and copy numbers, by their autograd names."""
AVERAGING: Final = frozenset(
    {"Add", "Cat", "Div", "Mean", "Mul", "Rsub", "Stack"}
    | {"UpsampleBilinear2D", "UpsampleNearest2D"}
)
"""Operations that compute the mean of an ensemble, (1 - p, p), or enlarged probabilities."""


@dataclass(frozen=True)
class Reading:
    """How a model's output is read.

    Raises:
        UnsuitedActivation: if there is no such activation.
    """

    output: str | int | None = None
    """Name or index of the logits in a mapping, an object or a tuple; None if they are the only
    tensor that can be logits, or have the name "logits" or "out"."""
    activation: Activation | Literal["auto"] = "auto"
    """Activation that turns the logits into probabilities; for `auto`, see `activation_of`."""

    def __post_init__(self) -> None:
        known = ("auto", *get_args(Activation))
        if self.activation not in known:
            raise UnsuitedActivation(
                f"there is no activation {self.activation!r}; it is one of {', '.join(known)}"
            )

    @property
    def of_logits(self) -> Reading:
        """The same reading for logits that `logits_of` has already extracted from the output."""
        return replace(self, output=None)


AUTO: Final = Reading()


def logits_of(raw: Any, reading: Reading = AUTO, *, batch: int | None = None) -> Tensor:
    """Return the logits in a model's output: (batch, outputs) or (batch, outputs, height, width).

    The logits are the tensor itself, the entry that `reading.output` names, the "logits" or "out"
    entry, or the only entry of a tuple, mapping or object that can be logits. Such an entry is
    floating-point, 2-D or 4-D, and has `batch` rows if `batch` is given.

    Raises:
        NotLogits: if there are no logits, or if several tensors could be logits and none is named.
    """
    if isinstance(raw, Tensor):
        if reading.output is not None:
            raise NotLogits(
                f"the model's output is one tensor and has no {reading.output!r}; leave out output"
            )
        return _checked(raw, raw)
    entries = _entries(raw, reading.output)
    if reading.output is not None:
        return _checked(_named(entries, reading.output, type(raw).__name__), raw)
    for name in KNOWN:
        if isinstance(entries.get(name), Tensor):
            return _checked(entries[name], raw)
    found = {
        name: value
        for name, value in entries.items()
        if _may_be_logits(value) and batch in (None, len(value))
    }
    if len(found) > 1:
        shapes = [f"{name} of shape {tuple(value.shape)}" for name, value in found.items()]
        raise NotLogits(
            f"the model returns {len(found)} tensors that could be its logits: "
            f"{', '.join(shapes)}; say which with output"
        )
    return _checked(next(iter(found.values()), None), raw)


def activation_of(logits: Tensor, reading: Reading = AUTO) -> tuple[Activation, str]:
    """Return the activation for logits (batch, outputs, …), and the reason as half a sentence.

    With `auto`, the activation is `none` if the graph of `logits` ends in a softmax or a sigmoid,
    else `sigmoid` for one output, else `softmax`. For log-probabilities it is `softmax`, too, which
    is correct.

    Raises:
        UnsuitedActivation: if the reading asks for the softmax of one output, which is always 1.
    """
    single = logits.shape[1] == 1
    if reading.activation == "softmax" and single:
        raise UnsuitedActivation(
            "the model has one output, and the softmax of one logit is always 1; the activation of "
            "such a model is sigmoid or none"
        )
    if reading.activation != "auto":
        return reading.activation, "it was given"
    ending = _ending(logits.grad_fn)
    if ending:
        return "none", f"the model ends in a {ending}"
    if single:
        return "sigmoid", "the model's output has one logit"
    return "softmax", "the model has several outputs and ends in no softmax or sigmoid"


def shows_ending(logits: Tensor) -> bool:
    """Return whether the graph of `logits` goes back to the operation in which the model ends."""
    node = logits.grad_fn
    while node is not None and _operation(node) in RESHAPING | AVERAGING:
        node = node.next_functions[0][0]
    return node is not None and _operation(node) not in ("AccumulateGrad", "CompiledFunction")


def classes_of(logits: Tensor, activation: Activation) -> Tensor:
    """Return the logits of classes, (batch, classes, …), for outputs (batch, outputs, …).

    If there are several outputs, each one is a class. A single output stands for two classes, the
    negative one and the positive one: a logit z becomes the logits (−z, z), whose sigmoids are
    (1 − p, p), and a probability p becomes (1 − p, p).
    """
    if logits.shape[1] != 1:
        return logits
    return torch.cat([1 - logits if activation == "none" else -logits, logits], 1)


def probabilities_of(logits: Tensor, activation: Activation) -> Tensor:
    """Return the probabilities of one image's logits (classes, …), in the same shape."""
    if activation == "softmax":
        return logits.softmax(0)
    return logits.sigmoid() if activation == "sigmoid" else logits


def _may_be_logits(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim in (2, 4)


def _checked(found: Any, raw: Any) -> Tensor:
    if _may_be_logits(found):
        logits: Tensor = found
        return logits
    shape = tuple(found.shape) if isinstance(found, Tensor) else type(raw).__name__
    raise NotLogits(
        f"the model's output is {shape}, not logits of shape (batch, classes) or (batch, "
        "classes, height, width), nor a list of detections"
    )


def _entries(raw: Any, asked: str | int | None) -> dict[str | int, Any]:
    """Return the entries of a mapping, an object or a tuple by name, or by index without names."""
    if isinstance(raw, Mapping):
        return dict(raw)
    if isinstance(raw, tuple | list):
        return dict(zip(getattr(raw, "_fields", range(len(raw))), raw, strict=True))
    names = [name for name in (*KNOWN, asked) if isinstance(name, str) and hasattr(raw, name)]
    return {**getattr(raw, "__dict__", {}), **{name: getattr(raw, name) for name in names}}


def _named(entries: dict[str | int, Any], asked: str | int, kind: str) -> Any:
    """Return the entry with that name or index.

    Raises:
        NotLogits: if there is no such entry.
    """
    names = list(entries)
    # Hugging Face's outputs are mappings that can also be indexed like tuples.
    if isinstance(asked, int) and asked not in entries and 0 <= asked < len(names):
        return entries[names[asked]]
    if asked not in entries:
        have = ", ".join(map(str, names)) or "no entries"
        raise NotLogits(f"the model's output has no {asked!r}: it is a {kind} with {have}")
    return entries[asked]


def _operation(node: Node) -> str:
    """Return autograd's name of the operation behind a node: "Softmax" for SoftmaxBackward0."""
    return node.name().rpartition("::")[2].partition("Backward")[0].lstrip("_")


def _ending(node: Node | None) -> str | None:
    """Return `softmax` or `sigmoid` if the graph up to this node ends in one, else None."""
    if node is None:
        return None
    operation = _operation(node)
    if operation in ("Softmax", "Sigmoid"):
        return operation.lower()
    before = [each for each, _ in node.next_functions if each is not None]
    if operation == "Exp" and before and _operation(before[0]) == "LogSoftmax":
        return "softmax"
    if operation in RESHAPING | AVERAGING and before:
        endings = [_ending(each) for each in before]
        return None if None in endings else endings[0]
    return None
