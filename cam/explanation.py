"""What is asked of an image, and what it gets."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cam.drawing.heatmap import fuse
from cam.errors import CamError, InvalidOption, MethodUnsuited, NonFinite, UnknownLayer
from cam.methods import INPUT, METHODS, method_named
from cam.methods.subject import Completeness, Passes, Progress
from cam.outputs.output import Output
from cam.targets import ClassTarget, Target

COMPLETE: Final = 0.1
"""How far attributions may be from what they should add up to, in parts of it."""
Map = NDArray[np.float32]
Smoothing = Literal["none", "eigen", "augment", "both"]
Fusion = Literal["none", "mean", "max"]


@dataclass(frozen=True)
class Question:
    """What is asked of one image: a map for each target at each layer. No target, no backward."""

    targets: tuple[Target, ...]
    method: str
    layers: tuple[str, ...]
    budget: int | None = None
    """Most forward passes, for a method that needs many; None for the method's own default."""
    signed: bool = False
    """Whether what speaks against the target is kept, below 0."""
    smooth: Smoothing = "none"
    """`eigen`: the first principal component of the weighted activations instead of their sum.
    `augment`: the mean over the image, mirrored and not, at three brightnesses (test-time
    augmentation). Both as in pytorch-grad-cam."""
    fuse: Fusion = "none"
    """Of several layers, one map: the mean or the maximum of theirs, each scaled to 0 … 1."""

    @property
    def looks_at(self) -> tuple[str, ...]:
        """The layers whose outputs its targets are made of."""
        return tuple(dict.fromkeys(name for target in self.targets for name in target.layers))

    @property
    def in_steps(self) -> bool:
        """Whether it takes more than one pass: see `cam.passes.stepwise`."""
        many = METHODS[self.method].steps is not None or self.smooth in ("augment", "both")
        return bool(self.targets) and many

    def check(self) -> None:
        """
        Raises:
            UnknownMethod
            InvalidOption: if `smooth`, `fuse` or `signed` is none of its values.
            UnknownLayer: if there should be a map, and no layer is named.
            MethodUnsuited: if the method cannot do what is asked of it.
        """
        method = method_named(self.method)
        for name, value, allowed in (
            ("smooth", self.smooth, get_args(Smoothing)),
            ("fuse", self.fuse, get_args(Fusion)),
        ):
            if not isinstance(value, str) or value not in allowed:
                raise InvalidOption(f"{name} is {value!r:.80}; it can be {', '.join(allowed)}")
        if not isinstance(self.signed, bool):
            raise InvalidOption(f"signed is {self.signed!r:.80}; it can be True or False")
        if self.targets and method.at == "layer" and not self.layers:
            raise UnknownLayer(f"{method.name} makes maps at layers, and none is named")
        if self.signed and not method.signed:
            able = ", ".join(each.name for each in METHODS.values() if each.signed)
            raise MethodUnsuited(
                f"{method.name} has nothing below 0 to show; signed works with {able}"
            )
        if self.smooth in ("eigen", "both") and not method.weights:
            able = ", ".join(each.name for each in METHODS.values() if each.weights)
            raise MethodUnsuited(
                f"{method.name} has no weighted activations; smooth={self.smooth} works with {able}"
            )
        if self.smooth in ("eigen", "both") and self.signed:
            raise MethodUnsuited("a principal component has no sign; leave out signed or eigen")
        if self.smooth in ("augment", "both") and method.steps:
            able = ", ".join(each.name for each in METHODS.values() if not each.steps)
            raise MethodUnsuited(
                f"{method.name} takes many passes itself; smooth={self.smooth} works with {able}"
            )
        if self.fuse != "none" and method.at == "input":
            raise MethodUnsuited(f"{method.name} has one map, at the input; there is none to fuse")
        if self.fuse != "none" and method.levels:
            raise MethodUnsuited(f"{method.name} makes one map of all layers itself")

    def resolve(self, output: Output) -> list[Target] | CamError:
        """Its targets, their classes filled in, given what the model said about the image. Of a
        detector's best boxes those that there are, if any."""
        if not output.finite:
            return NonFinite("the model's output for this image is not finite")
        found: list[Target] = []
        try:
            for target in self.targets:
                ranked = output.detections and isinstance(target, ClassTarget) and target.rank
                if output.detections and ranked and ranked >= len(output.detections.scores):
                    continue
                found.append(target.resolve(output))
        except CamError as error:
            return error
        return found


@dataclass(frozen=True, eq=False)
class Explanation:
    """One class activation map."""

    target: Target
    """What was explained, its class filled in."""
    score: float
    """The number explained: the class's logit, unless the target says otherwise."""
    probability: float | None
    """How sure the model is of the class, 0 … 1; None where the target has none."""
    method: str
    layer: str
    """Of fused maps, the layers' names joined by " + "."""
    map: Map
    """float32 (h, w) at the layer's resolution, ≥ 0 unless signed, not normalised: see
    `cam.drawing.heatmap`."""
    signed: bool = False
    completeness: Completeness | None = None
    """Of methods whose attributions should add up to the score."""
    warnings: tuple[str, ...] = ()
    """Sentences that say why the map is not to be relied on."""
    reached: bool = True
    """Whether the score has a gradient at the layer that is not all zero. Without one the map of a
    method that differentiates is empty, and a warning says so."""
    turn: int = 0
    """The position of its target among the image's targets, from 0. A detector's maps count the
    boxes that were found."""
    passes: Passes | None = None
    """Of methods that are content with fewer passes than their formula takes."""


@dataclass(frozen=True, eq=False)
class Answer:
    """What one image got: what the model said, on the CPU, and a map per target and layer, in the
    question's order, layers fastest."""

    output: Output
    explanations: tuple[Explanation, ...]

    @property
    def logits(self) -> NDArray[np.float32]:
        """Of a classifier: float32 (C,)."""
        assert self.output.logits is not None
        values: NDArray[np.float32] = self.output.logits.numpy()
        return values


AnswerSteps = Generator[Progress, None, Answer | CamError]


@dataclass(frozen=True, eq=False)
class Found:
    """A map before it is an explanation."""

    map: Map
    completeness: Completeness | None = None
    warnings: tuple[str, ...] = ()
    """See `Explanation.warnings`."""
    reached: bool = True
    """Whether the score has a gradient at the layer that is not all zero."""
    passes: Passes | None = None
    """See `Explanation.passes`."""


def _incomplete(question: Question, found: Completeness | None) -> tuple[str, ...]:
    """What is wrong where attributions do not add up to what they should."""
    if found is None:
        return ()
    gap = abs(found.attributed - found.difference)
    if gap <= COMPLETE * max(abs(found.difference), abs(found.attributed)):
        return ()
    more = METHODS[question.method].budget
    reason = (
        "a larger budget comes nearer" if more else "not all of the model is made of rectifiers"
    )
    sums = f"{found.attributed:.4g}, and should to {found.difference:.4g}"
    return (f"the attributions add up to {sums}: {reason}",)


def _partial(passes: Passes | None) -> tuple[str, ...]:
    """What is wrong where fewer passes were made than the method's formula takes."""
    warning = passes and passes.warning
    return (warning,) if warning else ()


def _together(passes: Sequence[Passes]) -> Passes | None:
    """The passes of several layers."""
    if not passes:
        return None
    made, of = sum(each.made for each in passes), sum(each.of for each in passes)
    return Passes(made, of, any(each.stopped for each in passes))


def join(answers: Sequence[Answer | CamError]) -> Answer | CamError:
    """One answer of several about the same image, at least one: the first error among them, if
    there is one, else what the first says, with the explanations of all."""
    for each in answers:
        if isinstance(each, CamError):
            return each
    good = [each for each in answers if isinstance(each, Answer)]
    if len(good) == 1:
        return good[0]
    return replace(good[0], explanations=tuple(chain(*(each.explanations for each in good))))


def score_of(question: Question, target: Target, output: Output) -> Tensor:
    """What the question's method explains of a target: its own score, unless it has another.

    Raises:
        CamError: if it cannot with this target.
    """
    own = METHODS[question.method].score
    return own(target, output) if own else target.score(output)


def compose(
    question: Question,
    targets: list[Target] | CamError,
    output: Output,
    found: list[dict[str, Found | CamError]],
) -> Answer | CamError:
    """An image's answer from its resolved targets, what the model said, and for each target the
    map of each layer; the first error among them, if there is one."""
    if isinstance(targets, CamError):
        return targets
    explanations = []
    for turn, (target, at) in enumerate(zip(targets, found, strict=True)):
        names = [INPUT] if INPUT in at else list(dict.fromkeys(question.layers))
        if METHODS[question.method].levels:
            names = list(at)  # what became of the levels: one map, or why there is none
        maps = [at[name] for name in names]
        for each in maps:
            if isinstance(each, CamError):
                return each
        good = [each for each in maps if isinstance(each, Found)]
        if question.fuse != "none" and len(good) > 1:
            told = tuple(warning for each in good for warning in each.warnings)
            fused = fuse([each.map for each in good], question.fuse, question.signed)
            reached = any(each.reached for each in good)
            passes = _together([each.passes for each in good if each.passes is not None])
            good = [Found(fused, warnings=told, reached=reached, passes=passes)]
            names = [" + ".join(names)]
        explanations += [
            Explanation(
                target=target,
                score=float(score_of(question, target, output)),
                probability=target.probability(output),
                method=question.method,
                layer=name,
                map=each.map,
                signed=question.signed,
                completeness=each.completeness,
                warnings=(
                    *each.warnings,
                    *_incomplete(question, each.completeness),
                    *_partial(each.passes),
                ),
                reached=each.reached,
                turn=turn,
                passes=each.passes,
            )
            for name, each in zip(names, good, strict=True)
        ]
    return Answer(output, tuple(explanations))
