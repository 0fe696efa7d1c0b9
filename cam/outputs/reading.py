"""How a model's output is read: where its logits are, and what makes probabilities of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

import torch
from torch import Tensor
from torch.autograd.graph import Node

from cam.errors import NotLogits, UnsuitedActivation

Activation = Literal["softmax", "sigmoid", "none"]
"""What makes probabilities of logits: `softmax` over the classes; `sigmoid` of each class by
itself; `none` where the outputs are probabilities already."""

KNOWN: Final = ("logits", "out")
"""What libraries call the logits: Hugging Face and timm the first, torchvision's segmenters the
second."""
RESHAPING: Final = frozenset(
    {"Alias", "AsStrided", "Clone", "Expand", "Index", "Permute", "ReshapeAlias", "Select", "Slice"}
    | {"Split", "Squeeze", "T", "ToCopy", "Transpose", "Unbind", "UnsafeView", "Unsqueeze", "View"}
)
"""Operations that only choose, order and copy numbers, as autograd calls them."""
AVERAGING: Final = frozenset(
    {"Add", "Cat", "Div", "Mean", "Mul", "Rsub", "Stack"}
    | {"UpsampleBilinear2D", "UpsampleNearest2D"}
)
"""Operations of which the means of an ensemble, (1 - p, p) and enlarged probabilities are made."""


@dataclass(frozen=True)
class Reading:
    """How a model's output is read.

    Raises:
        UnsuitedActivation: if the activation is none of those that there are.
    """

    output: str | int | None = None
    """The name or index of the logits in a mapping, an object or a tuple; None where they are the
    only tensor that can be logits, or are called "logits" or "out"."""
    activation: Activation | Literal["auto"] = "auto"
    """What makes probabilities of the logits; `auto`: see `activation_of`."""

    def __post_init__(self) -> None:
        known = ("auto", *get_args(Activation))
        if self.activation not in known:
            raise UnsuitedActivation(
                f"there is no activation {self.activation!r}; it is one of {', '.join(known)}"
            )

    @property
    def of_logits(self) -> Reading:
        """The reading of the logits by themselves, when `logits_of` has found them."""
        return replace(self, output=None)


AUTO: Final = Reading()


def logits_of(raw: Any, reading: Reading = AUTO, *, batch: int | None = None) -> Tensor:
    """The (batch, outputs) or (batch, outputs, height, width) logits in a model's output.

    They are the tensor itself, what `reading.output` names, the "logits" or "out" entry, or the
    only entry of a tuple, mapping or object that can be logits: floating-point, 2-D or 4-D, and,
    where `batch` is given, with so many rows.

    Raises:
        NotLogits: if there are none, or several and nothing says which.
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
    """What makes probabilities of logits (batch, outputs, …), and why, as half a sentence.

    With `auto` it is `none` where the graph of `logits` ends in a softmax or a sigmoid, else
    `sigmoid` of one output, else `softmax` (also of log-probabilities, whose softmax is right).

    Raises:
        UnsuitedActivation: if it is to be the softmax of one output, which is always 1.
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
    """Whether the graph of `logits` goes back to the operation that would be its ending."""
    node = logits.grad_fn
    while node is not None and _operation(node) in RESHAPING | AVERAGING:
        node = node.next_functions[0][0]
    return node is not None and _operation(node) not in ("AccumulateGrad", "CompiledFunction")


def classes_of(logits: Tensor, activation: Activation) -> Tensor:
    """Logits (batch, classes, …) of outputs (batch, outputs, …): of several, each is a class.
    One output stands for two classes, the negative one and the positive one: a logit z for the
    logits (−z, z), whose sigmoids are (1 − p, p), and a probability p for (1 − p, p)."""
    if logits.shape[1] != 1:
        return logits
    return torch.cat([1 - logits if activation == "none" else -logits, logits], 1)


def probabilities_of(logits: Tensor, activation: Activation) -> Tensor:
    """The probabilities of one image's logits (classes, …), of the same shape."""
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
    """What a mapping, an object or a tuple holds, by name, or by index where it has no names."""
    if isinstance(raw, Mapping):
        return dict(raw)
    if isinstance(raw, tuple | list):
        return dict(zip(getattr(raw, "_fields", range(len(raw))), raw, strict=True))
    names = [name for name in (*KNOWN, asked) if isinstance(name, str) and hasattr(raw, name)]
    return {**getattr(raw, "__dict__", {}), **{name: getattr(raw, name) for name in names}}


def _named(entries: dict[str | int, Any], asked: str | int, kind: str) -> Any:
    """
    Raises:
        NotLogits: if there is no such entry.
    """
    names = list(entries)
    # Hugging Face's outputs are mappings that are indexed like tuples.
    if isinstance(asked, int) and asked not in entries and 0 <= asked < len(names):
        return entries[names[asked]]
    if asked not in entries:
        have = ", ".join(map(str, names)) or "no entries"
        raise NotLogits(f"the model's output has no {asked!r}: it is a {kind} with {have}")
    return entries[asked]


def _operation(node: Node) -> str:
    """What autograd calls the operation behind a node: "Softmax" of SoftmaxBackward0."""
    return node.name().rpartition("::")[2].partition("Backward")[0].lstrip("_")


def _ending(node: Node | None) -> str | None:
    """`softmax` or `sigmoid`, where the graph up to this node ends in one."""
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
