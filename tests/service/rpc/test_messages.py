"""Which classes bytes from another process may name."""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import Any

import pytest

from cam.drawing.notebook import InputPicture
from service.backend.watch import WatchWork
from service.backend.work import StepWork, Work
from service.core.errors import Problem
from service.rpc.frames import Codec, UnknownClass
from service.rpc.messages import _consist_of, codec

FOREIGN = {"ndarray", "dtype", "_frombuffer", "_reconstruct", "scalar", "set", "frozenset"}
"""Of NumPy and Python; and of Pillow the enumeration of ways to resize."""


def known() -> dict[tuple[str, str], Any]:
    """Without toys of other tests."""
    return {key: each for key, each in codec().classes.items() if not key[0].startswith("tests.")}


def test_they_hold_values_alone() -> None:
    """No class has a function of its own that reading a pickle would call."""
    ours = {key: each for key, each in known().items() if key[0].startswith(("cam.", "service."))}
    assert {name for _, name in known().keys() - ours.keys()} == FOREIGN | {"Resampling"}
    for class_ in ours.values():
        if dataclasses.is_dataclass(class_):
            assert class_.__reduce__ is object.__reduce__
            assert not hasattr(class_, "__setstate__")
        else:
            assert issubclass(class_, Enum | Problem) or hasattr(class_, "_fields")


def test_each_kind_of_work_is_among_them() -> None:
    classes = set(known().values())
    bases = {Work, StepWork, WatchWork}
    kinds = {each for base in bases for each in base.__subclasses__()} - bases
    assert classes > {each for each in kinds if each.__module__.startswith("service.")}


def test_a_picture_of_a_notebook_does_not_cross() -> None:
    assert InputPicture not in known().values()


@dataclasses.dataclass
class Inner:
    value: int


@dataclasses.dataclass
class Outer:
    inner: dict[str, list[Inner] | None]


def test_what_fields_consist_of_is_found() -> None:
    assert _consist_of([Outer]) == {Outer, Inner}
    codec = Codec({Outer})
    (frame := codec.frame()).add(Outer({"a": [Inner(1)]}))
    (_, *pieces) = frame.pieces()
    with pytest.raises(UnknownClass, match="Inner"):
        codec.read(b"".join(pieces))
    codec = Codec(_consist_of([Outer]))
    assert codec.read(b"".join(pieces)) == [Outer({"a": [Inner(1)]})]
