"""Run forward passes without activation checkpointing.

A checkpointed block runs a second time in the backward pass, and its forward hooks run again, too.
If the checkpoint is reentrant, no gradient reaches the tensors inside the block. Checkpointing
saves memory in training and does not change any number, so cam runs models without it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from torch.utils import checkpoint

_NOT_REENTRANT: Final = tuple(
    name
    for name in (
        "_checkpoint_without_reentrant_generator",  # of older versions of torch
        "_checkpoint_without_reentrant_generator_impl",
    )
    if hasattr(checkpoint, name)
)
_lock = threading.Lock()
_blocks = 0
_this_thread = threading.local()
_originals: dict[str, Callable[..., Any]] = {}


@contextmanager
def without_checkpoints() -> Iterator[None]:
    """Disable checkpointing in this block and thread: `torch.utils.checkpoint` only calls the
    function. This also holds where a model has imported it under another name."""
    global _blocks
    with _lock:
        if _blocks == 0:
            _install()
        _blocks += 1
    _this_thread.depth = getattr(_this_thread, "depth", 0) + 1
    try:
        yield
    finally:
        _this_thread.depth -= 1
        with _lock:
            _blocks -= 1
            if _blocks == 0:
                _remove()


def _install() -> None:
    for name in _NOT_REENTRANT:
        _originals[name] = getattr(checkpoint, name)
        setattr(checkpoint, name, _not_reentrant(_originals[name]))
    apply = checkpoint.CheckpointFunction.apply

    def directly(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        if _inside():
            return function(*args)
        return apply(function, preserve_rng_state, *args)

    checkpoint.CheckpointFunction.apply = staticmethod(directly)


def _remove() -> None:
    for name, original in _originals.items():
        setattr(checkpoint, name, original)
    _originals.clear()
    del checkpoint.CheckpointFunction.apply  # makes the base class's method visible again


def _not_reentrant(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement for the generator that torch runs around a function with a
    non-reentrant checkpoint."""

    def around(*args: Any, **kwargs: Any) -> Any:
        return _nothing() if _inside() else original(*args, **kwargs)

    return around


def _nothing() -> Iterator[None]:
    yield


def _inside() -> bool:
    return getattr(_this_thread, "depth", 0) > 0
