"""Questions about an image, and the answers: explanations with their maps."""

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
"""Largest relative difference between the sum of attributions and the sum that they should have."""
Map = NDArray[np.float32]
Smoothing = Literal["none", "eigen", "augment", "both"]
Fusion = Literal["none", "mean", "max"]


@dataclass(frozen=True)
class Question:
    """A question about one image: a map for each target at each layer.

    Without targets there is no backward pass.
    """

    targets: tuple[Target, ...]
    method: str
    layers: tuple[str, ...]
    budget: int | None = None
    """Largest number of forward passes, for a method that needs many; None for the method's own
    default."""
    signed: bool = False
    """Whether the map keeps evidence against the target as values below 0."""
    smooth: Smoothing = "none"
    """`eigen`: the first principal component of the weighted activations instead of their sum.
    `augment`: the mean map of the image and its mirror image at three brightnesses (test-time
    augmentation). `both`: the two together. All as in pytorch-grad-cam."""
    fuse: Fusion = "none"
    """`mean` or `max`: one map instead of one for each layer, see `cam.drawing.heatmap.fuse`. Each
    layer's map is first scaled to 0 … 1, or to −1 … 1 if signed."""

    @property
    def looks_at(self) -> tuple[str, ...]:
        """Names of the layers whose outputs the targets are made of."""
        return tuple(dict.fromkeys(name for target in self.targets for name in target.layers))

    @property
    def in_steps(self) -> bool:
        """Whether the question takes more than one pass: see `cam.passes.stepwise`."""
        many = METHODS[self.method].steps is not None or self.smooth in ("augment", "both")
        return bool(self.targets) and many

    def check(self) -> None:
        """Check that the method exists and can answer the question.

        Raises:
            UnknownMethod: if there is no such method.
            InvalidOption: if `smooth`, `fuse` or `signed` has a value that it cannot have.
            UnknownLayer: if the method makes maps at layers, and no layer is named.
            MethodUnsuited: if the method does not support an option of the question.
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
        """Return the targets with their classes filled in from the model's output for the image.

        For a detector, targets of a rank above 0 that no detection has are left out. An error of a
        target, or of an output that is not finite, is returned and not raised.
        """
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
    """The explained target, with its class filled in."""
    score: float
    """The explained number: the class's logit, unless the target defines another."""
    probability: float | None
    """Probability of the class, 0 … 1; None if the target has no probability."""
    method: str
    layer: str
    """Name of the layer; for a fused map the layers' names, joined by " + "."""
    map: Map
    """float32 (h, w) at the layer's resolution, ≥ 0 unless signed, not normalised: see
    `cam.drawing.heatmap`."""
    signed: bool = False
    completeness: Completeness | None = None
    """The sum of the attributions and the sum that they should have; only for methods whose
    attributions should add up to the score."""
    warnings: tuple[str, ...] = ()
    """Sentences that say why the map is not reliable."""
    reached: bool = True
    """Whether the score has a gradient at the layer that is not all zero. If it has none, the map
    of a method that differentiates is empty, and a warning says so."""
    turn: int = 0
    """Position of the target among the image's targets, from 0. For a detector only the boxes that
    were found count."""
    passes: Passes | None = None
    """Number of passes made; only for methods that can make a map of fewer passes than their
    formula takes."""


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer for one image: the model's output, on the CPU, and one explanation for each target
    and layer, ordered by target, then by layer."""

    output: Output
    explanations: tuple[Explanation, ...]

    @property
    def logits(self) -> NDArray[np.float32]:
        """Logits of a classifier: float32 (C,)."""
        assert self.output.logits is not None
        values: NDArray[np.float32] = self.output.logits.numpy()
        return values


AnswerSteps = Generator[Progress, None, Answer | CamError]


@dataclass(frozen=True, eq=False)
class Found:
    """A computed map and its facts, from which `compose` makes an explanation."""

    map: Map
    completeness: Completeness | None = None
    warnings: tuple[str, ...] = ()
    """See `Explanation.warnings`."""
    reached: bool = True
    """Whether the score has a gradient at the layer that is not all zero."""
    passes: Passes | None = None
    """See `Explanation.passes`."""


def _incomplete(question: Question, found: Completeness | None) -> tuple[str, ...]:
    """Return a warning if the attributions do not add up to the sum that they should have."""
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
    """Return a warning if fewer passes were made than the method's formula takes."""
    warning = passes and passes.warning
    return (warning,) if warning else ()


def _together(passes: Sequence[Passes]) -> Passes | None:
    """Return the sum of the passes of several layers."""
    if not passes:
        return None
    made, of = sum(each.made for each in passes), sum(each.of for each in passes)
    return Passes(made, of, any(each.stopped for each in passes))


def join(answers: Sequence[Answer | CamError]) -> Answer | CamError:
    """Join several answers about the same image, at least one, into one answer.

    The result is the first error among the answers, if there is one; otherwise the first answer's
    output with the explanations of all answers.
    """
    for each in answers:
        if isinstance(each, CamError):
            return each
    good = [each for each in answers if isinstance(each, Answer)]
    if len(good) == 1:
        return good[0]
    return replace(good[0], explanations=tuple(chain(*(each.explanations for each in good))))


def score_of(question: Question, target: Target, output: Output) -> Tensor:
    """Return the score that the question's method explains: the method's own score, if it defines
    one, or the target's score.

    Raises:
        CamError: if the method cannot be used with this target.
    """
    own = METHODS[question.method].score
    return own(target, output) if own else target.score(output)


def compose(
    question: Question,
    targets: list[Target] | CamError,
    output: Output,
    found: list[dict[str, Found | CamError]],
) -> Answer | CamError:
    """Compose an image's answer from its resolved targets, the model's output, and the map of each
    layer for each target. If there are errors among these, return the first one."""
    if isinstance(targets, CamError):
        return targets
    explanations = []
    for turn, (target, at) in enumerate(zip(targets, found, strict=True)):
        names = [INPUT] if INPUT in at else list(dict.fromkeys(question.layers))
        if METHODS[question.method].levels:
            names = list(at)  # the levels were fused into one map, or there is an error instead
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
