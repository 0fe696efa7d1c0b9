"""What a vision–language model has made of a photo, kept for further questions about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor

MAX_PREFIX_BYTES: Final = 256 << 20
"""Largest number of bytes that are kept of a photo in front of questions."""


@dataclass(frozen=True, eq=False)
class Prefix:
    """What a model made of the tokens up to the last one of the photo, which stand before every
    question about it."""

    ids: Tensor
    """int64 (m,)"""
    cache: Callable[[], Any]
    """Makes a cache of the keys and values of each block, to read on from."""
    hidden: Tensor
    """The last hidden states, float32 (m, D)."""
    turns: Any
    """See `VisionLanguageModel.turns`."""


@dataclass(eq=False)
class Encoding:
    """What a model made of a photo, for its further passes; empty until it has read it."""

    kept: bool = False
    """Whether further questions find it."""
    outputs: dict[str, Any] = field(default_factory=dict)
    """Of the image encoder."""
    prefix: Prefix | None = None


def first_of(cache: Any, length: int) -> Callable[[], Any] | None:
    """Return a function that makes a cache of the first tokens; None if the cache of a block is of
    a kind that forgets tokens or mixes them, or takes too many bytes."""
    layers = getattr(cache, "layers", ())
    if not layers or any(type(layer).__name__ != "DynamicLayer" for layer in layers):
        return None
    if any(layer.keys is None for layer in layers):  # a block that reads another one's
        return None
    kept = [(layer.keys[..., :length, :], layer.values[..., :length, :]) for layer in layers]
    if sum(each.nbytes for pair in kept for each in pair) > MAX_PREFIX_BYTES:
        return None
    own = [(keys.clone(), values.clone()) for keys, values in kept]
    return lambda: type(cache)(own)
