"""The plan of an audit: which methods, layers and metrics are measured, and on how many photos."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cam import METHODS, ClassTarget, Question
from cam.counts import counted
from cam.evaluation.metrics import DEFAULTS, METRICS, MetricOptions
from cam.methods import INPUT
from service.core.choices import Fit
from service.core.errors import InvalidParameter, InvalidTarget
from service.features.audit.schemas import ArmSummary, Recommendation
from service.models.info import ModelInfo
from service.pipeline.evaluation import require_suited
from service.pipeline.parameters import Parameters
from service.pipeline.resolve import methods_of, questions_of
from service.pipeline.targets import MAX_MAPS, TargetObject

LEAST_PHOTOS: Final = 20
"""Least number of photos. With fewer, the intervals are too wide to prefer one method."""
SANITY_PHOTOS: Final = 50
"""Largest number of photos on which the weights are randomised."""
COST_PHOTOS: Final = 5
"""Number of photos on which the time of each method is measured."""
STAGES: Final = 4
"""Stages of the randomisation: the logits alone, a third, two thirds, and all modules."""
SIDES: Final = (2, 3)
"""Numbers of photos along the side of a grid."""
TOGETHER: Final = " + "
"""Separator of the names of layers that a method joins into one map."""
USUAL: Final = tuple(name for name, method in METHODS.items() if method.audited)
"""Methods that are audited if none are named, where the model suits them."""
PIXELS: Final = 224 * 224
"""Pixels of an input, to estimate the passes of metrics."""


def passes_of(method: str, forwards: int | None = None) -> int:
    """Return the cost of one map in forward passes; a pass backwards takes about two of them.

    Args:
        forwards: the passes that it makes forwards, if they are not what the formula takes.
    """
    known = METHODS.get(method)
    cost = known.cost if known else "one forward"
    many = known.budget if known and cost.startswith("N") else 1
    passes = {"one backward": 3, "N backwards": 3, "two backwards": 5}.get(cost, 1)
    return passes * (forwards or many or 1)


@dataclass(frozen=True)
class Arm:
    """A method at a layer."""

    method: str
    layer: str
    """`cam.methods.INPUT` for a method that makes its map at the input."""

    @staticmethod
    def of(name: str) -> Arm:
        """Return the method and layer of a name."""
        method, _, layer = name.partition("@")
        return Arm(method, layer or INPUT)

    @property
    def name(self) -> str:
        return self.method if self.layer == INPUT else f"{self.method}@{self.layer}"


def name_of(arm: ArmSummary | Recommendation) -> str:
    """Return the name of the method and layer of a summary or a recommendation."""
    return Arm(arm.method, arm.layer).name


@dataclass(frozen=True)
class Plan:
    """What an audit measures. It is the same for all photos, so a photo's record does not depend on
    the other photos' records, and an audit can be continued at any photo."""

    questions: tuple[Question, ...]
    """A question for each method, at all of its layers."""
    metrics: tuple[str, ...]
    total: int
    """Number of photos."""
    fit: Fit
    """How a photo is fitted to the model's input."""
    seed: int = 0

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The methods at their layers, in the order in which the questions' maps come."""
        return tuple(_arms(self.questions))

    @property
    def methods(self) -> list[str]:
        return [question.method for question in self.questions]

    def only(self, methods: Sequence[str]) -> tuple[Question, ...]:
        """Return the questions of some methods."""
        return tuple(question for question in self.questions if question.method in methods)

    def passes(self, *, sanity: bool) -> dict[str, int]:
        """Return about how many forward passes a photo takes, by the part of its measurement:
        `maps`, `scores`, `sanity` and `grids`. It is the most, because equal maps are scored once,
        and not every photo is in a grid.

        Args:
            sanity: whether the weights are randomised for the photo.
        """
        options = MetricOptions()
        single = [passes_of(question.method, question.budget) for question in self.questions]
        one_pass = [
            question
            for question in self.questions
            if not METHODS[question.method].cost.startswith("N")
        ]
        shared = max((passes_of(question.method) for question in one_pass), default=0)
        alone = (
            passes_of(question.method, question.budget) * len(question.layers or "1")
            for question in self.questions
            if question not in one_pass
        )
        maps = shared + sum(alone)
        arms, scores = len(self.arms), 0
        for metric in map(METRICS.__getitem__, self.metrics):
            score = sum(metric.forwards(options, PIXELS).values())
            scores += (arms + len(metric.baselines)) * score + arms * metric.maps(options) * 3
        cells = sum(side**2 for side in SIDES)
        return {
            "maps": 1 + maps,
            "scores": scores,
            "sanity": sanity * ((1 + STAGES) * maps + sum(single)),
            "grids": cells * (1 + sum(single)) + sanity * SIDES[0] ** 2 * sum(single),
        }

    def is_for_sanity(self, number: int) -> bool:
        """Return whether the weights are randomised for this photo: for at most `SANITY_PHOTOS`,
        which are evenly spaced."""
        return number % -(-self.total // SANITY_PHOTOS) == 0

    def is_for_cost(self, number: int) -> bool:
        """Return whether the time of each method is measured on this photo."""
        return number % max(self.total // COST_PHOTOS, 1) == 0


def plan_of(model: ModelInfo, parameters: Parameters, total: int) -> Plan:
    """Return the plan of an audit.

    Args:
        parameters: methods, layers and metrics (`evaluate`); if they are not given, `USUAL`,
            `finer_stages` and the usual metrics. Each method is measured at the layer at which it
            is served, too: a recommendation is of no use if nobody gets the maps it was made of.
        total: number of photos.

    Raises:
        Problem: if the model cannot be audited, or not in this way; if there are too few photos.
    """
    if total < LEAST_PHOTOS:
        raise InvalidParameter(
            f"there {'is' if total == 1 else 'are'} {counted(total, 'photo')}; an audit needs "
            f"{LEAST_PHOTOS} or more"
        )
    if model.kind != "classes":
        raise InvalidParameter(
            f"model {model.name!r} is not a classifier; only classifiers can be audited"
        )
    require_one_class(parameters)
    refused = [name for name in ("fuse", "smooth") if getattr(parameters, name) != "none"]
    if parameters.reasons > 1:
        refused.append("reasons")
    if refused:
        raise InvalidParameter(f"an audit compares methods at layers; leave out {refused[0]}")
    metrics = tuple(parameters.evaluate) or DEFAULTS
    require_suited(metrics)
    given = parameters.model_fields_set
    if "method" in given:
        methods = methods_of(model, parameters)
    else:
        methods = [name for name in USUAL if name not in model.unsuited]
    automatic = "layer" not in given or parameters.layer == "auto"
    asked = parameters.layer if isinstance(parameters.layer, list) else [parameters.layer]
    questions: list[Question] = []
    for name in methods:
        changes: dict[str, object] = {"signed": False, "method": name}
        if name in METHODS and not METHODS[name].levels:
            more = finer_stages(model) if automatic else asked
            changes["layer"] = list(dict.fromkeys((*model.layers_of(name), *more)))
        questions += questions_of(model, parameters.model_copy(update=changes))
    if len(tuple(_arms(questions))) > MAX_MAPS:
        raise InvalidParameter(
            f"{counted(len(methods), 'method')} at these layers would make more than {MAX_MAPS} "
            "maps of a photo; name fewer"
        )
    return Plan(tuple(questions), metrics, total, model.preprocessing.resolved(parameters.fit))


def require_one_class(parameters: Parameters) -> None:
    """Check that the parameters name one class, or none.

    Raises:
        InvalidTarget: if they name several classes, or more about the target than its class.
    """
    if isinstance(parameters.target, list | TargetObject):
        raise InvalidTarget("an audit explains one class of each photo; name one, or none")


def finer_stages(model: ModelInfo) -> list[str]:
    """Return the layer that is audited beside the one at which a method is served: the stage with
    the next finer grid than the default layer's, if there is one."""
    grids = {layer.name: layer.grid for layer in model.layers}
    grid = grids.get(model.default)
    finer = [
        (found, name)
        for name in model.stages
        if grid and (found := grids[name]) and found[0] > grid[0] and found[1] > grid[1]
    ]
    return [min(finer)[1]] if finer else []


def with_target(question: Question, target: ClassTarget) -> Question:
    """Return a question about one resolved class."""
    return Question((target,), question.method, question.layers, question.budget)


def _arms(questions: Sequence[Question]) -> Iterator[Arm]:
    for question in questions:
        if METHODS[question.method].at == "input":
            yield Arm(question.method, INPUT)
        elif METHODS[question.method].levels:
            yield Arm(question.method, TOGETHER.join(question.layers))
        else:
            for layer in question.layers:
                yield Arm(question.method, layer)
