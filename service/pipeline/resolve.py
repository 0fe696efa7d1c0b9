"""Resolution of a request's parameters, which name labels, layers and methods, into questions to a
model.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from PIL import Image

from cam import METHODS, ClassTarget, Question, Target, UnitTarget
from cam.counts import counted
from cam.errors import MethodUnsuited
from service.backend.work import ReadText
from service.core.errors import (
    ClassOutOfRange,
    InvalidParameter,
    InvalidTarget,
    Problem,
    UnknownLayer,
    UnknownMethod,
    UnsuitedMethod,
)
from service.models.info import LayerInfo, ModelInfo
from service.models.labels import Labels
from service.models.preprocessing import ModelInput
from service.pipeline.coordinates import box_on_input, mask_on_input
from service.pipeline.images import picture_of
from service.pipeline.parameters import (
    AUDITED,
    MAX_MATCHED,
    ImageParameters,
    Parameters,
    PredictParameters,
    is_pattern,
    no_method,
)
from service.pipeline.targets import (
    MAX_MAPS,
    NamedClass,
    OneTarget,
    TargetObject,
    TargetParameter,
)


def questions_of(model: ModelInfo, parameters: Parameters) -> tuple[Question, ...]:
    """Return the questions that the parameters ask of the model, one for each method. `placed`
    completes the targets that point at the photo.

    Raises:
        UnknownMethod, UnsuitedMethod, UnknownLayer, UnknownLabel, AmbiguousLabel,
        ClassOutOfRange, InvalidTarget, InvalidParameter
    """
    model, parameters = asked_model(model, parameters), _audited(model, parameters)
    targets = tuple(target_of(model, target) for target in asked_of(parameters.target))
    if model.kind == "detections" and parameters.target is None:
        ranks = range(min(parameters.boxes, MAX_MAPS))
        targets = tuple(ClassTarget(rank=rank) for rank in ranks)
    methods = parameters.methods
    alone = len(methods) == 1
    questions = [_question(model, parameters, each, targets, alone=alone) for each in methods]
    layers = max(len(question.layers) for question in questions)
    _require_reasons(model, parameters)
    maps = len(targets) * parameters.maps_at(layers) * parameters.reasons
    if maps > MAX_MAPS:
        several = f" by {len(questions)} methods" if len(questions) > 1 else ""
        several += f", with {parameters.reasons} reasons each," if parameters.reasons > 1 else ""
        raise InvalidParameter(
            f"{counted(len(targets), 'target')} at {counted(layers, 'layer')}{several} would have "
            f"{maps} maps; at most {MAX_MAPS} of an image are allowed"
        )
    return tuple(questions)


def takes_many_passes(model: ModelInfo, parameters: Parameters) -> bool:
    """Return whether an image needs many passes that it shares with no other image, for its maps or
    for their scores."""
    try:
        questions = questions_of(model, parameters)
    except Problem:
        return False  # it fails at once
    return parameters.scored or any(question.in_steps for question in questions)


def _require_reasons(model: ModelInfo, parameters: Parameters) -> None:
    """Check that further reasons can be found, if the parameters ask for them.

    Raises:
        InvalidParameter: if not.
    """
    if parameters.reasons == 1:
        return
    said = f"reasons is {parameters.reasons}"
    problem: str | None = None
    if model.kind == "detections":
        problem = f"{said}, and a box that {model.name!r} detects may be gone from a masked photo"
    elif parameters.scored:
        problem = f"{said}, and metrics score maps of the photo itself, not of a masked one"
    if problem:
        raise InvalidParameter(f"{problem}; leave reasons out")
    if not 0 < parameters.threshold < 1:
        problem = f"threshold is {parameters.threshold:g}; it can be above 0 and below 1"
    elif parameters.normalize == "none":
        problem = "normalize is 'none'; it can be minmax or percentile"
    elif parameters.size == "layer":
        problem = "size is 'layer'; it can be image or model"
    if problem:
        raise InvalidParameter(f"{problem}, where {said}")


def asked_model(model: ModelInfo, parameters: ImageParameters) -> ModelInfo:
    """Return the model with the request's prompts as its classes, if it has some.

    Raises:
        InvalidParameter: if the model takes no prompts, or would compare one with nothing.
    """
    if not isinstance(parameters, PredictParameters) or parameters.prompts is None:
        return model
    if not model.takes_text:
        raise InvalidParameter(
            f"model {model.name!r} takes no prompts: it is not an image–text model; leave them out"
        )
    names = tuple(prompt.strip() for prompt in parameters.prompts)
    if len(names) == 1:
        if model.activation == "softmax":
            raise InvalidParameter(
                f"the probability of {names[0][:80]!r} alone is always 1; name a second prompt to "
                "compare it with, such as 'a photo'"
            )
        names = (f"not {names[0]}", *names)
    return replace(model, labels=Labels.of(names), classes=len(names), unnamed=None)


def cheapest(model: ModelInfo, questions: Sequence[Question]) -> tuple[Question, ...]:
    """Return the question that tells the target's class with the fewest passes, for a map that was
    sent: the map of the method that the parameters name is not needed."""
    if "gradcam" in model.unsuited or model.default_layer is None:
        return tuple(questions)
    return (Question(questions[0].targets, "gradcam", (model.default_layer,)),)


def methods_of(model: ModelInfo, parameters: Parameters) -> list[str]:
    """Return the names of the methods, without duplicates, with the one that the model's audit
    recommends in place of `auto`.

    Raises:
        UnsuitedMethod: if `auto` is among them, and the model has no audit.
    """
    if AUDITED not in parameters.methods:
        return parameters.methods
    recommended = recommended_method(model)
    names = [recommended if name == AUDITED else name for name in parameters.methods]
    return list(dict.fromkeys(names))


def recommended_method(model: ModelInfo) -> str:
    """Return the method that the model's audit recommends, which `auto` stands for.

    Raises:
        UnsuitedMethod: if the model has no audit.
    """
    if model.audited is None:
        raise UnsuitedMethod(
            f"model {model.name!r} has no audit, so method 'auto' means none; name a method, or "
            "let `gradcam audit` find one and name its audit.json in the model's entry"
        )
    return model.audited.method


def _audited(model: ModelInfo, parameters: Parameters) -> Parameters:
    """Return the parameters with the method that the model's audit recommends in place of `auto`,
    and with its layer if there is no other method and no other layer is named. Several methods are
    compared, so they share the default layer.

    Raises:
        UnsuitedMethod: if the model has no audit.
    """
    if AUDITED not in parameters.methods:
        return parameters
    methods, audited = methods_of(model, parameters), model.audited
    assert audited is not None  # `methods_of` raises
    change: dict[str, object] = {"method": methods}
    automatic = len(methods) == 1 and parameters.layer == "auto"
    if automatic and METHODS[audited.method].at == "layer":
        change["layer"] = audited.layer.split(" + ")  # of several layers, one map
    return parameters.model_copy(update=change)


def _question(
    model: ModelInfo,
    parameters: Parameters,
    method: str,
    targets: tuple[Target, ...],
    *,
    alone: bool,
) -> Question:
    """Return the question that the parameters ask of the model for one method.

    Args:
        alone: whether there is no other method.

    Raises:
        UnknownMethod, UnsuitedMethod, UnknownLayer, InvalidParameter
    """
    if method not in METHODS:
        raise UnknownMethod(no_method(method))
    automatic = parameters.layer == "auto"
    if method in model.unsuited and (automatic or method != "cam"):
        able = ", ".join(name for name in METHODS if name not in model.unsuited)
        raise UnsuitedMethod(
            f"model {model.name!r} cannot do {method}: {model.unsuited[method]}; it can do {able}"
        )
    named = parameters.layer if isinstance(parameters.layer, list) else [parameters.layer]
    resolved = [_layers(model, name, method, alone=alone) for name in named]
    layers = tuple(dict.fromkeys(chain(*resolved)))
    question = Question(
        targets,
        method,
        layers,
        parameters.budget,
        parameters.signed,
        parameters.smooth,
        parameters.fuse,
    )
    question = parameters.changed_question(question)
    try:
        question.check()
    except MethodUnsuited as error:
        raise InvalidParameter(str(error)) from None
    return question


@dataclass(frozen=True)
class Likeness:
    """A target that is another photo, which has not been decoded yet."""

    b64: str
    layer: str
    against: bool


Later = Likeness | ReadText
"""What has to be asked of the model before the target is known."""


def placed(
    model: ModelInfo,
    question: Question,
    sent: TargetParameter | None,
    photo: Image.Image,
    seen: ModelInput,
    *,
    max_pixels: int,
) -> tuple[Question, dict[int, Later]]:
    """Return the question with boxes and masks in the input's pixels, and the other photos and
    texts that are targets, keyed by the target's position.

    Args:
        sent: the targets of the question as the request names them.

    Raises:
        InvalidTarget
    """
    targets, others = list(question.targets), dict[int, Later]()
    for turn, (one, target) in enumerate(zip(asked_of(sent), question.targets, strict=True)):
        if not isinstance(one, TargetObject):
            continue
        if one.text is not None:
            minus = one.minus if isinstance(one.minus, str) else None
            others[turn] = ReadText(one.text, minus, one.against, one.words)
        elif one.like is not None:
            layer = one.layer or model.default
            others[turn] = Likeness(one.like.b64, layer, one.against)
        elif isinstance(target, ClassTarget) and one.box is not None:
            targets[turn] = replace(target, box=box_on_input(one.box, photo, seen))
        elif isinstance(target, ClassTarget) and one.mask is not None:
            white = picture_of(one.mask.b64, "target's mask", max_pixels=max_pixels)
            targets[turn] = replace(target, mask=mask_on_input(white, photo, seen))
    return replace(question, targets=tuple(targets)), others


def asked_of(sent: TargetParameter | None) -> list[OneTarget | None]:
    """Return the targets of a request without duplicates; [None] if it names none."""
    return list(dict.fromkeys(sent)) if isinstance(sent, list) else [sent]


def target_of(model: ModelInfo, target: OneTarget | None) -> Target:
    """Return the model's target for one target of the parameters, without its box, mask or photo.

    Raises:
        UnknownLabel, AmbiguousLabel, ClassOutOfRange, InvalidTarget, UnknownLayer
    """
    background = model.background
    if not isinstance(target, TargetObject):
        return ClassTarget(_class(model, target), background=background)
    if target.text is not None:
        if not model.takes_text:
            raise InvalidTarget(
                f"model {model.name!r} takes no text: it is not an image–text model; name one of "
                "its classes"
            )
        return ClassTarget()  # `placed` has the text encoded
    if target.layer is not None:
        try:
            _known(model, target.layer)
        except UnknownLayer as problem:
            raise InvalidTarget(problem.detail) from None
    if target.channel is not None:
        assert target.layer is not None
        return UnitTarget(target.layer, target.channel, target.against)
    index, minus = _class(model, target.which), _class(model, target.minus)
    if index is not None and index == minus:
        raise InvalidTarget(
            f"class {index} ({model.labels.name(index) or 'no label'}) cannot be contrasted with "
            "itself; name another class in 'minus'"
        )
    if model.kind in ("classes", "value") and (target.box or target.mask):
        does = "classifies" if model.kind == "classes" else "computes values of"
        raise InvalidTarget(
            f"model {model.name!r} {does} whole photos; a box or a mask is for segmenters and "
            "detectors"
        )
    if model.kind == "value" and target.of == "probability":
        raise InvalidTarget(
            f"the outputs of model {model.name!r} are values, which have no probability; leave out "
            "'of'"
        )
    if model.kind == "detections" and (minus is not None or target.mask or target.of != "logit"):
        raise InvalidTarget(
            f"model {model.name!r} detects boxes; its targets allow only class, box and against"
        )
    return ClassTarget(index, minus, target.against, target.of, background=background)


def _class(model: ModelInfo, target: int | str | NamedClass | None) -> int | None:
    if target is None:
        return None
    if isinstance(target, NamedClass):
        index = model.labels.index(target.label) if target.label else target.index or 0
    else:
        index = model.labels.meant(str(target))
    if index >= (model.classes or 2**31):
        what = ("output", "outputs") if model.kind == "value" else ("class index", "classes")
        raise ClassOutOfRange(
            f"{what[0]} {str(index)[:40]} is out of range; model {model.name!r} has {what[1]} "
            f"0 to {(model.classes or 2**31) - 1}"
        )
    return index


def _layers(model: ModelInfo, name: str, method: str, *, alone: bool) -> tuple[str, ...]:
    """Return the layers that a name means for a method.

    Args:
        alone: whether there is no other method. Several methods are compared, so they share the
            default layer.
    """
    if name == "auto" and METHODS[method].at == "input" and model.default_layer is None:
        return ()
    if name == "auto" and (alone or METHODS[method].levels):
        return model.layers_of(method)
    if name == "auto":
        return (model.default,)
    if is_pattern(name):
        return _matched(model, name)
    layer = _known(model, name)
    if layer.problem is None:
        return (name,)
    raise UnknownLayer(f"no map can be made at layer {name!r}: {layer.problem}")


def _matched(model: ModelInfo, pattern: str) -> tuple[str, ...]:
    """Return the explainable layers that a pattern matches, in execution order."""
    modules = "#" not in pattern  # such a pattern does not mean single calls of modules
    usable = [
        layer.name
        for layer in model.layers
        if layer.explainable and not (modules and "#" in layer.name)
    ]
    matches = fnmatch.filter(usable, pattern)
    if not matches:
        near = difflib.get_close_matches(pattern, usable, 3) or usable[-3:]
        raise UnknownLayer(
            f"no layer of model {model.name!r} at which a map can be made matches "
            f"{pattern[:80]!r}; the nearest are {', '.join(near)}"
        )
    if len(matches) > MAX_MATCHED:
        raise UnknownLayer(
            f"the pattern {pattern[:80]!r} matches {len(matches)} layers of model {model.name!r}; "
            f"at most {MAX_MATCHED} are allowed, so use a narrower one"
        )
    return tuple(matches)


def _known(model: ModelInfo, name: str) -> LayerInfo:
    for layer in model.layers:
        if layer.name == name:
            return layer
    usable = [layer.name for layer in model.layers if layer.explainable]
    near = difflib.get_close_matches(name, usable, 3) or usable[-3:]
    raise UnknownLayer(
        f"model {model.name!r} has no layer {name[:80]!r}; the nearest are {', '.join(near)} "
        f"(GET /v1/models/{model.name}/layers lists all)"
    )
