"""The values that the contract names are those of the library, which clients do not import."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest

from cam.evaluation.metrics import BASELINES, Better
from cam.explanation import Fusion, Smoothing
from cam.methods import METHODS
from cam.methods.method import Cost, Dependence, Family, Method
from cam.outputs import KINDS
from cam.outputs.output import Kind
from cam.outputs.reading import Activation
from service.core import choices
from service.features.evaluate.parameters import Baseline

ASKED = "answers"
"""The kind of a model that answers questions, which the library explains by `cam.answers`."""


@pytest.mark.parametrize(
    ("choice", "values"),
    [
        (choices.Activation, get_args(Activation)),
        (Baseline, BASELINES),
        (choices.Better, get_args(Better)),
        (choices.ClassDependence, get_args(Dependence)),
        (choices.Fuse, get_args(Fusion)),
        (choices.MapPlace, get_args(get_type_hints(Method)["at"])),
        (choices.MethodCost, get_args(Cost)),
        (choices.MethodFamily, get_args(Family)),
        (choices.Smooth, get_args(Smoothing)),
    ],
)
def test_choices_are_the_library_s(choice: Any, values: Any) -> None:
    assert get_args(choice.__value__) == tuple(values)


def test_a_model_s_kind_is_one_of_the_library_s_or_it_is_asked() -> None:
    named = get_args(choices.ModelKind.__value__)
    assert set(named) == ({*get_args(Kind)} - {"features"}) | {ASKED}
    assert len(named) == len(set(named))


def test_each_method_and_each_kind_can_be_named() -> None:
    assert {method.family for method in METHODS.values()} <= {*get_args(Family)}
    assert {method.cost for method in METHODS.values()} <= {*get_args(Cost)}
    assert KINDS.keys() <= {*get_args(choices.ModelKind.__value__)}
