"""What a request's parameters ask of a model: labels, layers and methods by name become a
question.
"""

from __future__ import annotations

import difflib

from cam import METHODS, ClassTarget, Question
from service.errors import (
    ClassOutOfRange,
    InvalidTarget,
    UnknownLayer,
    UnknownMethod,
)
from service.parameters import OneTarget, Parameters, TargetObject, no_method
from service.registry import ServedModel


def question_of(model: ServedModel, parameters: Parameters) -> Question:
    """What the parameters ask of the model.

    Raises:
        UnknownMethod, UnknownLayer, UnknownLabel, AmbiguousLabel, ClassOutOfRange,
        InvalidParameter
    """
    if parameters.method not in METHODS:
        raise UnknownMethod(no_method(parameters.method))
    asked = parameters.target if isinstance(parameters.target, list) else [parameters.target]
    targets = tuple(_target(model, target) for target in asked)
    named = parameters.layer if isinstance(parameters.layer, list) else [parameters.layer]
    layers = tuple(dict.fromkeys(_layer(model, name) for name in named))
    return Question(targets, parameters.method, layers, parameters.budget)


def _target(model: ServedModel, target: OneTarget | None) -> ClassTarget:
    if not isinstance(target, TargetObject):
        return ClassTarget(_class(model, target))
    index, minus = _class(model, target.class_), _class(model, target.minus)
    if index is not None and index == minus:
        raise InvalidTarget(
            f"class {index} ({model.labels.name(index) or 'no label'}) cannot be contrasted with "
            "itself; name another class in 'minus'"
        )
    return ClassTarget(index, minus, target.against, target.of)


def _class(model: ServedModel, target: int | str | None) -> int | None:
    if target is None:
        return None
    index = int(target) if str(target).isdecimal() else model.labels.index(str(target))
    if index >= model.classes:
        raise ClassOutOfRange(
            f"class index {str(index)[:40]} is out of range; model {model.name!r} has classes "
            f"0 to {model.classes - 1}"
        )
    return index


def _layer(model: ServedModel, name: str) -> str:
    if name == "auto":
        return model.default_layer
    for layer in model.layers:
        if layer.name == name:
            if layer.problem is None:
                return name
            raise UnknownLayer(f"no map can be made at layer {name!r}: {layer.problem}")
    usable = [layer.name for layer in model.layers if layer.explainable]
    near = difflib.get_close_matches(name, usable, 3) or usable[-3:]
    raise UnknownLayer(
        f"model {model.name!r} has no layer {name[:80]!r}; the nearest are {', '.join(near)} "
        f"(GET /v1/models/{model.name}/layers lists all)"
    )
