"""The messages between a process that receives requests and the process of the engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
from typing_extensions import TypeAliasType, get_original_bases

from cam.agreement import Fidelity
from cam.progress import Progress
from service.backend.outcome import Outcome
from service.backend.work import Work
from service.core import errors
from service.core.choices import RuntimeName
from service.models.info import ModelInfo
from service.rpc.frames import Codec


@dataclass(frozen=True)
class Add:
    """Loads one more model in the background."""

    entry: str
    """The model's entry, in JSON."""
    file: str = ""
    """Path of the file that the entry was read from, "" if none."""
    most: int | None = None
    """Largest number of models."""


@dataclass(frozen=True)
class Remove:
    """Unloads the model."""


@dataclass(frozen=True)
class RemoteCall:
    """A call of the backend or of a model."""

    number: int
    """Number of the call on its connection."""
    model: str
    work: Work[Any] | Add | Remove
    fingerprint: str = ""
    """Fingerprint of the model that the caller knows under this name, for a model's work."""
    listens: bool = False
    """Whether the caller wants to know the progress."""
    log_context: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What each line of the log about this call states, such as the request's id."""


@dataclass(frozen=True)
class Cancelled:
    """The caller no longer waits for the call."""

    number: int


@dataclass(frozen=True)
class Idle:
    """No image of the model is in work at the caller any more; only for a call of `remove`."""

    number: int


@dataclass(frozen=True)
class Shared:
    """The sender has memory for the pixels of its calls; the answer is the same message, once the
    other process has opened it."""

    descriptor: int
    """Number of the file descriptor at the process that receives requests."""


@dataclass(frozen=True)
class Progressed:
    """The progress of a call."""

    number: int
    progress: Progress


@dataclass(frozen=True)
class Returned:
    """The result of a call. The pixels of the call are not needed any more."""

    number: int
    value: Any


@dataclass(frozen=True)
class Raised:
    """The error of a call, also of one that was cancelled. Its pixels are not needed any more."""

    number: int
    problem: errors.Problem


@dataclass(frozen=True)
class ModelSnapshot:
    """One model, as requests see it."""

    ready: bool
    problem: errors.Problem | None
    """What a request for the model is answered at the moment; None if its images are explained."""
    info: ModelInfo | None = None
    """None as long as there is a problem, as for all that follows."""
    devices: str = ""
    copies: int = 0
    runtime: RuntimeName = "torch"
    fidelities: Mapping[str, Fidelity] = dataclasses.field(default_factory=dict)
    images_a_second: float = 0.0
    fast: frozenset[str] = frozenset()
    """Names of the methods whose maps come from the fast path."""


@dataclass(frozen=True)
class State:
    """All models, as requests see them. It is sent when a connection begins, and at each change."""

    models: Mapping[str, ModelSnapshot]
    ready: bool
    why_not_ready: str
    loaded: bool
    """Whether all models of the catalog have been loaded once."""
    process: int | None = None
    """Number of the process that serves the backend."""


def _of(kind: type[Any]) -> Iterator[type[Any]]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _of(subclass)


def _consist_of(types: Iterator[Any] | list[Any]) -> set[type[Any]]:
    """Return the data classes, named tuples and enumerations among types, and those that their
    fields consist of, but for classes with a pickle of their own."""
    found: set[type[Any]] = set()
    left = list(types)
    while left:
        one = left.pop()
        if isinstance(one, TypeAliasType):
            left.append(one.__value__)
            continue
        left += get_args(one)
        class_ = get_origin(one) or one
        if not isinstance(class_, type) or class_ in found:
            continue
        plain = dataclasses.is_dataclass(class_) and class_.__reduce__ is object.__reduce__
        if plain or issubclass(class_, Enum) or hasattr(class_, "_fields"):
            found.add(class_)
            left += get_type_hints(class_).values()
    return found


_MESSAGES = [RemoteCall, Cancelled, Idle, Shared, Progressed, Returned, Raised, State]
_ARRAY = np.zeros(1, np.float32)
_SCALAR = np.float32(0)
_NUMPY = {
    np.ndarray,
    np.dtype,
    _ARRAY.__reduce_ex__(5)[0],  # builds an array from the bytes of its elements
    _ARRAY[::2].__reduce_ex__(2)[0],  # builds an array that is not contiguous
    _SCALAR.__reduce__()[0],
}
"""What the pickles of arrays and of single numbers name."""


@cache
def codec() -> Codec:
    """Return what can be read: messages, what a model is asked to do and answers, and what these
    consist of, as their annotations say.

    Both processes must have imported all kinds of work before (`service.features.WORK`).
    """
    kinds = [each for kind in _of(Work) for each in (kind, *get_original_bases(kind))]
    return Codec(
        {
            *_consist_of([*_MESSAGES, *kinds, Outcome, *_of(Progress)]),
            *(each for each in _of(errors.Problem) if each.__module__ == errors.__name__),
            *_NUMPY,
            *(set, frozenset),
        }
    )
