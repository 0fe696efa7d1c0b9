"""How a model's output is read: where its logits are, and how they become probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final, Literal, get_args

import torch
from torch import Tensor

from cam.errors import NotLogits, UnsuitedActivation
from cam.outputs import KINDS

Activation = Literal["softmax", "sigmoid", "none"]
"""Function that turns logits into probabilities: `softmax` over the classes; `sigmoid` of each
class separately; `none` if the outputs are probabilities already."""

Meaning = Literal["classes", "value", "features"]
"""What a model's outputs for an image are: scores of classes; values, as those of a regression; or
features of a model that has no head."""

KNOWN: Final = ("logits", "out")
"""Names of the logits in libraries: the first in Hugging Face and timm, the second in torchvision's
segmenters."""
QUERIED: Final = frozenset({"class_queries_logits", "masks_queries_logits"})
"""Names in the outputs of Hugging Face's MaskFormer, Mask2Former and OneFormer."""
FEATURES: Final = ("pooler_output", "last_hidden_state", "feature_maps")
"""Names of the features in Hugging Face's outputs, beside those that end in "_embeds"."""


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
    """Activation that turns the logits into probabilities; for `auto`, see `resolve_reading`."""
    meaning: Meaning | Literal["auto"] = field(default="auto", repr=False)
    """What the outputs are; for `auto`, see `resolve_reading`."""
    classes: int | None = field(default=None, repr=False)
    """Number of a detector's classes; None for the number that the model states: see
    `cam.detectors.forms.stated_classes`."""

    named: bool = field(default=False, repr=False)
    """Whether it is known that the outputs are scores of classes, such as by their labels."""

    def __post_init__(self) -> None:
        known = ("auto", *get_args(Activation))
        if self.activation not in known:
            raise UnsuitedActivation(
                f"there is no activation {self.activation!r}; it is one of {', '.join(known)}"
            )

    @property
    def resolved(self) -> bool:
        """Whether the activation and the meaning of the outputs are known without the model."""
        return self.meaning != "auto" or self.activation in ("softmax", "sigmoid")


AUTO: Final = Reading()


def logits_of(raw: Any, reading: Reading = AUTO, *, batch: int | None = None) -> Tensor:
    """Return the logits in a model's output: (batch, outputs) or (batch, outputs, height, width).

    The logits are the tensor itself, the entry that `reading.output` names, the "logits" or "out"
    entry, or the only entry of a tuple, mapping or object that can be logits. Such an entry is
    floating-point, 2-D or 4-D, and has `batch` rows if `batch` is given. A tensor (batch,) is one
    logit of each image, and (batch, outputs, 1, 1) are those of whole images.

    Raises:
        NotLogits: if there are no logits, or if several tensors could be logits and none is named.
    """
    if isinstance(raw, Tensor):
        if reading.output is not None:
            raise NotLogits(
                f"the model's output is one tensor and has no {reading.output!r}; leave out output"
            )
        return _checked(raw, raw, batch)
    entries = _entries(raw, reading.output)
    if reading.output is not None:
        return _checked(_named(entries, reading.output, type(raw).__name__), raw, batch)
    for name in KNOWN:
        if isinstance(entries.get(name), Tensor):
            return _checked(entries[name], raw, batch)
    candidates = {
        name: value
        for name, value in entries.items()
        if not _names_features(name) and _may_be_logits(value) and batch in (None, len(value))
    }
    if entries.keys() >= QUERIED:
        raise NotLogits(
            f"the model's output, a {type(raw).__name__}, has classes and a mask for each query, "
            "and no logits of classes at each pixel: put the model into a module that returns "
            "torch.einsum('bqc,bqhw->bchw', said.class_queries_logits.softmax(-1)[..., :-1], "
            "said.masks_queries_logits.sigmoid()), or explain the mask of one query, whose index "
            "is then the class, with output='masks_queries_logits' and activation='sigmoid'"
        )
    if len(candidates) > 1:
        shapes = [f"{name} of shape {tuple(value.shape)}" for name, value in candidates.items()]
        raise NotLogits(
            f"the model returns {len(candidates)} tensors that could be its logits: "
            f"{', '.join(shapes)}; say which with output"
        )
    return _checked(next(iter(candidates.values()), None), raw, batch)


def features_of(raw: Any, batch: int | None = None) -> list[Tensor]:
    """Return the features in the output of a model without a head, (batch, …), those of the fewest
    dimensions first; none if the output is a single tensor, or if a tensor in it can be logits."""
    if isinstance(raw, Tensor):
        return []
    entries = {
        name: value
        for name, value in _entries(raw, None).items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }
    tensors = [
        value
        for name, value in entries.items()
        if _names_features(name) and value.ndim > 1 and batch in (None, len(value))
    ]
    if any(
        name in KNOWN or (not _names_features(name) and _may_be_logits(value))
        for name, value in entries.items()
    ):
        return []
    return sorted(tensors, key=lambda value: value.ndim)


def activation_for(outputs: int, reading: Reading) -> Activation:
    """Return the reading's activation for a number of outputs; `auto` is `sigmoid` for one output,
    else `softmax`.

    Raises:
        UnsuitedActivation: if the reading asks for the softmax of one output, which is always 1.
    """
    if reading.activation == "softmax" and outputs == 1:
        raise UnsuitedActivation(
            "the model has one output, and the softmax of one logit is always 1; the activation of "
            "such a model is sigmoid or none"
        )
    if reading.activation != "auto":
        return reading.activation
    return "sigmoid" if outputs == 1 else "softmax"


def classes_of(logits: Tensor, activation: Activation) -> Tensor:
    """Return the logits of classes, (batch, classes, …), for outputs (batch, outputs, …).

    If there are several outputs, each one is a class. A single output stands for two classes, the
    negative one and the positive one: a logit z becomes the logits (−z, z), whose sigmoids are
    (1 − p, p), and a probability p becomes (1 − p, p).
    """
    if logits.shape[1] != 1:
        return logits
    return torch.cat([1 - logits if activation == "none" else -logits, logits], 1)


def probabilities_of(logits: Tensor, activation: Activation, axis: int = 0) -> Tensor:
    """Return the probabilities of logits, whose classes lie along an axis, in the same shape."""
    if activation == "softmax":
        return logits.softmax(axis)
    return logits.sigmoid() if activation == "sigmoid" else logits


def are_shares(values: Tensor, slack: float = 0.0) -> bool:
    """Return whether all values are in 0 … 1, or outside it by at most `slack`; NaN values are
    ignored."""
    return not bool(((values < -slack) | (values > 1 + slack)).any())


def _may_be_logits(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim in (2, 4)


def _is_vector(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim < 2


def _names_features(name: str | int) -> bool:
    return isinstance(name, str) and (name in FEATURES or name.endswith("_embeds"))


def _checked(value: Any, raw: Any, batch: int | None) -> Tensor:
    if _may_be_logits(value):
        logits: Tensor = value
        return logits.flatten(1) if logits.shape[2:] == (1, 1) else logits
    # One logit of each image; that of a single image has no axis after `squeeze`.
    if _is_vector(value) and batch in (None, value.numel()):
        vector: Tensor = value
        return vector.reshape(-1, 1)
    shape = tuple(value.shape) if isinstance(value, Tensor) else type(raw).__name__
    raise NotLogits(
        f"the model's output is {shape}, not logits of shape (batch, classes) or (batch, "
        f"classes, height, width){''.join(f', nor a list of {kind}' for kind in KINDS)}"
    )


def _entries(raw: Any, asked: str | int | None) -> dict[str | int, Any]:
    """Return the entries of a mapping, an object or a tuple by name, or by index without names."""
    if isinstance(raw, Mapping):
        return dict(raw)
    if isinstance(raw, tuple | list):
        return dict(zip(getattr(raw, "_fields", range(len(raw))), raw, strict=True))
    names = [name for name in (*KNOWN, asked) if isinstance(name, str) and hasattr(raw, name)]
    names += [field.name for field in fields(raw)] if is_dataclass(raw) else []
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
