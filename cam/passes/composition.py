"""Compose an image's answer from its resolved targets, the model's output, and the maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cam.drawing.heatmap import fuse
from cam.drawing.placement import Placement
from cam.errors import CamError
from cam.explanation import Answer, Explanation, Map, Question
from cam.methods import INPUT, METHODS
from cam.methods.method import load
from cam.methods.progress import Completeness, Passes
from cam.outputs.output import Output
from cam.targets import Target

COMPLETE: Final = 0.1
"""Largest relative difference between the sum of attributions and the sum that they should have."""


@dataclass(frozen=True, eq=False)
class ComputedMap:
    """A computed map and its facts, from which `compose` makes an explanation."""

    map: Map
    completeness: Completeness | None = None
    warnings: tuple[str, ...] = ()
    """See `Explanation.warnings`."""
    reached: bool = True
    """Whether the score has a gradient at the layer that is not all zero."""
    passes: Passes | None = None
    """See `Explanation.passes`."""
    placement: Placement | None = None
    """See `Explanation.placement`; `map` is still at the layer's resolution."""
    used: NDArray[np.float32] | None = None
    """See `Explanation.used`."""

    @property
    def placed(self) -> Map:
        """The map at the place of its positions on the model's input."""
        return self.placement.on_input(self.map) if self.placement else self.map


def alike(maps: Sequence[ComputedMap]) -> Sequence[ComputedMap]:
    """Return maps of several layers that lie on the model's input in the same way: unchanged if
    they do already, else each at its place."""
    if len({map_.placement for map_ in maps}) == 1:
        return maps
    return [replace(map_, map=map_.placed, placement=None) for map_ in maps]


def _incomplete(question: Question, completeness: Completeness | None) -> tuple[str, ...]:
    """Return a warning if the attributions do not add up to the sum that they should have."""
    if completeness is None:
        return ()
    gap = abs(completeness.attributed - completeness.difference)
    if gap <= COMPLETE * max(abs(completeness.difference), abs(completeness.attributed)):
        return ()
    more = METHODS[question.method].budget
    reason = (
        "a larger budget reduces the difference"
        if more
        else "not all of the model is made of rectifiers"
    )
    sums = f"{completeness.attributed:.4g} instead of {completeness.difference:.4g}"
    return (f"the attributions add up to {sums}: {reason}",)


def _blind(question: Question) -> tuple[str, ...]:
    """Return a warning if the method's map is none of the target alone."""
    warning = METHODS[question.method].warning
    return (warning,) if warning else ()


def _partial(passes: Passes | None) -> tuple[str, ...]:
    """Return a warning if fewer passes were made than the method's formula takes."""
    warning = passes and passes.warning
    return (warning,) if warning else ()


def _together(passes: Sequence[Passes]) -> Passes | None:
    """Return the sum of the passes of several layers."""
    if not passes:
        return None
    made, of = sum(count.made for count in passes), sum(count.of for count in passes)
    return Passes(made, of, any(count.stopped for count in passes))


def score_of(question: Question, target: Target, output: Output) -> Tensor:
    """Return the score that the question's method explains: the method's own score, if it defines
    one, or the target's score.

    Raises:
        CamError: if the method cannot be used with this target.
    """
    own = METHODS[question.method].score
    score: Tensor = load(own)(target, output) if own else target.score(output)
    return score


def compose(
    question: Question,
    targets: list[Target] | CamError,
    output: Output,
    computed: list[dict[str, ComputedMap | CamError]],
) -> Answer | CamError:
    """Compose an image's answer from its resolved targets, the model's output, and the map of each
    layer for each target. If there are errors among these, return the first one."""
    if isinstance(targets, CamError):
        return targets
    explanations = []
    for turn, (target, at) in enumerate(zip(targets, computed, strict=True)):
        names = [INPUT] if INPUT in at else list(dict.fromkeys(question.layers))
        if METHODS[question.method].levels:
            names = list(at)  # one map of all layers, or errors instead
        maps = [at[name] for name in names]
        for map_ in maps:
            if isinstance(map_, CamError):
                return map_
        good = [map_ for map_ in maps if isinstance(map_, ComputedMap)]
        if question.fuse != "none" and len(good) > 1:
            good = list(alike(good))
            told = tuple(warning for map_ in good for warning in map_.warnings)
            fused = fuse([map_.map for map_ in good], question.fuse, question.signed)
            reached = any(map_.reached for map_ in good)
            passes = _together([map_.passes for map_ in good if map_.passes is not None])
            placement = good[0].placement
            good = [ComputedMap(fused, None, told, reached, passes, placement)]
            names = [" + ".join(names)]
        explanations += [
            Explanation(
                target=target,
                score=float(score_of(question, target, output)),
                probability=target.probability(output),
                method=question.method,
                layer=name,
                map=map_.placed,
                placement=map_.placement,
                signed=question.signed,
                completeness=map_.completeness,
                warnings=(
                    *_blind(question),
                    *map_.warnings,
                    *_incomplete(question, map_.completeness),
                    *_partial(map_.passes),
                ),
                reached=map_.reached,
                turn=turn,
                passes=map_.passes,
                used=map_.used,
            )
            for name, map_ in zip(names, good, strict=True)
        ]
    return Answer(output, tuple(explanations))
