"""What a request's parameters ask of a model: labels, layers and methods by name become a
question.
"""

from __future__ import annotations

import difflib
import fnmatch

from cam import METHODS, ClassTarget, Question
from service.errors import (
    ClassOutOfRange,
    InvalidParameter,
    InvalidTarget,
    UnknownLayer,
    UnknownMethod,
)
from service.parameters import (
    ActivationParameters,
    OneTarget,
    Parameters,
    TargetObject,
    no_method,
)
from service.registry import ServedModel

MAX_OBSERVED = 64
"""Layers of one :activations request."""


def question_of(model: ServedModel, parameters: Parameters) -> Question:
    """What the parameters ask of the model.

    Raises:
        UnknownMethod, UnknownLayer, UnknownLabel, AmbiguousLabel, ClassOutOfRange,
        InvalidTarget
    """
    if parameters.method not in METHODS:
        raise UnknownMethod(no_method(parameters.method))
    asked = parameters.target if isinstance(parameters.target, list) else [parameters.target]
    targets = tuple(target_of(model, target) for target in asked)
    named = parameters.layer if isinstance(parameters.layer, list) else [parameters.layer]
    layers = tuple(dict.fromkeys(_layer(model, name) for name in named))
    return Question(targets, parameters.method, layers, parameters.budget)


def layers_of(model: ServedModel, parameters: ActivationParameters) -> tuple[str, ...]:
    """The layers that names and patterns mean, in execution order.

    Raises:
        UnknownLayer, InvalidParameter
    """
    named = parameters.layer if isinstance(parameters.layer, list) else [parameters.layer]
    ran = [layer.name for layer in model.layers if layer.shape is not None]
    wanted: set[str] = set()
    for name in named:
        pattern = model.default_layer if name == "auto" else name
        found = [each for each in ran if each == pattern] or fnmatch.filter(ran, pattern)
        if not found:
            near = difflib.get_close_matches(pattern, ran, 3) or ran[-3:]
            raise UnknownLayer(
                f"model {model.name!r} has no layer {name[:80]!r} that returns a tensor; the "
                f"nearest are {', '.join(near)}"
            )
        wanted.update(found)
    if len(wanted) > MAX_OBSERVED:
        raise InvalidParameter(
            f"layer names {len(wanted)} layers; at most {MAX_OBSERVED} are allowed, so use a "
            "narrower pattern"
        )
    return tuple(name for name in ran if name in wanted)


def target_of(model: ServedModel, target: OneTarget | None) -> ClassTarget:
    """
    Raises:
        UnknownLabel, AmbiguousLabel, ClassOutOfRange, InvalidTarget
    """
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
