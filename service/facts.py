"""What is told of a map beside the map itself."""

from __future__ import annotations

from dataclasses import dataclass

from cam import Answer, ClassTarget
from cam.heatmap import Box, border, concentration
from service.parameters import Parameters
from service.preprocessing import ModelInput
from service.questions import asked_of
from service.rendering import Drawing
from service.targets import OneTarget, TargetObject


@dataclass(frozen=True)
class Facts:
    """`service.glossary` says what each is."""

    mass: float
    concentration: float | None
    border: float | None
    covers: Box
    """Where the drawn map lies on the photo."""
    correct: bool | None


def facts_of(
    drawing: Drawing, answer: Answer, number: int, seen: ModelInput, parameters: Parameters
) -> Facts:
    """Of the answer's map of that number, which is drawn as the parameters ask."""
    explanation = answer.explanations[number]
    values = explanation.map
    flat = values.max() == values.min() or not values.any()
    height, width = drawing.values.shape
    whole = parameters.size == "image"
    return Facts(
        mass=float(drawing.scaled[drawing.region.slices].mean()),
        concentration=None if flat else concentration(values),
        border=None if flat else border(values),
        covers=Box(0, 0, width, height) if whole else seen.box,
        correct=_correct(answer, number, parameters),
    )


def predicted(answer: Answer) -> int | None:
    """A classifier's best class."""
    return None if answer.output.logits is None else int(answer.output.logits.argmax())


def _correct(answer: Answer, number: int, parameters: Parameters) -> bool | None:
    target, best = answer.explanations[number].target, predicted(answer)
    if best is None or not isinstance(target, ClassTarget):
        return None
    sent = asked_of(parameters)
    # Maps are in the order of the targets, layers fastest.
    mine = sent[number * len(sent) // len(answer.explanations)]
    return target.index == best if _names_a_class(mine) else None


def _names_a_class(target: OneTarget | None) -> bool:
    """As one tells what a photo shows, without what it is contrasted with, and not against it."""
    if isinstance(target, TargetObject):
        return target.which is not None and target.minus is None and not target.against
    return target is not None
