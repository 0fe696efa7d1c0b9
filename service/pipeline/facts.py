"""The figures that describe a map, such as its mass and its agreement with other methods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from cam import ClassTarget, spearman
from cam.drawing.heatmap import Box, border, concentration
from service.backend.answers import Answer
from service.models.preprocessing import ModelInput
from service.pipeline.parameters import Parameters
from service.pipeline.rendering import Drawing
from service.pipeline.resolve import asked_of
from service.pipeline.targets import OneTarget, TargetObject


@dataclass(frozen=True)
class Facts:
    """Figures of one map; `service.core.glossary` defines each of them."""

    mass: float
    concentration: float | None
    border: float | None
    covers: Box
    """Edges of the drawn map, in the photo's pixels."""
    correct: bool | None
    agreement: dict[str, float] | None


def facts_of(drawing: Drawing, answer: Answer, seen: ModelInput) -> Facts:
    """Return the figures of one of the answer's maps, from its drawing."""
    number, parameters, values = drawing.number, drawing.parameters, drawing.explanation.map
    flat = values.max() == values.min() or not values.any()
    height, width = drawing.shape
    whole = parameters.size == "image"
    return Facts(
        mass=float(drawing.scaled_inside.mean()),
        concentration=None if flat else concentration(values),
        border=None if flat else border(values),
        covers=Box(0, 0, width, height) if whole else seen.box,
        correct=_correct(answer, number, parameters),
        agreement=_agreement(answer, number),
    )


def predicted(answer: Answer) -> int | None:
    """Return the index of a classifier's best class, or None if the model is no classifier."""
    likely, logits = answer.prediction.probabilities, answer.prediction.logits
    return None if likely is None or logits is None else int(logits.argmax())


def _correct(answer: Answer, number: int, parameters: Parameters) -> bool | None:
    target, best = answer.explanations[number].target, predicted(answer)
    if best is None or not isinstance(target, ClassTarget):
        return None
    mine = asked_of(parameters)[answer.explanations[number].turn]
    return target.index == best if _names_a_class(mine) else None


def agreement_mean(agreement: Mapping[str, float] | None) -> float | None:
    """Return the mean of a map's agreement with the maps of the other methods."""
    return fmean(agreement.values()) if agreement else None


def _agreement(answer: Answer, number: int) -> dict[str, float] | None:
    """Return each other method's Spearman correlation with the map, keyed by method.

    Maps of the same target at the same layer are compared; if both methods have a single map of the
    target, their layers may differ. A map that is the same everywhere has no correlation.
    """
    mine = answer.explanations[number]
    same_target = [each for each in answer.explanations if each.turn == mine.turn]
    maps = Counter(each.method for each in same_target)
    found = {}
    for other in same_target:
        single = maps[mine.method] == 1 and maps[other.method] == 1
        if other.method != mine.method and (single or other.layer == mine.layer):
            agreement = spearman(mine.map, other.map)
            if agreement is not None:
                found[other.method] = agreement
    return found or None


def _names_a_class(target: OneTarget | None) -> bool:
    """Return whether a target is a class alone, without `minus` and without `against`."""
    if isinstance(target, TargetObject):
        return target.which is not None and target.minus is None and not target.against
    return target is not None
